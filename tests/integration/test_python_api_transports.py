"""The Python API gives the same results and the same errors over the database and over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

import farm
from farm.errors import BadParameter
from farm.services import ServiceUrls
from support.samples import document
from support.two_transports import CARD, OTHER, TYPE, TwoTransports, two_transports

ROOT = Path(__file__).parents[2]
DATASETS = ROOT / "examples" / "datasets"
TILED = "tiled(tile=16) 512x512x512 f32"
MODEL = "llama-3.1-8b"

Request = Callable[[farm.Client], Any]


@pytest.fixture(scope="module")
def clients(
    farm_services: ServiceUrls, tmp_path_factory: pytest.TempPathFactory, new_registry: Callable[[Path], str]
) -> Iterator[TwoTransports]:
    with two_transports(farm_services, new_registry(tmp_path_factory.mktemp("registry"))) as both:
        yield both


_AGES = ("silent_s", "state_s", "busy_s", "began_s", "seconds_left", "jobs_per_minute", "jobs_per_minute_overall")


def steady(result: Any) -> Any:
    """A result as JSON data, without what differs from one moment to the next."""
    if isinstance(result, BaseModel):
        return steady(result.model_dump(mode="json"))
    if isinstance(result, farm.Campaign):
        return {"name": result.name, "digest": result.digest}
    if isinstance(result, dict):
        return {key: steady(value) for key, value in result.items() if key not in _AGES}
    if isinstance(result, list | tuple | farm.Table):
        return [steady(one) for one in result]
    return re.sub(r"silent for \d[\d a-z]*", "silent", result) if isinstance(result, str) else result


SMALL = {"name": "tiny", "owner": "ann", "targets": [{"type": TYPE}], "problems": {"m": np.array([8, 16]), "n": 8, "k": range(8, 10), "types": "f32"}, "kernels": {"family": "blas"}}  # fmt: skip

REQUESTS: dict[str, Request] = {
    "campaign": lambda farm: farm.campaign("small"),
    "campaign by digest": lambda farm: farm.campaign(farm.campaign("small").digest[:8]),
    "campaigns": lambda farm: farm.campaigns(),
    "campaigns of a state": lambda farm: farm.campaigns(state="active", search="sma", limit=3),
    "progress": lambda farm: farm.campaign("small").progress(),
    "status": lambda farm: farm.campaign("small").status(),
    "best": lambda farm: farm.campaign("small").best(device_type=TYPE, batch=1),
    "rows": lambda farm: farm.results(),
    "rows of a campaign": lambda farm: farm.campaign("small").results(where="m >= 128", sort="-tflops", limit=3),
    "rows with conditions": lambda farm: farm.results(
        where=["m >= 64", "has(runtime_ms)"], type=OTHER, host="here", device="CPU-2", since="1h", source="measured"
    ),
    "no rows": lambda farm: farm.results(family="tiled"),
    "a data frame": lambda farm: farm.results().to_pandas().to_csv(),
    "an arrow table": lambda farm: str(farm.results().to_arrow().schema),
    "compare": lambda farm: farm.compare(TYPE, OTHER, tie=2, top=3),
    "compare by type": lambda farm: farm.compare(by="type", check=5, price=[f"{TYPE}=1", f"{OTHER}=2"]),
    "predict": lambda farm: farm.predict([TILED, "tiled(tile=8) 256x512x512 f32"]),
    "predict one": lambda farm: farm.predict(TILED, device_type=CARD, version="1"),
    "recommend": lambda farm: farm.recommend("512x512x512", family="tiled", top=2),
    "recommend by energy": lambda farm: farm.recommend("512x512x512", device_type=CARD, objective="energy"),
    "models": lambda farm: farm.models(),
    "devices": lambda farm: farm.devices(),
    "devices of a type": lambda farm: farm.devices(type=OTHER, host="here"),
    "check": lambda farm: farm.check(SMALL),
    "shapes": lambda farm: farm.shapes(MODEL, tokens=[1, 8], tp=2),
    "plan of GEMMs": lambda farm: farm.plan(
        gemms=[{"name": "up", "problem": "512x512x512 f32", "count": 2}], tokens=512, on=CARD, cards=2
    ),
    "submit a mapping": lambda farm: farm.submit(SMALL),
    "submit a file": lambda farm: farm.submit(ROOT / "examples" / "campaigns" / "quickstart.yaml"),
    "submit a model": lambda farm: farm.submit_model(MODEL, tokens=[1, 8], families=["tiled"], layers="dense"),
    "import, as a trial": lambda farm: farm.import_file(
        DATASETS / "nvidia-h100-80gb-hbm3-compare-cards.parquet", dry_run=True
    ),
    "delete, as a trial": lambda farm: farm.delete("small", dry_run=True),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_has_the_same_result_over_both(clients: TwoTransports, name: str) -> None:
    direct, remote = (steady(REQUESTS[name](client)) for client in clients.both)
    assert direct == remote
    assert direct or name == "no rows"


MISTAKES: dict[str, Request] = {
    "no such campaign": lambda farm: farm.campaign("small2"),
    "a campaign without a name": lambda farm: farm.campaign(""),
    "a campaign that is a path": lambda farm: farm.campaign("../small"),
    "a campaign that is the folder above": lambda farm: farm.campaign(".."),
    "a campaign that is a number": lambda farm: farm.campaign(7),  # type: ignore[arg-type]
    "a campaign with a NUL": lambda farm: farm.campaign("sm\0ll"),
    "a NUL in a condition": lambda farm: farm.campaigns(search="\0"),
    "an unknown option": lambda farm: farm.results(famly="blas"),
    "an option of another method": lambda farm: farm.campaign("small").results(campaign="other"),
    "a wrong expression": lambda farm: farm.results(where="m >="),
    "an unknown column": lambda farm: farm.results(where="colour == 1"),
    "an unknown order": lambda farm: farm.results(sort="colour"),
    "no rows wanted": lambda farm: farm.results(limit=0),
    "a limit in words": lambda farm: farm.results(limit="many"),  # type: ignore[arg-type]
    "a time in words": lambda farm: farm.results(since="soon"),
    "an unknown source": lambda farm: farm.results(source="guessed"),
    "an unknown device": lambda farm: farm.results(device="GPU-none"),
    "a state that is none": lambda farm: farm.campaigns(state="tired"),
    "too many campaigns": lambda farm: farm.campaigns(limit=501),
    "a comparison with nothing": lambda farm: farm.compare(TYPE),
    "a comparison with an unknown group": lambda farm: farm.compare(TYPE, "nvidia-none"),
    "a comparison that shares nothing": lambda farm: farm.compare(TYPE, CARD),
    "a tie that is too wide": lambda farm: farm.compare(TYPE, OTHER, tie=99),
    "an option that compare lacks": lambda farm: farm.compare(TYPE, OTHER, ties=1),
    "no configuration": lambda farm: farm.predict("tiled(tile=16)"),
    "configurations that are a number": lambda farm: farm.predict(16),  # type: ignore[arg-type]
    "a configuration that the model does not know": lambda farm: farm.predict("blas(threads=1) 64x64x64 f32"),
    "no such model": lambda farm: farm.predict(TILED, device_type="nvidia-none"),
    "no such version": lambda farm: farm.predict(TILED, version="99"),
    "a time that the model does not know": lambda farm: farm.predict(TILED, time="burst"),
    "a time that is none": lambda farm: farm.predict(TILED, time="later"),  # type: ignore[arg-type]
    "a shape of two numbers": lambda farm: farm.recommend("512x512"),
    "a batch of none": lambda farm: farm.recommend("512x512x512", batch=0),
    "an unknown objective": lambda farm: farm.recommend("512x512x512", objective="beauty"),
    "an unknown family": lambda farm: farm.recommend("512x512x512", family="tilde"),
    "a factor that is not a number": lambda farm: farm.recommend("512x512x512", alpha=float("nan")),
    "no such language model": lambda farm: farm.submit_model("llama-9"),
    "tokens in a text": lambda farm: farm.submit_model(MODEL, tokens="128"),  # type: ignore[arg-type]
    "tokens of a plan in a text": lambda farm: farm.plan(MODEL, tokens="128"),  # type: ignore[arg-type]
    "tokens of shapes in a text": lambda farm: farm.shapes(MODEL, tokens="128"),  # type: ignore[arg-type]
    "tokens that are true": lambda farm: farm.submit_model(MODEL, tokens=[True, 8]),
    "no tokens": lambda farm: farm.submit_model(MODEL, tokens=[]),
    "half a token": lambda farm: farm.shapes(MODEL, tokens=[0.5]),  # type: ignore[list-item]
    "GPUs that do not divide": lambda farm: farm.shapes(MODEL, tp=3),
    "layers that there are not": lambda farm: farm.shapes(MODEL, layers="all of them"),
    "families that are none": lambda farm: farm.submit_model(MODEL, families=[]),
    "a plan without rows": lambda farm: farm.plan(MODEL, on=TYPE, tokens=[8]),
    "a plan with a wrong price": lambda farm: farm.plan(MODEL, on=TYPE, price={TYPE: "cheap"}),  # type: ignore[dict-item]
    "a plan of nothing": lambda farm: farm.plan(),
    "a plan of both": lambda farm: farm.plan(MODEL, gemms=[{"name": "up", "problem": "8x8x8 f32"}]),
    "a plan of a GEMM without a problem": lambda farm: farm.plan(gemms=[{"name": "up"}], tokens=8),
    "a plan of a GEMM in a text": lambda farm: farm.plan(gemms="512x512x512 f32", tokens=8),  # type: ignore[arg-type]
    "an option that a plan lacks": lambda farm: farm.plan(MODEL, tpp=2),
    "a campaign with mistakes": lambda farm: farm.submit(document(colour="red", priority=1000)),
    "a campaign for no device": lambda farm: farm.submit(document(targets=[{"type": "nvidia-none"}])),
    "a campaign that is a list": lambda farm: farm.submit([document()]),  # type: ignore[arg-type]
    "a campaign with a set": lambda farm: farm.submit(document(problems={1, 2})),
    "a campaign with an infinite number": lambda farm: farm.submit(document(priority=float("inf"))),
    "a campaign that contains itself": lambda farm: farm.submit(_endless()),
    "a file that is not there": lambda farm: farm.submit("none.yaml"),
    "a file that is a folder": lambda farm: farm.submit(ROOT),
    "a file with a NUL in its name": lambda farm: farm.submit("a\0b"),
    "operands that are none": lambda farm: farm.submit(document(), distribution="gauss"),
    "a choice in words": lambda farm: farm.submit(document(), again="yes"),  # type: ignore[arg-type]
    "a deletion of nothing": lambda farm: farm.delete("small2"),
    "a deletion with open jobs": lambda farm: farm.campaign("small").delete(),
    "a deletion of another kind": lambda farm: farm.delete("small", kind="device"),
    "a restoration of nothing": lambda farm: farm.restore("small2"),
    "an import of nothing": lambda farm: farm.import_file("none.parquet"),
    "an import of a folder": lambda farm: farm.import_file(ROOT),
    "an import of another format": lambda farm: farm.import_file(ROOT / "README.md"),
    "an import of an unknown format": lambda farm: farm.import_file(ROOT / "README.md", format="xls"),
    "a wait without an end": lambda farm: farm.campaign("small").wait(timeout=float("nan")),
    "a wait in words": lambda farm: farm.campaign("small").wait(poll_seconds="1"),  # type: ignore[arg-type]
    "a wait that is too short": lambda farm: farm.campaign("small").wait(timeout=0),
}  # fmt: skip


def _endless() -> dict[str, object]:
    found = document()
    found["measure"] = found
    return found


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_the_same_error_over_both(clients: TwoTransports, name: str) -> None:
    found = []
    for client in clients.both:
        with pytest.raises(farm.FarmError) as raised:
            MISTAKES[name](client)
        found.append((type(raised.value), str(raised.value), raised.value.exit_code))
    assert found[0] == found[1]
    kind, message, exit_code = found[0]
    assert kind is not farm.FarmError
    assert exit_code in (2, 3, 4)
    assert len(message) > 20
    assert "--" not in re.sub(r"\(farm .*?\)|farm shapes --list", "", message), "options are those of commands"


def test_a_wrong_argument_has_its_name_in_python(clients: TwoTransports) -> None:
    for client in clients.both:
        with pytest.raises(BadParameter, match=r"^max_latency soon: write a time above 0"):
            client.plan(MODEL, max_latency="soon")


def test_a_campaign_is_steered_deleted_and_restored_alike_over_both(clients: TwoTransports) -> None:
    steps = []
    for name, client in zip(("over-database", "over-http"), clients.both, strict=True):
        campaign = client.submit({**SMALL, "name": name})
        with pytest.raises(farm.WaitTimedOut, match=f"4 jobs of {name} are open after 0 s") as late:
            campaign.wait(timeout=0)
        assert isinstance(late.value, TimeoutError)
        done: list[Any] = [campaign.pause(), campaign.pause(), campaign.resume(), campaign.cancel(), campaign.cancel()]
        with pytest.raises(farm.BadInput) as cancelled:
            campaign.resume()
        done += [campaign.wait(), campaign.delete(dry_run=True), campaign.delete()]
        with pytest.raises(farm.NotFound):
            campaign.progress()
        done += [client.restore(name), client.campaign(name)]
        text = json.dumps([*map(steady, done), type(cancelled.value).__name__, str(cancelled.value)])
        steps.append(
            text.replace(campaign.digest, "digest").replace(campaign.digest[:12], "digest").replace(name, "one")
        )
    assert steps[0] == steps[1]
