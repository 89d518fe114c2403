"""Published bands: what a folder holds, who reads it, and where a card lies."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from farm.api.comparing import Comparing
from farm.api.results import Results
from farm.cli import against
from farm.compare.bands import Standing, bands_of, percentiles, standings
from farm.errors import FarmError, NothingToExport
from farm.exporters.publication import (
    BANDS,
    MAX_SIGNATURE_BYTES,
    README,
    SIGNATURE,
    NoPublication,
    PublicationChanged,
    PublicationUnreachable,
    PublicationUnreadable,
    PublisherUnknown,
    export,
    read,
)
from farm.kernels import Configuration
from farm.signing import Purpose, Signer

Row = dict[str, Any]


def row(card: int, ms: float, *, shape: str = "64x64x64", **changes: Any) -> Row:
    columns = Configuration.parse(f"tiled(tile=8) {shape} f32").columns()
    known = {"device_type": "card", "device_uuid": f"GPU-{card:02}", "host": "box", "protocol": "farm"}
    measured = {"runtime_ms": ms, "runtime_burst_ms": None, "power_w": 100.0 + card, "distribution": "uniform"}
    bits = {"seed": 0, "kernel_hash": "k", "result_digest": "ab", "clock_policy": "default"}
    return {**columns, **known, **measured, **bits, **changes}


def fleet(**changes: Any) -> list[Row]:
    """Rows of 21 cards, from 1.00 to 1.20 ms."""
    return [row(card, 1 + card / 100, **changes) for card in range(21)]


def test_percentiles_are_interpolated() -> None:
    assert percentiles([float(n) for n in range(101)]) == (5.0, 50.0, 95.0)
    assert percentiles([1.0, 2.0]) == pytest.approx((1.05, 1.5, 1.95))
    assert percentiles([3.0]) == (3.0, 3.0, 3.0)


def test_a_card_counts_once_and_conditions_are_held_apart() -> None:
    again = [row(0, 1.0) for _ in range(50)]
    found = bands_of([*fleet(), *again, *fleet(distribution="zeros")])
    assert [(band.distribution, band.cards, band.rows) for band in found] == [("uniform", 21, 71), ("zeros", 21, 21)]
    assert found[0].runtime_ms == found[1].runtime_ms == pytest.approx((1.01, 1.1, 1.19))
    assert found[0].power_w == pytest.approx((101, 110, 119))
    assert found[0].runtime_burst_ms is None
    assert bands_of(fleet(), min_cards=22) == []


def test_the_digest_of_a_band_is_that_of_most_cards() -> None:
    (band,) = bands_of([*fleet(), row(30, 1.0, result_digest="cd"), row(31, 1.0, result_digest=None)])
    (found,) = band.digests
    assert (found.digest, found.cards, found.of) == ("ab", 21, 22)
    (split,) = bands_of([row(1, 1.0), row(2, 1.0, result_digest="cd")])
    assert split.digests == []


def test_own_kernels_have_no_digest_because_each_row_has_another_seed() -> None:
    own = Configuration.parse("source(definition=1) 64x64x64 f32").columns()
    (band,) = bands_of([{**one, **own, "seed": number} for number, one in enumerate(fleet())])
    assert band.digests == []


@pytest.mark.parametrize(
    ("changes", "standing"),
    [
        ({}, Standing.WITHIN),
        ({"runtime_ms": 0.5}, Standing.WITHIN),
        ({"runtime_ms": 1.195}, Standing.WITHIN),
        ({"runtime_ms": 1.25}, Standing.SLOWER),
        ({"result_digest": "cd"}, Standing.OTHER_BITS),
        ({"result_digest": "cd", "kernel_hash": "another"}, Standing.WITHIN),
    ],
)
def test_where_a_card_lies(changes: Row, standing: Standing) -> None:
    (found,) = standings(bands_of(fleet()), [row(99, 1.1, **changes), row(99, 9.0, shape="8x8x8")])
    assert (found.device_uuid, found.gemms, found.standing) == ("GPU-99", 1, standing)


def test_a_card_is_slower_if_it_is_so_for_most_gemms() -> None:
    shapes = ("64x64x64", "128x64x64", "256x64x64")
    bands = bands_of([one for shape in shapes for one in fleet(shape=shape)])
    for slow, standing in ((1, Standing.WITHIN), (2, Standing.SLOWER)):
        rows = [row(99, 1.5 if place < slow else 1.0, shape=shape) for place, shape in enumerate(shapes)]
        (found,) = standings(bands, rows)
        assert (found.standing, found.slower_gemms) == (standing, slow)


def test_nothing_is_said_of_what_is_not_published() -> None:
    assert standings(bands_of(fleet()), [row(99, 9.0, protocol="server"), row(99, 9.0, device_type="other")]) == []


# --- folders -----------------------------------------------------------------------------------------


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer.make(tmp_path / "key.pem")


@pytest.fixture
def folder(tmp_path: Path, signer: Signer) -> Path:
    written = tmp_path / "public"
    written.mkdir()
    for file in export(fleet(), signer).files:
        (written / file.name).write_bytes(file.content)
    return written


def test_a_published_folder_is_read_back(folder: Path, signer: Signer) -> None:
    assert read(str(folder), [signer.public]) == bands_of(fleet())
    assert f"FARM_PUBLISH_KEYS={signer.public}" in (folder / README).read_text()


def changed(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


def signed_again(folder: Path) -> None:
    """A stranger changes a time, and signs the folder with a key of their own."""
    changed(folder, BANDS, "1.1", "0.9")
    stranger = Signer.make(folder / "stranger.pem")
    signature = json.loads((folder / SIGNATURE).read_text())
    signature |= {"key": stranger.public, "signature": stranger.sign(Purpose.PUBLICATION, b"{}")}
    (folder / SIGNATURE).write_text(json.dumps(signature))


@pytest.mark.parametrize(
    ("harm", "error", "says"),
    [
        (lambda folder: changed(folder, BANDS, "1.1", "0.9"), PublicationChanged, "bands.json is not what was signed"),
        (
            lambda folder: changed(folder, README, "GEMM", "gemm"),
            PublicationChanged,
            "README.md is not what was signed",
        ),
        (lambda folder: changed(folder, SIGNATURE, "a", "b"), PublicationChanged, "signature.json is not what"),
        (lambda folder: (folder / SIGNATURE).write_text("{}"), PublicationChanged, "signature.json is not what"),
        (lambda folder: (folder / SIGNATURE).write_text("[" * 10_000), PublicationChanged, "signature.json"),
        (signed_again, PublicationChanged, "signature.json is not what was signed"),
        (lambda folder: (folder / BANDS).unlink(), NoPublication, "bands.json: No such file"),
        (lambda folder: (folder / SIGNATURE).unlink(), NoPublication, "is not a published folder"),
    ],
)
def test_a_folder_that_was_tampered_with_is_one_clear_message(
    folder: Path, signer: Signer, harm: Callable[[Path], object], error: type[FarmError], says: str
) -> None:
    harm(folder)
    with pytest.raises(error) as found:
        read(str(folder), [signer.public])
    assert says in str(found.value)


def test_a_publisher_must_be_trusted(folder: Path, signer: Signer, tmp_path: Path) -> None:
    other = Signer.make(tmp_path / "other.pem").public
    with pytest.raises(PublisherUnknown, match="add it to FARM_PUBLISH_KEYS") as found:
        read(str(folder), [other])
    assert signer.public in str(found.value)


def test_another_format_is_refused(tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.exporters.publication.FORMAT", 2)
    files = export(fleet(), signer).files
    monkeypatch.undo()
    for file in files:
        (tmp_path / file.name).write_bytes(file.content)
    with pytest.raises(PublicationUnreadable, match="its format is 2, and this version reads 1"):
        read(str(tmp_path), [signer.public])


def test_a_server_that_does_not_answer_is_one_clear_message(signer: Signer) -> None:
    with pytest.raises(PublicationUnreachable, match="cannot be read"):
        read("http://127.0.0.1:1/public", [signer.public])


@pytest.mark.parametrize(
    "where",
    ["http://ann:pw1@127.0.0.1:1/public", "http://ann:pw1@[bad/public", "http://ann:pw1/x@127.0.0.1:1/public"],
)
def test_a_message_does_not_repeat_a_password(where: str) -> None:
    with pytest.raises(PublicationUnreachable, match=r"http://\*\*\*@.* cannot be read") as found:
        read(where, [])
    assert "pw1" not in str(found.value)


class Files(SimpleHTTPRequestHandler):
    """Serves a folder under /public; /moved leads there; /compressed says that it is compressed; the headers of /slow take seconds."""

    def do_GET(self) -> None:
        if self.path.startswith("/slow"):
            with suppress(OSError):  # the reader has left
                for byte in b"HTTP/1.0 404 Not here\r\n" + b"Slow: yes\r\n" * 10 + b"\r\n":
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(0.02)
        elif self.path.startswith("/moved"):
            self.send_response(301)
            self.send_header("Location", self.path.replace("moved", "public"))
            self.end_headers()
        else:
            super().do_GET()

    def end_headers(self) -> None:
        if self.path.startswith("/compressed"):
            self.send_header("Content-Encoding", "gzip")
        super().end_headers()

    def translate_path(self, path: str) -> str:
        return str(Path(self.directory, PurePath(urlsplit(path).path).name))

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(folder))) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["/public", "/public/", "/moved", "/public?key=1", "/public/?key=a/b#part"])
def test_a_published_folder_is_read_from_a_server(server: str, path: str, signer: Signer) -> None:
    assert read(server + path, [signer.public]) == bands_of(fleet())


def test_what_a_server_sends_is_limited_before_its_signature_is_known(
    server: str, folder: Path, signer: Signer
) -> None:
    with pytest.raises(PublicationUnreachable, match=r"its server compresses signature\.json"):
        read(f"{server}/compressed", [signer.public])
    (folder / SIGNATURE).write_bytes(b" " * (MAX_SIGNATURE_BYTES + 1))
    for where in (f"{server}/public", str(folder)):
        with pytest.raises(PublicationUnreadable, match=r"signature\.json cannot be read: it is larger than 64 KiB"):
            read(where, [signer.public])
    (folder / SIGNATURE).unlink()
    with pytest.raises(NoPublication, match=r"it has no signature\.json"):
        read(f"{server}/public", [signer.public])


def test_a_file_has_a_time_limit_even_if_bytes_come_all_the_time(
    server: str, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.exporters.publication.MAX_SECONDS", 0.1)
    with pytest.raises(PublicationUnreachable, match=r"signature\.json took longer than 0\.1 s"):
        read(f"{server}/slow", [signer.public])


def test_only_rows_of_the_published_types_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = []

    def ask(_: object, **query: Any) -> Results:
        queries.append(query["type"])
        rows = [row(99, 1.1, device_type=query["type"], measured_at=None)]
        return Results.model_construct(rows=rows, identity=None, commands=None, next=None)

    bands = bands_of([*fleet(), *fleet(device_type="newer")])
    monkeypatch.setattr(against.publication, "read", lambda *_: bands)
    monkeypatch.setattr(against.signing_keys, "trusted", lambda *_: [])
    monkeypatch.setattr(against, "farm_of", lambda _: nullcontext(SimpleNamespace(rows_at_once=1000, ask=ask)))
    against.compare(Comparing(), "https://ann:pw1@example.org/public", others=False, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert queries == [one["device_type"] for one in document["cards"]] == ["card", "newer"]
    assert document["against"] == "https://***@example.org/public"
    queries.clear()
    against.compare(Comparing(type="newer"), "public", others=False, as_json=True)
    assert queries == ["newer"]


def test_a_power_of_0_is_none() -> None:
    (band,) = bands_of(fleet(power_w=0.0))
    assert band.power_w is None
    (found,) = standings(bands_of(fleet()), [row(99, 1.1, power_w=0.0)])
    assert found.power_change_pct is None


@pytest.mark.parametrize(("rows", "says"), [([], "no row matches"), (fleet(), "no GEMM was measured on 30 cards")])
def test_nothing_is_published_without_rows(signer: Signer, rows: list[Row], says: str) -> None:
    with pytest.raises(NothingToExport, match=says):
        export(rows, signer, min_cards=30)
