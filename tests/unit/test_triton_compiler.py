"""How Triton kernels are compiled: with a Triton that is a script, and with the real one where it is installed."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks.referee import TritonPair, triton_example
from farm.builds import installed_toolchains, versions_of
from farm.campaign import Campaign
from farm.cli.kernels import _described, needed
from farm.devices import traits_of_capability
from farm.errors import BadBinary, BuildFailed, CompilerMissing, DoesNotCompile, WrongCompiler
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from farm.kernels.definition import Definition, known
from farm.kernels.toolchains import BUILT_WITH, TRITON
from farm.services.doctor import machine
from farm.settings import Settings
from support.own_kernels import TRITON_CODE, block_of, in_triton
from support.triton_toolkit import TritonToolkit
from workers import compiling
from workers.kernels.toolchains import compilation, compiler_of
from workers.kernels.toolchains.triton import Triton
from workers.kernels.toolchains.triton_program import check_read, params_bytes

ROOT = Path(__file__).parents[2]


def binary(text: str = "triton() 512 f16 nt", capability: tuple[int, int] = (9, 0)) -> Binary:
    found = Configuration.parse(text).binary(traits_of_capability(capability))
    assert found is not None
    return found


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TritonToolkit:
    made = TritonToolkit(tmp_path / "toolkit")
    monkeypatch.setenv("PYTHONPATH", made.variables["PYTHONPATH"])
    monkeypatch.syspath_prepend(tmp_path / "toolkit")
    return made


def test_it_keeps_what_triton_says(toolkit: TritonToolkit) -> None:
    made = binary()
    built = Triton.find().compile(made)
    record = built.record
    assert built.intact
    assert (record.hash, record.definitions) == (made.hash(BUILT_WITH), dict(made.definitions))
    assert record.versions == {"triton": "3.9.0"}
    assert record.details["triton"] == "3.9.0"
    assert (record.params_bytes, record.shared_bytes, record.threads) == (96, 98304, 256)
    assert (record.registers, record.spill_bytes, record.stack_bytes) == (168, 88, 96)
    (compiled,) = toolkit.compiled()
    assert compiled.startswith("90 ")
    assert "-DTILE_M=128" in compiled


def test_it_works_in_a_folder_of_its_own_and_leaves_nothing(
    toolkit: TritonToolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_OVERRIDE_ARCH", "sm80")
    Triton.find().compile(binary())
    found = toolkit.environment()
    assert "TRITON_OVERRIDE_ARCH" not in found
    assert found["TRITON_CACHE_DIR"].startswith(found["TMPDIR"])
    assert not Path(found["TMPDIR"]).exists()


def test_a_kernel_that_does_not_compile_says_why(toolkit: TritonToolkit) -> None:
    toolkit.says("raise ValueError('at 7:4:\\n    total = tl.dot(x, y)\\nInput shapes should have K >= 32')")
    with pytest.raises(DoesNotCompile, match="ValueError: Input shapes should have K >= 32"):
        Triton.find().compile(binary())


def test_a_kernel_that_needs_scratch_memory_does_not_count(toolkit: TritonToolkit) -> None:
    toolkit.needs_scratch()
    with pytest.raises(DoesNotCompile, match="it needs 1 bytes of scratch memory for a block, and a launch has 0"):
        Triton.find().compile(binary())
    assert Triton.find().compile(binary("triton(tma=1) 512 f16 nt")).intact  # for descriptors


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise OSError(28, 'No space left on device')", "No space left"),
        ("raise RuntimeError('`ptxas` failed with error code -9')", "error code -9"),
        ("os.kill(os.getpid(), 9)", "ended with -9"),
        ("sys.exit(3)", "ended with 3: it printed nothing"),
        ("os._exit(0)", "cannot be read"),
    ],
)
def test_what_may_go_better_next_time_is_no_fault_of_the_kernel(toolkit: TritonToolkit, code: str, why: str) -> None:
    toolkit.says(code)
    with pytest.raises(BuildFailed, match=why) as raised:
        Triton.find().compile(binary())
    assert not isinstance(raised.value, DoesNotCompile)


def test_one_that_is_too_slow_ends(toolkit: TritonToolkit) -> None:
    toolkit.says("import time; time.sleep(600)")
    with pytest.raises(BuildFailed, match=r"longer than 3 s"):
        Triton.find().compile(binary(), time_limit=3.0)


def test_a_host_on_which_it_does_not_work_blames_no_kernel(toolkit: TritonToolkit) -> None:
    toolkit.says("raise OSError(28, 'No space left on device')")
    with pytest.raises(CompilerMissing, match=r"Triton cannot compile here: .*No space left"):
        Triton.find().prove()
    toolkit.says("")
    Triton.find().prove()


def test_another_version_does_not_count_as_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TritonToolkit(tmp_path, version="3.5.1+cpu")
    monkeypatch.syspath_prepend(tmp_path)
    here = Settings(home=tmp_path)
    assert TRITON not in installed_toolchains(here)
    with pytest.raises(WrongCompiler, match=r"has triton 3\.5\.1\+cpu, .* with triton 3\.9\.0.*FARM_TRITON_VERSION"):
        compiler_of(TRITON, versions_of(here))
    chosen = Settings(home=tmp_path, triton_version="3.5.1+cpu")
    assert TRITON in installed_toolchains(chosen)
    assert compiler_of(TRITON, versions_of(chosen)).versions == {"triton": "3.5.1+cpu"}


def test_a_folder_of_its_name_is_not_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "triton").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert TRITON not in installed_toolchains(Settings(home=tmp_path))


def test_without_it_a_host_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(CompilerMissing, match=r"there is no Triton.*\[triton\]"):
        Triton.find()


def test_farm_doctor_names_the_toolchains_and_what_installs_them(
    toolkit: TritonToolkit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = Settings(home=tmp_path)
    monkeypatch.setattr(machine, "installed_toolchains", lambda _: (TRITON,))
    assert machine.check_builder(here).what == "triton 3.9.0: farm-worker --build builds kernels"
    monkeypatch.setattr(machine, "installed_toolchains", lambda _: ())
    what = machine.check_builder(here).what
    assert "[build]" in what
    assert "[triton]" in what


def test_parameters_lie_at_multiples_of_their_size() -> None:
    pointer, number = ".param .u64 .ptr .global .align 1 gemm_param_0", ".param .f32 gemm_param_1"
    assert params_bytes(f".visible .entry gemm(\n{pointer},\n{number}\n)\n.reqntid 128") == 12
    assert params_bytes(f".visible .entry gemm(\n{pointer},\n{number},\n{pointer}\n)\n{{ .param .u64 x; }}") == 24


# --- own kernels -------------------------------------------------------------------------------------


def own(definition: Definition, problem: str = "64x48x32 f16", parameters: str = "BM=32,BN=16") -> Binary:
    return binary(f"source(definition={definition.id},{parameters}) {problem}")


def test_an_own_kernel_is_compiled_from_what_its_file_is_cut_down_to(
    toolkit: TritonToolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_DATABASE_URL", "postgresql://farm:secret@here/farm")
    definition = in_triton(code=f"import os\n{TRITON_CODE}\nraise RuntimeError('this ran')\n")
    record = Triton.find().compile(made := own(definition)).record
    assert (record.hash, record.template) == (made.hash(BUILT_WITH), "source/triton")
    (compiled,) = toolkit.compiled()
    assert compiled == "90 -DBM=32 -DBN=16 -DEVEN=1 -Dstride_ak=1"
    assert "FARM_DATABASE_URL" not in toolkit.environment()
    assert record.binary == made


def test_the_binary_of_a_definition_that_nobody_holds_is_not_compiled(toolkit: TritonToolkit) -> None:
    definition = in_triton()
    made = own(definition)
    del definition
    with pytest.raises(BadBinary, match="the farm has no definition"):
        Triton.find().compile(made)
    assert toolkit.compiled() == []


def test_farm_kernels_build_sends_the_definition_with_each_kernel(
    toolkit: TritonToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {
        "name": "own",
        "owner": "ann",
        "targets": "any",
        "problems": {"shapes": ["64x48x32", "64x48x31"], "types": "f16"},
    }
    campaign = Campaign.from_document(document | {"kernels": [block_of(definition := in_triton(), BM=32, BN=16)]})
    wanted, _ = needed(campaign, [(9, 0)])
    file, number = tmp_path / "kernels.jsonl", definition.id
    file.write_text("".join(json.dumps(_described(one)) + "\n" for one in wanted))
    del campaign, definition
    assert known(number) is None
    monkeypatch.setattr(sys, "argv", ["compiling", str(file), str(tmp_path / "built"), "1"])
    compiling.main()
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {answer["hash"] for answer in answers if answer["new"]} == {one.hash(BUILT_WITH) for one in wanted}
    assert len(toolkit.compiled()) == 3  # one of them shows that Triton works


def test_what_triton_does_not_list_as_public_is_not_called(toolkit: TritonToolkit) -> None:
    definition = in_triton(code=TRITON_CODE.replace("tl.arange(0, BM)", "tl.secret(0, BM)"))
    with pytest.raises(DoesNotCompile, match=r"triton.language has no public secret"):
        Triton.find().compile(own(definition))
    assert toolkit.compiled() == []


def test_code_that_triton_reads_and_nobody_checked_is_not_compiled() -> None:
    module, text = ModuleType("made"), "@jit\ndef f(a):\n    '''\n  \n    '''\n\n\n@jit\ndef g(a): pass\n"
    for name, code in zip("fg", text.split("@jit\n")[1:], strict=True):
        setattr(module, name, SimpleNamespace(parse=partial(ast.parse, textwrap.dedent(code))))
    check_read(module, text)
    with pytest.raises(ValueError, match="Triton reads g as other code"):
        check_read(module, text.replace("pass", "a"))


def test_a_default_of_an_argument_that_is_given_is_not_compiled_in(toolkit: TritonToolkit) -> None:
    code = TRITON_CODE.replace("k, stride_ak, alpha", "k, stride_ak=5, alpha=7").replace("constexpr)", "constexpr = 3)")
    code = code.replace("constexpr,", "constexpr = 3,")
    definition = in_triton(code=code)
    Triton.find().compile(own(definition))
    assert toolkit.compiled() == ["90 -DBM=32 -DBN=16 -DEVEN=1 -Dstride_ak=1"]


def test_of_a_compiler_that_prints_much_the_end_is_read(
    toolkit: TritonToolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "MAX_OUTPUT", 30)
    toolkit.says("print('x' * 10_000)\nraise ValueError('too much')")
    with pytest.raises(DoesNotCompile, match="ValueError: too much"):
        Triton.find().compile(binary())


def test_the_process_that_reads_an_own_kernel_is_confined() -> None:
    code = (
        "import json, resource, pathlib; from workers.kernels.toolchains.triton_program import confine; confine();"
        "lines = pathlib.Path('/proc/net/dev').read_text().splitlines()[2:]; pathlib.Path('made').touch();"
        "print(json.dumps([resource.getrlimit(resource.RLIMIT_FSIZE)[0], [line.split(':')[0].strip() for line in lines]]))"
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    size, interfaces = json.loads(done.stdout)
    assert size == 2**28
    if subprocess.run(["unshare", "-Un", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets no process give up the network")
    assert interfaces == ["lo"]


# --- with Triton itself ------------------------------------------------------------------------------


@pytest.fixture
def real() -> Triton:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: make setup EXTRA=triton installs it")
    return Triton.find()


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_a_small_kernel_compiles(real: Triton, capability: tuple[int, int]) -> None:
    text = "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=3) 512 f16 nt"
    record = real.compile(binary(text, capability)).record
    # Tensor cores of Hopper read tiles while the next ones arrive.
    assert record.shared_bytes == (3 if capability == (9, 0) else 2) * (64 + 64) * 32 * 2
    assert record.threads == 4 * 32
    assert record.params_bytes in (80, 88, 96)
    assert 32 <= record.registers <= 255
    assert record.spill_bytes == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        "triton(tma=1) 512 f16 tn",
        "triton(tma=1,tile_k=128) 512 f8e4m3 nt scale=1x128:128x128 groups=512",
        "triton(tile_m=64,tile_n=64,tile_k=32,warps=4) 300x200x100 bf16 tn beta=1",
        "triton(tile_m=32,tile_n=32,tile_k=16) 512 f32 nn",
        "triton(tile_m=64,tile_n=64) 513x511x509 i8 tt alpha=2 beta=1",
        "triton(tile_k=128) 512 f8e4m3 nt scale=1x128:128x128 fused=bias+gelu",
        "triton(tile_m=256,tile_k=32) 512 f8e5m2e4m3:f16:f32 tt scale=128x128:1x128 fused=silu",
        "triton() 512 f16:f16:f16 nt scale=row fused=relu",
        "triton(tile_m=64,tile_n=64) 512 tf32 tt scale=tensor fused=bias batch=3",
        "triton(tile_k=128) 512 f8e4m3 nt scale=1x128:128x128 fused=bias+silu groups=300,0,212",
        "triton(tile_m=16,tile_n=16,tile_k=16,warps=1,stages=1,group_m=1) 65536x65536x64 f16 nn",
    ],
)
def test_every_part_of_the_template_compiles(real: Triton, text: str) -> None:
    assert Configuration.parse(text).why_invalid(replace(traits_of_capability((9, 0)), memory_bytes=10**11)) is None
    assert real.compile(binary(text)).record.registers > 0


def test_what_does_not_compile_is_the_kernels_fault(real: Triton) -> None:
    with pytest.raises(DoesNotCompile, match="fp8e4nv not supported"):
        real.compile(binary("triton() 512 f8e4m3 nt", (8, 0)))


def test_an_own_kernel_compiles(real: Triton) -> None:
    """The example, whose shared memory is three stages of two tiles on Hopper."""
    example, parameters = triton_example(), "BLOCK_M=64,BLOCK_N=128,BLOCK_K=32,GROUP_M=8,STAGES=3"
    record = real.compile(own(example, "1024 bf16 nt", parameters)).record
    assert record.shared_bytes == 3 * (64 + 128) * 32 * 2
    assert record.threads == 4 * 32
    assert record.spill_bytes == 0
    assert 32 <= record.registers <= 255


@pytest.mark.long
@pytest.mark.parametrize(("problem", "most"), [("1000x1500x700 f16 nn", 0), ("1000x1500x700 bf16 nt beta=1", 8)])
def test_the_family_and_the_example_hardly_spill(real: Triton, problem: str, most: int) -> None:
    """Where extents are no multiples of 16, each element has an address of its own, and these take all registers."""
    pair, example = TritonPair(problem), triton_example()
    built_in, record = (real.compile(binary(one.canonical)).record for one in (pair.built_in, pair.as_own(example)))
    assert (record.threads, record.shared_bytes) == (built_in.threads, built_in.shared_bytes)
    assert record.spill_bytes <= built_in.spill_bytes <= most


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("x = tl.load(a + nowhere)", "line 10: .*nowhere is not defined"),
        ("x = helper(rows)", "line 17: .*other is not defined"),
        ("x = tl.dot(a, b)", "line 10: input and other must have equal ranks"),
        ("x = tl.no_such(a)", "triton.language has no public no_such"),
        ("tl.static_assert(BM > 64)", "line 10: CompileTimeAssertionFailure"),
    ],
)
def test_an_own_kernel_that_does_not_compile_says_where(real: Triton, line: str, why: str) -> None:
    code = TRITON_CODE.replace("    x = tl.load(a + rows * k, mask=rows < m, other=0.0)\n", f"\n    {line}\n")
    definition = in_triton(code=f"# A comment.\n{code}\n\n@triton.jit\ndef helper(x):\n\n    return x + other\n")
    with pytest.raises(DoesNotCompile, match=why):
        real.compile(own(definition))
