"""Users' kernels through the farm: submitting, storing, roles, and what workers get."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
from sqlalchemy import Engine, text

from farm.api import PREFIX
from farm.builds.record import Built
from farm.campaign import Campaign, load
from farm.campaign.loading import texts_named
from farm.db import batches, campaigns, definitions, jobs, kernels, tokens
from farm.db.states import FailureKind, Role
from farm.devices import DeviceIdentity
from farm.errors import BadDefinition, KernelRefused, UnknownDefinitions
from farm.kernels import Configuration, own_triton
from farm.kernels.binary import Binary
from farm.kernels.definition import known
from farm.kernels.toolchains import BUILT_WITH, TRITON
from farm.measurement import Measurement
from farm.settings import settings
from support import open_card
from support.batch_steps import form
from support.commands import farm_here
from support.fake_cuda import FakeCupy
from support.kernel_builds import SIGNER, built_of, wanted
from support.own_kernels import CODE, ENTRY, OwnKernel, block_of, caches_by_all_inputs, defined, in_triton, plain
from support.quick import QUICK
from support.samples import card, landed, row
from support.scripted_device import Scripted
from support.serving import served
from support.virtual_time import VirtualTime
from trainer.reading import read_training_table
from trainer.table import configurations
from workers import building
from workers.devices.cuda import CudaDevice
from workers.runner import Runner

pynvml, cupy, virtual_time = open_card.pynvml, open_card.cupy, open_card.virtual_time
device = open_card.device

CAMPAIGN = f"""\
name: own
targets: any
problems: {{shapes: [64x64x64, 100x64x64], types: f32}}
kernels:
  family: source
  file: my_gemm.cu
  entry: {ENTRY}
  grid: [ceil(n / BN), ceil(m / BM)]
  block: [BM * BN / 4]
  arguments: [a, b, d, m, n, k]
  requires: m % BM == 0
  parameters: {{BM: [32, 64], BN: 16}}
