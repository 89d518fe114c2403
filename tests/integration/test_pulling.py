"""`farm pull`: campaigns that another farm measured come in once, labelled, and a second pull brings only what is new."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from farm import __version__
from farm.api import imports
from farm.campaign import Campaign, plan
from farm.client import pulling
from farm.client.client import Client
from farm.db import campaigns, devices, tokens
from farm.db.engine import make_engine
from farm.db.states import Role
from farm.errors import BadMoment, OtherFarmRefused
from farm.registry.models import model_info
from farm.registry.version_details import model_card
from farm.services import ServiceUrls
from farm.settings import settings
from support.cheap_training import cheap_trainings
from support.commands import Command, farm_here, refused
from support.databases import database
from support.samples import card, cpu, document, landed, row
from support.serving import served
from trainer.forest import ForestSettings
from trainer.reading import read_training_table
from trainer.registry import train_and_register

CPU, CARD = "cpu-test", "nvidia-test"
Shapes = list[tuple[int, int]]
SHAPES: Shapes = [(m, k) for m in (64, 128, 256) for k in (32, 64)]
LARGER: Shapes = [(m, k) for m in (512, 1024, 2048) for k in (32, 64)]


def configuration(m: int, k: int) -> str:
    return f"blas(threads=1) {m}x64x{k} f32:f32:f32 nn alpha=1 beta=0"


@dataclass(frozen=True)
class Measured:
    """A farm whose rows are put into its database."""

    engine: Engine
    devices: dict[str, int]
    command: Command

    def measure(self, name: str, *kinds: str, finished: bool = True, shapes: Shapes = SHAPES) -> int:
        """A campaign with a row of each shape on a device of each type."""
        asked = Campaign.from_document(document(name=name))
        with self.engine.begin() as connection:
            jobs = plan(asked, campaigns.known_devices(connection), allow_missing=False).jobs()
            campaign_id = campaigns.store(connection, asked, jobs).campaign_id
        for kind in kinds:
            self.land(campaign_id, kind, shapes=shapes)
        if finished:
            with self.engine.begin() as connection:
                done = text("UPDATE campaigns SET state = 'done', finished_at = clock_timestamp() WHERE id = :id")
                connection.execute(done, {"id": campaign_id})
        return campaign_id

    def land(self, campaign_id: int, kind: str, ms: float = 2.0, shapes: Shapes = SHAPES) -> None:
        rows = [(configuration(m, k), row(ms, environment={"driver": "580.1"})) for m, k in shapes]
        landed(self.engine, self.devices[kind], rows, campaign_id=campaign_id)

    def rows(self, **conditions: str) -> list[dict[str, Any]]:
        options = [word for name, value in conditions.items() for word in (f"--{name}", value)]
        found: list[dict[str, Any]] = json.loads(self.command("results", *options, "--json").stdout)
        return found

    def pull(self, url: str, *options: str, **environment: str) -> dict[str, Any]:
        done = self.command("pull", url, *options, "--json", **environment)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@contextmanager
def measured_farm(services: ServiceUrls, folder: Path, first: int) -> Iterator[Measured]:
    folder.mkdir()
    with database(services, migrated=True) as url:
        engine = make_engine(url, application="test")
        with engine.begin() as connection:
            ids = {
                kind: devices.register(connection, host=f"host-{first}", host_facts={}, device=device)
                for kind, device in ((CPU, cpu(first)), (CARD, card(first)))
            }
        try:
            yield Measured(engine, ids, farm_here(folder, url))
        finally:
            engine.dispose()


@pytest.fixture
def here(farm_services: ServiceUrls, tmp_path: Path) -> Iterator[Measured]:
    with measured_farm(farm_services, tmp_path / "here", 1) as made:
        yield made


@pytest.fixture
def there(farm_services: ServiceUrls, tmp_path: Path) -> Iterator[Measured]:
    with measured_farm(farm_services, tmp_path / "there", 7) as made:
        yield made


def test_the_finished_campaigns_of_another_farm_come_in_once_and_are_used_as_imported_rows(
    here: Measured, there: Measured, tmp_path: Path, new_registry: Callable[[Path], str]
) -> None:
    both = there.measure("both", CPU, CARD)
    there.measure("open", CPU, finished=False)
    own = here.measure("own", CPU)
    with there.engine.begin() as connection:
        token = tokens.create(connection, "a", Role.READ, by="test")
    with served(there.engine, tokens=True) as url:
        refused(here.command("pull", url), 3, url, "FARM_PULL_TOKEN")
        given = {"FARM_PULL_TOKEN": token}

        first = here.pull(url, "--name", "b", **given)
        assert (first["farm"], first["rows"], first["unchanged"]) == ("b", 12, 0)
        assert [(one["campaign"], one["rows"], one["device_types"]) for one in first["campaigns"]] == [
            ("both", 12, [CPU, CARD])
        ]
        again = here.pull(url, "--name", "b", **given)
        assert (again["rows"], again["unchanged"]) == (0, 1)
        assert len(here.rows(source="imported")) == 12

        there.measure("later", CARD, shapes=LARGER)
        there.land(both, CARD, ms=3.0)  # jobs that were retried
        third = here.pull(url, "--name", "b", **given)
        assert {one["campaign"]: one["rows"] for one in third["campaigns"]} == {"both": 6, "later": 6}
        assert here.pull(url, "--name", "b", "--since", "2000-01-01", **given)["rows"] == 0
        shown = here.command("pull", url, "--name", "b", **given).stdout
        assert shown == "0 rows of b were imported. 2 campaigns have no new rows.\n"

        # Under another name it is another farm, but the same content is still no second import.
        other = here.command("pull", url, "--name", "c", **given)
        assert other.returncode == 2
        assert "are here as another import" in other.stderr
        assert "pull under the name that it was pulled under" in " ".join(other.stderr.split())

    found = here.rows(source="imported")
    assert len(found) == 24
    assert {(one["device_type"], one["host"], one["environment"]["driver"]) for one in found} == {
        (CPU, "imported:host-7", "580.1"),
        (CARD, "imported:host-7", "580.1"),
    }
    facts = [one["facts"] for one in json.loads(here.command("devices", "--json").stdout) if "pulled" in one["facts"]]
    assert {one["pulled"]["farm"] for one in facts} == {"b"}
    assert {name for one in facts for name in one["campaigns"]} == {"both", "later"}
    assert {one["device_uuid"] for one in facts} == {"CPU-7", "GPU-7"}

    groups = [f"type={CPU},source={source}" for source in ("measured", "imported")]
    compared = here.command("compare", *groups, "--json")
    assert compared.returncode == 0, compared.stderr
    with here.engine.connect() as connection:
        assert len(read_training_table(here.engine, CARD)) == 0, "imported rows do not pass for fresh ones"
        table = read_training_table(here.engine, CARD, any_source=True)
        assert campaigns.counts(connection, own)["done"] == 0  # nothing of it is counted as measured here
    assert len(table) == 18

    registry = new_registry(tmp_path)
    with cheap_trainings():
        trained = train_and_register(
            table, CARD, tracking_uri=registry, code_version="1", settings=ForestSettings(trees=4)
        )
    shown = model_card(registry, model_info(registry, CARD, trained.version))
    assert shown is not None
    assert "18 measurements of 12 configurations (none with power) over 12 shapes" in shown
    assert "Sources: imported." in shown
    assert "Some rows were not measured by this farm" in shown
    for campaign, last in (("both", 12), ("both", 30), ("later", 24)):
        origin = (
            f"6 imported from b {campaign} {CARD} to {last}.parquet (measured by gemm-farm {__version__} on host-7, "
        )
        assert re.search(re.escape(origin) + rf"[\d-]+, campaign {campaign}\)", shown), shown
    assert trained.sources == ["imported"]


def test_the_python_api_pulls_too(here: Measured, there: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    there.measure("both", CPU, CARD)
    with there.engine.begin() as connection:
        token = tokens.create(connection, "a", Role.READ, by="test")
    with served(there.engine, tokens=True) as url, closing(Client(_direct(here))) as client:
        pulled = client.pull(url, token=token, name="b", since="1d")
        assert [(one.campaign, one.rows, one.error) for one in pulled.campaigns] == [("both", 12, None)]
        assert client.pull(url, token=token, name="b").unchanged == 1
        later = datetime.now(UTC) + timedelta(days=1)
        assert client.pull(url, token=token, name="b", since=later).unchanged == 0
        with pytest.raises(OtherFarmRefused, match="FARM_PULL_TOKEN"):
            client.pull(url, name="b")
        with pytest.raises(BadMoment, match="yesterday"):
            client.pull(url, token=token, name="b", since="yesterday")
        monkeypatch.setenv("FARM_PULL_TOKEN", token)
        settings.cache_clear()
        assert client.pull(url, name="b").unchanged == 1
    settings.cache_clear()
    assert len(here.rows(source="imported")) == 12


def test_rows_are_passed_on_by_the_farm_that_measured_them_alone(here: Measured, there: Measured) -> None:
    there.measure("both", CPU, CARD)
    with served(there.engine) as other, served(here.engine) as this:
        here.pull(other, "--name", "b")
        here.measure("mine", CPU)
        back = there.pull(this, "--name", "a")
        assert [(one["campaign"], one["rows"]) for one in back["campaigns"]] == [("mine", 6)]
        itself = here.pull(this, "--name", "me")
        assert (itself["rows"], itself["own"]) == (0, 1)
        assert len(here.rows()) == 18


def test_a_pull_that_was_interrupted_continues_and_stores_nothing_twice(
    here: Measured, there: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.measure("both", CPU, CARD)
    there.measure("later", CARD)
    stored = list[str]()
    import_ = imports.import_

    def interrupted(*arguments: Any, **given: Any) -> Any:
        if len(stored) == 3:
            raise KeyboardInterrupt
        stored.append(given["name"])
        return import_(*arguments, **given)

    monkeypatch.setattr(pulling, "PART_ROWS", 8)  # a part ends among the rows of the second type
    with served(there.engine) as url:
        with monkeypatch.context() as patched:
            patched.setattr(imports, "import_", interrupted)
            done = here.command("pull", url, "--name", "b")
        assert done.returncode == 130
        assert "Interrupted after 12 rows. The same command continues; nothing is stored twice." in done.stderr
        rest = here.pull(url, "--name", "b")
    assert [(one["campaign"], one["rows"]) for one in rest["campaigns"]] == [("later", 6)]
    found = [(one["device_uuid"][21:], one["configuration_id"], one["measured_at"]) for one in here.rows()]
    assert len(found) == len(set(found)) == 18


def test_a_part_of_which_one_type_was_stored_is_completed(
    here: Measured, there: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.measure("both", CPU, CARD)
    import_ = imports.import_

    def first_alone(*arguments: Any, **given: Any) -> Any:
        if given["whole"]:
            raise KeyboardInterrupt
        return import_(*arguments, **given)

    with served(there.engine) as url:
        with monkeypatch.context() as patched:
            patched.setattr(imports, "import_", first_alone)
            assert here.command("pull", url, "--name", "b").returncode == 130
        assert {one["device_type"] for one in here.rows()} == {CPU}
        assert here.pull(url, "--name", "b")["rows"] == 6
        assert here.pull(url, "--name", "b")["rows"] == 0
    assert len(here.rows()) == 12


def test_what_a_campaign_cannot_store_keeps_no_other_from_coming(here: Measured, there: Measured) -> None:
    there.measure("future", CPU)
    with there.engine.begin() as connection:
        connection.execute(text("UPDATE configurations SET family = 'quantum' WHERE m = 256"))
    there.measure("plain", CARD, shapes=[(96, 32), (96, 64)])
    with served(there.engine) as url:
        done = here.command("pull", url, "--name", "b")
    assert done.returncode == 2
    assert re.search(r"future: .* row 5 cannot be imported: .*quantum", done.stderr), done.stderr
    assert "2 rows of b were imported" in done.stdout
    assert {one["device_type"] for one in here.rows()} == {CARD}


def test_two_pulls_at_once_store_nothing_twice(here: Measured, there: Measured) -> None:
    """The second one of two that began at the same time, with other rows in its part."""
    there.measure("both", CPU)
    with ExitStack() as stack, served(there.engine) as url:
        stack.enter_context(closing(other := pulling.other_farm(url, None)))
        behind = pulling.Pull(other, _direct(here), "b")
        found = behind.campaigns()
        here.pull(url, "--name", "b")
        there.land(1, CPU, ms=3.0)
        behind._here = _Stale(behind._here)  # type: ignore[assignment]
        behind.run(found, lambda *_: None)
        assert "Another pull stored rows" in (behind.done.campaigns[0].error or "")
        assert len(here.rows()) == 6
        assert here.pull(url, "--name", "b")["rows"] == 6


class _Stale:
    """The farm as it was before anything was pulled."""

    def __init__(self, farm: Any) -> None:
        self._farm = farm

    def ask(self, operation: Any, *arguments: Any, **given: Any) -> Any:
        return [] if operation is imports.pulled else self._farm.ask(operation, *arguments, **given)


def _direct(measured: Measured) -> Any:
    from farm.api.access import Access
    from farm.api.connecting import Direct
    from farm.services.session import Session
    from farm.settings import Settings

    url = measured.engine.url.render_as_string(hide_password=False)
    opened = Session(Settings(), ServiceUrls(url, None, ""), measured.engine)
    return Direct(Access(opened.settings, who="the tests", opened=opened))


def test_mistakes_in_the_address_and_the_name_have_one_message(here: Measured, there: Measured) -> None:
    command = here.command
    refused(command("pull", "ftp://b.example"), 2, "URL", "http://host:8000")
    refused(command("pull", "htp:/b.example"), 2, "URL", "http://host:8000")
    refused(command("pull", "https://ann:secret@b.example"), 2, "URL", "without a password")
    refused(command("pull", "http://b.example", FARM_PULL_TOKEN="gfarm_x"), 2, "plain HTTP", "https://")
    refused(command("pull", "http://127.0.0.1:1"), 3, "http://127.0.0.1:1", "does not answer", "Check the URL")
    with served(there.engine) as url:
        refused(command("pull", f"{url}/docs"), 3, "does not answer as the API")
        refused(command("pull", url, "--name", "a/b"), 2, "--name", "has a /")
        refused(command("pull", url, "--since", "yesterdayish"), 2, "yesterdayish")
        assert here.pull(url)["farm"] == url.removeprefix("http://")
