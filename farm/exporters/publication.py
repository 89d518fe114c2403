"""Published folders: bands of a farm's cards as static files, signed, for others to hold their cards against.

A folder has `bands.json`, a README.md, and `signature.json`: the SHA-256 of each file, and an Ed25519 signature on these. It can
lie on any disk or web server. A reader uses nothing of a folder whose files are not those that were signed by a key that it trusts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from farm import __version__
from farm.compare.bands import FORMAT, PERCENTILES, Band, Bands, Row, bands_of
from farm.errors import BadInput, NotFound, NothingToExport, ServiceUnavailable, first_line
from farm.exporters.exporter import Export, ExportedFile
from farm.signing import BadPublicKey, Purpose, Signer, is_signed

BANDS, README, SIGNATURE = "bands.json", "README.md", "signature.json"

MAX_BYTES = 256 * 2**20
"""Size of a file that is read, once its signature is known to be that of a trusted key."""

MAX_SIGNATURE_BYTES = 2**16
"""Size of the signature, which is read before anything is known of it."""

FETCH_SECONDS = 60.0
"""Time limit for the next bytes of a server."""

MAX_SECONDS = 600.0
"""Time limit for a file of a server, from the connection to the last byte."""

AS_IT_IS = {"Accept-Encoding": "identity"}
"""Files are fetched uncompressed: a few bytes that are compressed can be any number of bytes."""

Fetch = Callable[[str], bytes]
"""Returns the content of a file of the folder."""


class NoPublication(NotFound):
    """{where} is not a published folder: {why}."""


class PublicationUnreachable(ServiceUnavailable):
    """{where} cannot be read: {why}."""


class PublicationChanged(BadInput):
    """{where}: {file} is not what was signed. Nothing of it was used. Get the folder again from its publisher."""


class PublisherUnknown(BadInput):
    """{where} is signed with the key {key}, which is not trusted here. Nothing of it was used. If you know who has that key, add it to FARM_PUBLISH_KEYS."""


class PublicationUnreadable(BadInput):
    """{where}: {file} cannot be read: {why}. It may be of a newer version of the farm."""


# --- writing -------------------------------------------------------------------------------------------


def export(rows: Iterable[Row], signer: Signer, *, min_cards: int = 1) -> Export:
    """The files of a folder. Raises `NothingToExport`."""
    remaining = iter(rows)
    first = list(islice(remaining, 1))
    found = bands_of(chain(first, remaining), min_cards=min_cards)
    if not found:
        why = f"no GEMM was measured on {min_cards} cards of a type" if first else "no row matches"
        raise NothingToExport(tool="a publication", why=f"{why}.")
    made = Bands(format=FORMAT, made_at=datetime.now(UTC), made_by=__version__, bands=found)
    files = {
        BANDS: (made.model_dump_json(indent=1) + "\n").encode(),
        README: _readme(made, signer.public).encode(),
    }
    named = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    signature = {"key": signer.public, "files": named, "signature": signer.sign(Purpose.PUBLICATION, _signed(named))}
    return Export(
        [
            ExportedFile(BANDS, files[BANDS], len(found), "bands"),
            ExportedFile(README, files[README], 1, "description"),
            ExportedFile(SIGNATURE, (json.dumps(signature, indent=1) + "\n").encode(), 1, "signature"),
        ],
        [f"Signed with the key {signer.public}. Readers add it to FARM_PUBLISH_KEYS."],
    )


def _signed(files: dict[str, str]) -> bytes:
    return json.dumps(files, sort_keys=True, separators=(",", ":")).encode()


def _readme(made: Bands, key: str) -> str:
    types = Counter(band.device_type for band in made.bands)
    cards = {name: max(band.cards for band in made.bands if band.device_type == name) for name in types}
    lines = [
        "# GEMM times by type of card",
        "",
        f"Percentiles {', '.join(map(str, PERCENTILES))} over cards, made on {made.made_at:%Y-%m-%d} by gemm-farm {made.made_by}.",
        f"`{BANDS}` has for each GEMM the time in ms, the burst time in ms, the power in W, and the digest of the result.",
        "",
        "| type | GEMMs | cards |",
        "| --- | --- | --- |",
        *(f"| {name} | {count:,} | {cards[name]:,} |" for name, count in sorted(types.items())),
        "",
        "Hold a card against them:",
        "",
        "```sh",
        f"FARM_PUBLISH_KEYS={key} farm compare --against FOLDER_OR_URL",
        "```",
        "",
    ]
    return "\n".join(lines)


# --- reading -------------------------------------------------------------------------------------------


def read(where: str, trusted: Collection[str]) -> list[Band]:
    """The bands of a folder or of a URL of one.

    Args:
        trusted: The public keys whose publications are used.

    Raises:
        NoPublication: There is no such folder, or it was not published.
        PublicationUnreachable: The server of a URL does not answer.
        PublicationChanged: A file is missing, or is not what was signed.
        PublisherUnknown: No trusted key signed it.
        PublicationUnreadable: It is of another format.
    """
    fetch = _fetching(where) if where.startswith(("http://", "https://")) else _reading(where)
    try:
        signature = json.loads(fetch(SIGNATURE))
        key, files, signed = signature["key"], signature["files"], signature["signature"]
        valid = is_signed([key], Purpose.PUBLICATION, _signed(files), signed)
    except (ValueError, KeyError, TypeError, RecursionError, BadPublicKey):
        raise PublicationChanged(where=where, file=SIGNATURE) from None
    if not valid or not isinstance(files, dict) or BANDS not in files:
        raise PublicationChanged(where=where, file=SIGNATURE)
    if key not in trusted:
        raise PublisherUnknown(where=where, key=key)
    for name in (BANDS, README):
        content = fetch(name)
        if hashlib.sha256(content).hexdigest() != files.get(name):
            raise PublicationChanged(where=where, file=name)
        if name == BANDS:
            found = content
    return _bands(where, found)


def _bands(where: str, content: bytes) -> list[Band]:
    try:
        document: Any = json.loads(content)
        if document.get("format") != FORMAT:
            why = f"its format is {document.get('format')!r}, and this version reads {FORMAT}"
            raise PublicationUnreadable(where=where, file=BANDS, why=why)
        return Bands.model_validate(document).bands
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise PublicationUnreadable(where=where, file=BANDS, why=why) from None
    except (ValueError, AttributeError, RecursionError) as error:
        raise PublicationUnreadable(where=where, file=BANDS, why=first_line(error)) from None


def _reading(where: str) -> Fetch:
    folder = Path(where)

    def read_file(name: str) -> bytes:
        try:
            with (folder / name).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise NoPublication(where=where, why=f"{name}: {error.strerror}") from None
        _check_size(where, name, len(content))
        return content

    return read_file


def _fetching(where: str) -> Fetch:
    import httpx

    async def content_of(name: str) -> bytes:
        content, parts = bytearray(), urlsplit(where)
        url = parts._replace(path=f"{parts.path.rstrip('/')}/{name}", fragment="").geturl()
        async with (
            asyncio.timeout(MAX_SECONDS),
            httpx.AsyncClient(headers=AS_IT_IS, timeout=FETCH_SECONDS, follow_redirects=True) as client,
            client.stream("GET", url) as answer,
        ):
            if answer.status_code == httpx.codes.NOT_FOUND:
                raise NoPublication(where=where, why=f"it has no {name}")
            answer.raise_for_status()
            if "Content-Encoding" in answer.headers:
                raise PublicationUnreachable(where=where, why=f"its server compresses {name}")
            async for block in answer.aiter_raw():
                content += block
                _check_size(where, name, len(content))
        return bytes(content)

    def fetch(name: str) -> bytes:
        try:
            return asyncio.run(content_of(name))
        except TimeoutError:
            raise PublicationUnreachable(where=where, why=f"{name} took longer than {MAX_SECONDS:g} s") from None
        except (httpx.InvalidURL, ValueError):  # whose messages repeat parts of the URL, as of its password
            raise PublicationUnreachable(where=where, why="it is not a URL") from None
        except httpx.HTTPError as error:
            raise PublicationUnreachable(where=where, why=first_line(error)) from None

    return fetch


def _check_size(where: str, name: str, size: int) -> None:
    limit = MAX_SIGNATURE_BYTES if name == SIGNATURE else MAX_BYTES
    if size > limit:
        raise PublicationUnreadable(where=where, file=name, why=f"it is larger than {limit // 2**10:,} KiB")