"""


@pytest.fixture
def gpu(announce: Callable[[DeviceIdentity], int]) -> int:
    return announce(card())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "my_gemm.cu").write_text(CODE)
    path = tmp_path / "own.yaml"
    path.write_text(CAMPAIGN)
    return path


def stored_definitions(engine: Engine) -> list[tuple[int, str, str | None]]:
    with engine.connect() as connection:
        return [
            (found.id, found.file, found.submitted_by)
            for found in connection.execute(text("SELECT * FROM kernel_definitions ORDER BY id"))
        ]


def claim(engine: Engine, device_id: int) -> batches.Lease:
    batch_id = form(engine, kind="nvidia-test")
    assert batch_id is not None
    with engine.begin() as connection:
        lease = batches.claim(connection, batch_id, device_id=device_id, lease_seconds=60)
    assert lease is not None
    return lease


@pytest.mark.usefixtures("gpu")
def test_a_campaign_file_with_an_own_kernel_is_submitted_with_its_source(
    engine: Engine, file: Path, tmp_path: Path
) -> None:
    command = farm_here(tmp_path, engine.url.render_as_string(hide_password=False))
    answer = json.loads(command("submit", str(file), "--json").stdout)
    assert answer["new_jobs"] == 4
    (number,) = load(file, limit=100).definitions
    ((found, name, submitted_by),) = stored_definitions(engine)
    assert (found, name, submitted_by is not None) == (number, "my_gemm.cu", True)
    assert json.loads(command("submit", str(file), "--json").stdout)["new"] is False
    with engine.connect() as connection:
        listed = jobs.listed(connection, campaigns.find(connection, "own")["id"], kinds=[FailureKind.INVALID])
    assert [job["error"] for job in listed] == ["source my_gemm.cu requires m % BM == 0"] * 2


def test_a_submitter_may_not_bring_kernels_and_an_operator_may(
    engine: Engine, gpu: int, file: Path, tmp_path: Path
) -> None:
    texts = texts_named(file.read_text(), file)
    assert texts == {"my_gemm.cu": CODE}
    submission = {"text": file.read_text(), "name": "own.yaml", "files": texts}
    with served(engine, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", tokens=True) as url:
        with engine.begin() as connection:
            made = {
                role: tokens.create(connection, role.value, role, by="test") for role in (Role.SUBMIT, Role.OPERATE)
            }

        def post(role: Role, **changes: Any) -> httpx.Response:
            headers = {"Authorization": f"Bearer {made[role]}"}
            return httpx.post(f"{url}{PREFIX}/campaigns", json=submission | changes, headers=headers, timeout=60)

        refused = post(Role.SUBMIT)
        assert refused.status_code == 403
        assert "own kernels (my_gemm.cu) run on the farm's devices" in refused.json()["error"]["message"]
        assert stored_definitions(engine) == []
        assert "was not sent with the campaign" in post(Role.OPERATE, files={}).json()["error"]["message"]
        answer = post(Role.OPERATE)
        assert answer.status_code == 200, answer.text
        # The same kernel without its file, as one that the farm knows.
        ((number, _, by),) = stored_definitions(engine)
        assert by == "operate"
        listed = f"name: again\nconfigurations: ['source(BM=32,BN=16,definition={number}) 64x64x64 f32']\n"
        again = post(Role.SUBMIT, text=listed, files={})
        assert (again.status_code, again.json()["new_jobs"]) == (200, 1)
    assert answer.json()["digest"] == replace_owner(load(file, limit=100), "operate").digest


def replace_owner(campaign: Campaign, owner: str) -> Campaign:
    return campaign.changed(owner=owner)


def test_workers_get_the_definition_with_their_batch(
    engine: Engine, gpu: int, file: Path, submit: Callable[[Campaign], campaigns.Stored]
) -> None:
    campaign = load(file, limit=100)
    (number,) = campaign.definitions
    submit(campaign)
    del campaign
    assert known(number) is None
    lease = claim(engine, gpu)
    assert [definition.id for definition in lease.definitions] == [number]
    definition = known(number)
    assert definition is not None
    assert (definition.code, definition.file) == (CODE, "my_gemm.cu")


def test_a_builder_compiles_a_triton_file_from_its_stored_definition(
    engine: Engine, gpu: int, submit: Callable[[Campaign], campaigns.Stored], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # fmt: skip
    blocks = [block_of(definition := in_triton(), BM=32, BN=16)]
    number, document = definition.id, {"name": "own", "owner": "ann", "targets": "any", "kernels": blocks}
    submit(Campaign.from_document(document | {"problems": {"shapes": ["64x64x64", "64x64x31"], "types": "f16"}}))
    del definition
    assert known(number) is None
    first, _ = wanted(engine)
    assert form(engine, kind="nvidia-test") is None
    seen = list[int]()

    class Compiler:
        def compile(self, binary: Binary) -> Built:
            held = known(own_triton.definition_in(binary) or 0)
            assert held is not None
            seen.append(held.id)
            return built_of(binary)

    toolchain = TRITON.text(BUILT_WITH)
    for name, value in {"engine": engine, "compilers": {toolchain: Compiler()}, "_signer": SIGNER}.items():
        monkeypatch.setattr(building, name, lambda value=value: value)
    monkeypatch.setenv("FARM_KERNELS", str(tmp_path))
    settings.cache_clear()
    with engine.begin() as connection:
        started = kernels.start(connection, first, [toolchain], builder="here")
    assert started is not None
    assert building._built(started).record.hash == started.hash
    assert seen == [number]
    assert known(number) is None


def test_a_batch_of_other_kernels_reads_no_definitions(
    engine: Engine, gpu: int, submit: Callable[[Campaign], campaigns.Stored]
) -> None:
    document = {
        "name": "others",
        "targets": "any",
        "problems": {"shapes": "64x64x64", "types": "f32"},
        "kernels": {"family": "tiled"},
    }
    submit(Campaign.from_document({"owner": "ann", **document}))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE kernel_definitions RENAME TO elsewhere"))
    assert claim(engine, gpu).definitions == ()


def test_a_definition_never_changes_and_another_of_its_number_is_refused(engine: Engine) -> None:
    one = defined()
    with engine.begin() as connection:
        definitions.store(connection, {one.id: one}, submitted_by="ann")
        definitions.store(connection, {one.id: defined(file="copy.cu")}, submitted_by="bob")
        assert [found.file for found in definitions.read(connection, [one.id]).values()] == ["my_gemm.cu"]
        other = json.dumps(one.to_json() | {"code": CODE + "// another"})
        connection.execute(text("UPDATE kernel_definitions SET definition = CAST(:other AS jsonb)"), {"other": other})
        with pytest.raises(BadDefinition, match="its number is not that of its content"):
            definitions.store(connection, {one.id: one}, submitted_by="eve")


def test_a_configuration_with_an_unknown_definition_is_not_submitted(
    gpu: int, submit: Callable[[Campaign], campaigns.Stored]
) -> None:
    line = "source(BM=32,BN=16,definition=7) 64x64x64 f32"
    document = {"name": "unknown", "owner": "ann", "targets": "any", "configurations": [line]}
    with pytest.raises(UnknownDefinitions, match="does not know the definitions 7 of own kernels"):
        submit(Campaign.from_document(document))


def test_a_refused_kernel_is_a_failure_of_its_own_kind_and_harms_nothing(
    engine: Engine, gpu: int, file: Path, submit: Callable[[Campaign], campaigns.Stored]
) -> None:
    campaign = submit(load(file, limit=100))

    def script(n: int, _: Configuration) -> Measurement:
        if n == 0:
            raise KernelRefused(check="time", why="it keeps results")
        return row()

    batch_id = form(engine, kind="nvidia-test")
    assert batch_id is not None
    runner = Runner(engine, Scripted(script), gpu, lease_seconds=60, stopping=threading.Event())
    assert runner.run_batch(batch_id) == 1
    with engine.connect() as connection:
        (job,) = jobs.listed(connection, campaign.campaign_id, kinds=[FailureKind.REFUSED])
    assert (job["attempts"], job["error"]) == (1, "The referee refuses the kernel (time): it keeps results")


def test_an_honest_kernel_gets_its_row_next_to_one_that_cheats(
    engine: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], campaigns.Stored],
    device: CudaDevice, cupy: FakeCupy, virtual_time: VirtualTime,
) -> None:  # fmt: skip
    kernels = {"honest": plain, "cheat": caches_by_all_inputs}
    blocks = []
    for entry, run in kernels.items():
        cupy.own[entry] = OwnKernel(run, virtual_time)
        written = defined(entry=entry, code=CODE.replace(ENTRY, entry), file=f"{entry}.cu")
        blocks.append(block_of(written, BM=32, BN=16))
    problems, rules = {"shapes": ["64x64x64", "64x64x80"], "types": "f32"}, QUICK.model_dump(mode="json")
    device_id = announce(device.identity)
    stored = submit(
        Campaign.from_document(
            {"name": "both", "owner": "ann", "problems": problems, "kernels": blocks, "measure": rules}
        )
    )
    batch_id = form(engine, kind=device.identity.type)
    assert batch_id is not None
    assert Runner(engine, device, device_id, lease_seconds=60, stopping=threading.Event()).run_batch(batch_id) == 2
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT details, seed, result_digest FROM v_measurements")).all()
        failed = jobs.listed(connection, stored.campaign_id, kinds=[FailureKind.REFUSED])
    assert {row.details["source_file"] for row in rows} == {"honest.cu"}
    assert [row.result_digest for row in rows] == [None, None]
    assert len({row.seed for row in rows}) == 2
    assert [job["error"].partition(":")[0] for job in failed] == ["The referee refuses the kernel (time)"] * 2


def test_no_model_learns_from_own_kernels(engine: Engine, gpu: int) -> None:
    problem = "64x64x64 f32:f32:f32 nn alpha=1 beta=0"
    landed(engine, gpu, [(f"{kernel} {problem}", row()) for kernel in ("source(BM=32,definition=7)", "tiled(tile=16)")])
    table = read_training_table(engine, "nvidia-test")
    assert list(table["family"]) == ["tiled"]
    own = table.assign(family="source")
    assert list(configurations(pd.concat([table, own]))["family"]) == ["tiled"]
    assert "definition" not in configurations(table)
