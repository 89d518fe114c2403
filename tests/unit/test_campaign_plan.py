"""Targets become pools, and configurations become jobs on the devices that there are."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from farm.campaign import Campaign, KnownDevice, PoolSpec, load, plan
from farm.devices import Backend, DeviceKind, DeviceTraits, traits_of_capability
from farm.errors import NoSuchTarget, NothingToMeasure, TargetNeedsDevices
from farm.kernels import FAMILIES

CPU = KnownDevice(
    "CPU-1", "cpu-amd-epyc", "box", DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**34, threads=2), Backend.CPU
)
GPU_TRAITS = DeviceTraits(
    kind=DeviceKind.CUDA, memory_bytes=2**34, max_threads_per_block=1024, shared_memory_per_block_bytes=100 * 1024
)
H200 = KnownDevice("GPU-1", "nvidia-h200", "gpu01", GPU_TRAITS, Backend.CUDA)
H200_TWIN = KnownDevice("GPU-2", "nvidia-h200", "gpu02", GPU_TRAITS, Backend.CUDA)
# A card on which a tile of 32 in f64 does not fit.
SMALL = KnownDevice(
    "GPU-3",
    "nvidia-small",
    "gpu02",
    dataclasses.replace(GPU_TRAITS, shared_memory_per_block_bytes=12 * 1024),
    Backend.CUDA,
)
RECORDED = KnownDevice("REC-1", "recorded-nvidia-h200", "box", GPU_TRAITS, Backend.RECORDED)


def campaign_of(**fields) -> Campaign:
    return Campaign.from_document(
        {
            "name": "sweep",
            "owner": "anna",
            "problems": {"shapes": ["512x512x512"], "types": "f64"},
            "kernels": {"family": "tiled", "tile": 16},
        }
        | fields
    )


def jobs_of(
    campaign: Campaign, *devices: KnownDevice, allow_missing: bool = False
) -> list[tuple[str, str, str | None]]:
    jobs = plan(campaign, devices, allow_missing=allow_missing).jobs()
    return [(str(j.configuration.kernel), j.pool.name, j.invalid_reason) for j in jobs]


BOTH_FAMILIES = [{"family": "blas", "threads": 1}, {"family": "tiled", "tile": 16}]


def test_any_is_once_on_any_type_that_can():
    assert jobs_of(campaign_of(), H200, SMALL, H200_TWIN, CPU) == [
        ("tiled(tile=16)", "any:nvidia-h200,nvidia-small", None)
    ]


def test_any_leaves_out_the_types_on_which_it_is_invalid():
    jobs = jobs_of(campaign_of(kernels={"family": "tiled", "tile": [16, 32]}), H200, SMALL)
    assert jobs == [
        ("tiled(tile=16)", "any:nvidia-h200,nvidia-small", None),
        ("tiled(tile=32)", "type:nvidia-h200", None),
    ]


def test_any_says_why_where_no_type_of_the_right_kind_can():
    assert jobs_of(campaign_of(kernels={"family": "tiled", "tile": 32}), SMALL, CPU) == [
        ("tiled(tile=32)", "type:nvidia-small", "tiled needs 16384 bytes of shared memory, the device has 12288")
    ]


def test_each_family_goes_to_its_kind_of_device():
    assert jobs_of(campaign_of(kernels=BOTH_FAMILIES), CPU, H200) == [
        ("blas(threads=1)", "type:cpu-amd-epyc", None),
        ("tiled(tile=16)", "type:nvidia-h200", None),
    ]


def test_a_gpu_type_and_a_cpu_type_may_be_targets_of_one_campaign():
    targets = [{"type": "nvidia-h200"}, {"type": "cpu-amd-epyc"}]
    assert jobs_of(campaign_of(kernels=BOTH_FAMILIES, targets=targets), CPU, H200) == [
        ("blas(threads=1)", "type:cpu-amd-epyc", None),
        ("tiled(tile=16)", "type:nvidia-h200", None),
    ]


@pytest.mark.parametrize(
    ("target", "pools"),
    [
        ({"type": "nvidia-h200"}, ["type:nvidia-h200"]),
        ({"each": "nvidia-h200"}, ["device:GPU-1", "device:GPU-2"]),
        ({"host": "gpu02"}, ["device:GPU-2", "device:GPU-3"]),
        ({"device": "GPU-3"}, ["device:GPU-3"]),
    ],
)
def test_what_a_target_means(target, pools):
    jobs = jobs_of(campaign_of(targets=[target]), SMALL, H200_TWIN, CPU, H200)
    assert [pool for _, pool, _ in jobs] == pools


def test_one_pool_reached_by_two_targets_has_its_job_once():
    targets = ["any", {"type": "nvidia-h200"}, {"host": "gpu01"}, {"device": "GPU-1"}]
    jobs = jobs_of(campaign_of(targets=targets), H200)
    assert sorted(pool for _, pool, _ in jobs) == ["device:GPU-1", "type:nvidia-h200"]


def test_a_type_whose_devices_differ_can_what_one_of_them_can():
    weak = dataclasses.replace(H200_TWIN, traits=SMALL.traits)
    campaign = campaign_of(kernels={"family": "tiled", "tile": 32}, targets=[{"type": "nvidia-h200"}])
    assert jobs_of(campaign, weak, H200) == [("tiled(tile=32)", "type:nvidia-h200", None)]
    on_each = campaign_of(kernels={"family": "tiled", "tile": 32}, targets=[{"each": "nvidia-h200"}])
    assert [reason is None for _, _, reason in jobs_of(on_each, weak, H200)] == [True, False]


def test_an_invalid_job_keeps_its_pool_and_says_why():
    assert jobs_of(campaign_of(kernels={"family": "blas", "threads": 8}), CPU) == [
        ("blas(threads=8)", "type:cpu-amd-epyc", "blas needs 8 threads, the device has 2")
    ]


def test_recordings_answer_any_only_where_nothing_measures():
    assert jobs_of(campaign_of(), RECORDED, H200)[0][1] == "type:nvidia-h200"
    assert jobs_of(campaign_of(), RECORDED)[0][1] == "type:recorded-nvidia-h200"


def test_pools_name_what_they_hold():
    assert PoolSpec.of_types(["b", "a", "b"]) == PoolSpec("any:a,b", ("a", "b"), None)
    assert PoolSpec.of_types(["a"]) == PoolSpec("type:a", ("a",), None)
    assert PoolSpec.of_device("GPU-1") == PoolSpec("device:GPU-1", None, "GPU-1")


def test_a_gpu_type_that_nobody_has_is_an_error_with_its_line(tmp_path: Path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "name: x\ntargets:\n  - any\n  - {type: nvidia-h100}\n"
        "problems: {shapes: 8x8x8, types: f32}\nkernels: {family: tiled}\n"
    )
    with pytest.raises(NoSuchTarget) as raised:
        plan(load(path, limit=10), [H200, CPU], allow_missing=False)
    assert str(raised.value).startswith(
        f"{path}:4: no device of the farm matches the target {{type: nvidia-h100}}. "
        "Known: types cpu-amd-epyc, nvidia-h200; hosts box, gpu01."
    )


@pytest.mark.parametrize("target", ["any", {"each": "nvidia-h100"}, {"host": "gpu09"}])
def test_a_target_that_means_devices_there_are_cannot_wait_for_one(target):
    with pytest.raises(TargetNeedsDevices, match=r"means devices that are there, and none is\. Known: none, no worker"):
        plan(campaign_of(targets=[target]), [], allow_missing=True)


@pytest.mark.parametrize(
    ("target", "pool"), [({"type": "nvidia-h100"}, "type:nvidia-h100"), ({"device": "GPU-9"}, "device:GPU-9")]
)
def test_a_missing_type_or_device_may_be_waited_for(target, pool):
    campaign = campaign_of(targets=[target], kernels=[*BOTH_FAMILIES, {"family": "tiled", "tile": 32}])
    with pytest.raises(NoSuchTarget, match="--allow-missing-targets"):
        plan(campaign, [CPU], allow_missing=False)
    # Of a GPU it is known that it does not run a CPU's BLAS, and nothing else.
    assert jobs_of(campaign, CPU, allow_missing=True) == [
        ("tiled(tile=16)", pool, None),
        ("tiled(tile=32)", pool, None),
    ]


def card(name: str, capability: tuple[int, int] = (9, 0)) -> KnownDevice:
    return KnownDevice(f"GPU-{name}", name, "gpu01", traits_of_capability(capability), Backend.CUDA)


F16 = {"shapes": ["512x512x512", "1024x512x512"], "types": ["f16"]}


def test_jobs_name_the_binaries_that_must_be_built_one_for_each_architecture():
    campaign = campaign_of(problems=F16, kernels={"family": "cutlass", "stages": [2, 3]}, targets="any")
    devices = [card("nvidia-h200"), card("nvidia-h100"), card("nvidia-a100", (8, 0))]
    planned = list(plan(campaign, devices, allow_missing=False).jobs())
    assert len(planned) == 4
    assert {tuple(binary.arch for binary in job.binaries) for job in planned} == {("sm_80", "sm_90a")}
    assert len({binary for job in planned for binary in job.binaries}) == 4  # not eight: shapes share them
    assert plan(campaign, devices, allow_missing=False).summary().binaries == 4


@pytest.mark.parametrize("targets", ["any", [{"type": "nvidia-x"}]])
def test_nothing_is_built_for_the_devices_of_a_type_that_cannot_run_it(targets: object):
    campaign = campaign_of(problems=F16, kernels={"family": "cutlass", "stages": 3}, targets=targets)
    old, new, other = (
        dataclasses.replace(card("nvidia-x", capability), uuid=f"GPU-{capability}")
        for capability in ((7, 5), (9, 0), (8, 0))
    )
    for devices, built in (
        ((old, new), {"sm_90a"}),
        ((new, old), {"sm_90a"}),
        ((new, old, other), {"sm_90a", "sm_80"}),
    ):
        for job in plan(campaign, devices, allow_missing=False).jobs():
            assert job.invalid_reason is None
            assert {binary.arch for binary in job.binaries} == built


def test_nothing_is_built_for_what_runs_nowhere_is_not_built_ahead_or_is_not_known_yet():
    assert all(job.binaries == () for job in plan(campaign_of(), [H200], allow_missing=False).jobs())
    wide = campaign_of(problems=F16, kernels={"family": "cutlass", "warp_m": 8}, targets=[{"type": "nvidia-h200"}])
    (first, *_) = plan(wide, [card("nvidia-h200")], allow_missing=False).jobs()
    assert first.invalid_reason is not None
    assert first.binaries == ()
    unseen = campaign_of(problems=F16, kernels={"family": "cutlass"}, targets=[{"type": "nvidia-h100"}])
    (first, *_) = plan(unseen, [], allow_missing=True).jobs()
    assert first.invalid_reason is None
    assert first.binaries == ()


def test_gpu_kernels_on_a_farm_of_cpus_are_nothing_to_measure():
    with pytest.raises(NothingToMeasure) as raised:
        plan(campaign_of(), [CPU], allow_missing=False)
    assert str(raised.value) == (
        "campaign sweep asks for nothing that can be measured: tiled runs on cuda devices, its targets are cpu devices. "
        "To use these devices, name a family that runs there, under kernels or with --family: blas."
    )
    in_bf16 = campaign_of(problems={"shapes": ["512x512x512"], "types": "bf16"})
    with pytest.raises(
        NothingToMeasure, match=r"Measure it on cuda devices: on its targets, .* \(blas computes only f32 and f64"
    ):
        plan(in_bf16, [CPU], allow_missing=False)


def test_a_refusal_names_the_recorded_devices_that_any_leaves_out_and_the_target_to_write():
    how = r"to use a recording, write targets: \{type: recorded-nvidia-h200\}"
    with pytest.raises(NothingToMeasure, match=how):
        plan(campaign_of(), [CPU, RECORDED], allow_missing=False)
    assert jobs_of(campaign_of(targets={"type": "recorded-nvidia-h200"}), CPU, RECORDED)
    with pytest.raises(NothingToMeasure) as raised:  # it was not left out: a CPU's type was asked for
        plan(campaign_of(targets={"type": "cpu-amd-epyc"}), [CPU, RECORDED], allow_missing=False)
    assert "recording" not in str(raised.value)


def test_constraints_that_leave_nothing_are_nothing_to_measure():
    nothing = plan(campaign_of(constraints=["m > 512"]), [H200], allow_missing=False)
    with pytest.raises(NothingToMeasure, match=r"its constraints \(m > 512\) leave none of 1 configurations"):
        list(nothing.jobs())
    only_other_kind = plan(
        campaign_of(kernels=BOTH_FAMILIES, constraints=["family == 'tiled'"]), [CPU], allow_missing=False
    )
    with pytest.raises(NothingToMeasure, match="runs on the devices of its targets"):
        list(only_other_kind.jobs())


def test_a_summary_agrees_with_the_jobs_it_counts():
    campaign = campaign_of(
        problems={"m": "64..1024 x2", "n": 512, "k": [64, 4096], "types": ["f32", "f64", "f16"], "beta": [0, 1]},
        kernels=[{"family": "tiled", "tile": "1..32"}, {"family": "blas", "threads": [1, 2, 4]}],
        constraints=["tile <= m / 4", "m < 1024"],
        targets=["any", {"host": "gpu02"}],
    )
    planned = plan(campaign, [CPU, H200, H200_TWIN, SMALL], allow_missing=False)
    summary, jobs = planned.summary(), list(planned.jobs())
    assert summary.jobs == len(jobs)
    assert {(c.family, c.pool): c.jobs for c in summary.counts} == Counter(
        (j.configuration.kernel.family, j.pool.name) for j in jobs
    )
    assert {(c.family, c.pool): c.invalid for c in summary.counts if c.invalid} == Counter(
        (j.configuration.kernel.family, j.pool.name) for j in jobs if j.invalid_reason
    )
    assert sum(g.count for g in summary.invalid) + summary.invalid_for_other_reasons == sum(
        1 for j in jobs if j.invalid_reason
    )
    kept = list(campaign.expand())
    assert summary.configurations == len(kept)
    assert summary.excluded_by_constraints == campaign.size - len(kept)
    blas = sum(1 for c in kept if c.kernel.family == "blas")
    assert [(n.family, n.target, n.configurations) for n in summary.not_applicable] == [
        ("blas", "device:GPU-2", blas), ("blas", "device:GPU-3", blas),
    ]  # fmt: skip


def test_reasons_that_differ_in_numbers_alone_are_one_with_an_example():
    campaign = campaign_of(
        kernels={"family": "tiled", "tile": "26..32"}, problems={"shapes": "8x8x8", "types": ["f64", "f16"]}
    )
    tile, types = sorted(plan(campaign, [SMALL], allow_missing=False).summary().invalid, key=lambda g: g.count)[::-1]
    if tile.reason.startswith("tiled computes"):
        tile, types = types, tile
    assert (tile.reason, tile.count) == ("tiled needs … bytes of shared memory, the device has …", 5)
    assert tile.example == "tiled(tile=28) 8x8x8 f64:f64:f64 nn alpha=1 beta=0"
    assert tile.example_reason == "tiled needs 12544 bytes of shared memory, the device has 12288"
    assert types.count == 7
    assert types.reason.endswith("the same for inputs, output and accumulator, not f16:f16:f32")


def test_the_estimate_is_the_time_budget_and_grows_with_the_work():
    def seconds(shape: str, **fields) -> float:
        campaign = campaign_of(problems={"shapes": shape, "types": "f32"}, **fields)
        return plan(campaign, [H200], allow_missing=False).summary().estimated_seconds["type:nvidia-h200"]

    rules = {"timing": {"max_seconds": 0.2, "warmup_seconds": 0.1}}
    small = seconds("64x64x64", measure=rules)
    assert 0.4 < small < 0.45  # with a rest of 0.1 s before the burst
    assert seconds("64x64x64", measure=rules | {"power": "all", "power_seconds": 2}) == pytest.approx(small + 2)
    assert seconds("8192x8192x8192", measure=rules) > 10
    assert seconds("32768x32768x32768", measure=rules | {"job_seconds": 60}) == 60


@pytest.mark.parametrize(
    ("protocol", "least_s"),
    [
        ("fixed-power", 3 + 1 + 1),  # warm-up, samples, cool-down
        ("do-bench", 0.025 + 0.1),
        ("nvbench", 15),  # at most, for samples of 0.5%
        ("aiconfigurator", 1),  # rest
        ("server", 53 * 0.005),  # a rest before each of 3 + 50 samples
    ],
)
def test_the_estimate_has_the_rests_and_warm_ups_of_a_protocol(protocol: str, least_s: float):
    campaign = campaign_of(
        problems={"shapes": "64x64x64", "types": "f32"},
        kernels={"family": "tiled", "tile": 16},
        measure={"protocol": protocol},
    )
    summary = plan(campaign, [H200], allow_missing=False).summary()
    (seconds,) = summary.estimated_seconds.values()
    assert least_s < seconds < least_s + 0.1
    assert summary.protocol_text is not None
    assert summary.protocol_text.startswith(f"{protocol}: ")


def test_a_slow_kernel_takes_a_protocol_no_longer_than_its_longest_time():
    campaign = campaign_of(
        problems={"shapes": "32768x32768x32768", "types": "f32"},
        kernels={"family": "tiled", "tile": 16},
        measure={"protocol": "fixed-power", "job_seconds": 3600},
    )
    (seconds,) = plan(campaign, [H200], allow_missing=False).summary().estimated_seconds.values()
    run_s = 2 * 32768**3 / FAMILIES["tiled"].estimated_flops({"tile": 16})
    longest_s = max(3, run_s) + max(10, run_s) + 1
    checking_s = 3 * 32768**2 * 4 / 0.5e9 + 2 * 32768**3 / 16 / 5e9
    assert seconds == pytest.approx(longest_s + checking_s, rel=0.02)


def test_invalid_jobs_take_no_time():
    campaign = campaign_of(kernels={"family": "blas", "threads": 8})
    assert plan(campaign, [CPU], allow_missing=False).summary().estimated_seconds == {"type:cpu-amd-epyc": 0.0}


def test_a_summary_becomes_json():
    summary = plan(campaign_of(), [H200], allow_missing=False).summary()
    assert asdict(summary)["counts"] == ({"family": "tiled", "pool": "type:nvidia-h200", "jobs": 1, "invalid": 0},)


AHEAD = {"family": "cutlass", "tile_m": 128, "tile_n": 128, "tile_k": 8, "warp_m": 32, "warp_n": 64, "stages": 2}
RECORDED_HOPPER = KnownDevice("REC-2", "recorded-nvidia-h200", "box", traits_of_capability((9, 0)), Backend.RECORDED)
HOPPER = KnownDevice("GPU-9", "nvidia-h200", "gpu01", traits_of_capability((9, 0)), Backend.CUDA)


@pytest.mark.parametrize(
    "targets",
    ["any", [{"type": "recorded-nvidia-h200"}], [{"each": "recorded-nvidia-h200"}], [{"device": "REC-2"}]],
)
@pytest.mark.parametrize("search", [None, {"strategy": "grid"}])
def test_a_recording_needs_no_kernels_built(targets: object, search: object):
    fields = {"targets": targets, "kernels": AHEAD, "problems": {"shapes": ["512x512x512"], "types": "f32"}}
    campaign = campaign_of(**fields, **({"search": search} if search else {}))
    jobs = list(plan(campaign, [RECORDED_HOPPER], allow_missing=False).jobs())
    assert next(j.configuration.kernel.family for j in jobs if j.invalid_reason is None) == "cutlass"
    assert [j.binaries for j in jobs] == [()] * len(jobs)
    (job, *_) = plan(campaign_of(**{**fields, "targets": "any"}), [HOPPER], allow_missing=False).jobs()
    assert job.binaries
