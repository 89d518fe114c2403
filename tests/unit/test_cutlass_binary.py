"""What names a CUTLASS binary, and how it is compiled: with a compiler that is a script, and once with nvcc."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import (
    BadArchitecture,
    BadInput,
    BuildFailed,
    CompilerMissing,
    DoesNotCompile,
    InvalidOnDevice,
    MeasurementFailed,
)
from farm.gemm import ElementType, ElementTypes, Layout, Problem, Shape
from farm.kernels import Configuration, Kernel, cutlass3x
from farm.kernels.binary import Binary, architecture_of, ordered, text_of
from farm.kernels.cutlass.binaries import TEMPLATE, UNIVERSAL, binary_of
from farm.kernels.cutlass.point import widest_access
from farm.kernels.families import binary_from_json
from farm.kernels.toolchains import Versions
from farm.services.processes import is_alive
from support.fake_cuda import CUDARuntimeError, FakeCupy
from support.homes import eventually
from support.toolkit import PTXAS, cubin
from workers.kernels.base import Placement
from workers.kernels.binary_facts import read_facts
from workers.kernels.cutlass3x.library import ALIGNMENT, Library
from workers.kernels.toolchains.compilation import resources
from workers.kernels.toolchains.nvcc import Nvcc, error_line
from workers.measure.operands import SetLayout

PARAMETERS = {
    "tile_m": 64, "tile_n": 64, "tile_k": 32, "warp_m": 32, "warp_n": 32,
    "stages": 3, "swizzle": 1, "split_k": 1, "align": 0,
}  # fmt: skip
VERSIONS = {"cutlass": "4.2.0", "cuda": "13.0.88"}


def configuration(
    types: str = "f16", layout: str = "nn", shape: str = "1024", alpha: float = 1, beta: float = 0, **changed: int
) -> Configuration:
    problem = Problem(Shape.parse(shape), ElementTypes.parse(types), Layout(layout), alpha, beta)
    return Configuration(problem, Kernel("cutlass", tuple(sorted({**PARAMETERS, **changed}.items()))))


def binary(types: str = "f16", layout: str = "nn", shape: str = "1024", **changed: int) -> Binary:
    return of(configuration(types, layout, shape, **changed), "sm_90a")


def of(given: Configuration, arch: str) -> Binary:
    return binary_of(given.problem, dict(given.kernel.parameters), arch)


def hopper(text: str) -> Binary:
    asked = Configuration.parse(text)
    return cutlass3x.binary_of(asked.problem, dict(asked.kernel.parameters), "sm_90a")


HOPPER = hopper("cutlass3x(tile_n=16,tile_k=32,stream_k=1,epilogue=0) 1024 f16")


def aligned(made: Binary) -> tuple[int, ...]:
    return tuple(int(dict(made.definitions)[f"ALIGN_{operand}"]) for operand in "ABC")


class TestWhatNamesABinary:
    def test_shapes_scalars_and_slices_of_k_share_one(self) -> None:
        one = of(configuration(), "sm_90a")
        other = of(configuration(shape="512x2048x4096", alpha=0.5, beta=2, split_k=4), "sm_90a")
        assert one == other
        assert one.hash(VERSIONS) == other.hash(VERSIONS)

    @pytest.mark.parametrize("name", [name for name, _ in binary().definitions])
    def test_whatever_is_defined_makes_another(self, name: str) -> None:
        changed = ordered({**dict(binary().definitions), name: "7"})
        assert replace(binary(), definitions=changed).hash(VERSIONS) != binary().hash(VERSIONS)

    @pytest.mark.parametrize(
        "other",
        [
            configuration(**{name: 2 * PARAMETERS[name]}) for name in ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n")
        ] + [
            configuration(stages=4), configuration(swizzle=2), configuration(align=4), configuration(shape="1024x1020x1024"),
            configuration(layout="tn"), configuration(layout="nt"), configuration("bf16"), configuration("f16:f16:f16"),
            configuration("f16:f32:f32"),
        ],
        ids=str,
    )  # fmt: skip
    def test_whatever_is_compiled_in_makes_another(self, other: Configuration) -> None:
        assert of(other, "sm_90a").hash(VERSIONS) != binary().hash(VERSIONS)

    @pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
    def test_another_architecture_makes_another(self, arch: str) -> None:
        assert of(configuration(), arch).hash(VERSIONS) != binary().hash(VERSIONS)

    def test_its_label_names_nothing(self) -> None:
        assert replace(binary(), label="another").hash(VERSIONS) == binary().hash(VERSIONS)

    def test_what_is_stored_in_any_order_comes_back(self) -> None:
        stored = json.loads(json.dumps(binary().to_json()))
        stored["definitions"] = dict(reversed(stored["definitions"].items()))
        assert binary_from_json(stored) == binary()

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"template": "../../etc/passwd"}, "no template"),
            ({"definitions": {"AB": "float -fplugin=x"}}, "cannot be defined"),
            ({"definitions": {"AB;x": "float"}}, "cannot be defined"),
            ({"definitions": {"AB": '"x.h"'}}, "cannot be defined"),
            ({"arch": "sm_90a -x"}, "not an architecture"),
            ({"arch": None}, "not an architecture"),
        ],
        ids=str,
    )
    def test_nothing_else_reaches_a_compiler(self, change: dict[str, object], why: str) -> None:
        with pytest.raises(BadInput, match=why):
            binary_from_json({**binary().to_json(), **change})

    @pytest.mark.parametrize(
        "versions", [{"cutlass": "4.2.1", "cuda": "13.0.88"}, {"cutlass": "4.2.0", "cuda": "13.1.1"}]
    )
    def test_other_versions_make_another(self, versions: Versions) -> None:
        assert binary().hash(versions) != binary().hash(VERSIONS)

    def test_its_name_is_that_of_before_there_were_other_toolchains(self) -> None:
        parts = (text_of(TEMPLATE), "4.2.0", "13.0.88", *binary().options)
        every = {**VERSIONS, "triton": "3.9.0"}
        assert binary().hash(every) == hashlib.sha256("\0".join(parts).encode()).hexdigest()
        assert binary().toolchain(every) == "cutlass 4.2.0, cuda 13.0.88"

    def test_batches_and_fused_operations_have_a_template_of_their_own(self) -> None:
        texts = ("", "batch=2", "batch=64", "fused=bias", "fused=silu", "fused=bias+silu batch=3")
        made = [of(Configuration.parse(f"{configuration()} {text}"), "sm_90a") for text in texts]
        plain, *identity = made[:4]
        assert [one.template for one in made] == [TEMPLATE] + [UNIVERSAL] * 5
        assert identity[0] == identity[1] == identity[2]
        assert [dict(one.definitions).get("ACTIVATION") for one in made[3:]] == ["Identity", "SiLu", "SiLu"]
        assert made[4] == made[5]
        assert str(made[4]) == f"{plain} universal silu"
        assert [name for name, _ in made[4].definitions if name not in text_of(UNIVERSAL)] == []
        assert binary_from_json(made[4].to_json()) == made[4]

    def test_the_source_of_one_product_is_that_of_before_there_were_batches(self) -> None:
        """Kernels that farms have are named by it: with another source they would all be built again."""
        digest = hashlib.sha256(text_of(TEMPLATE).encode()).hexdigest()
        assert digest == "3f202318125da0214e797e2e14acbad2f9e9d6e711e01163b46bdb4335b80887"

    def test_another_template_makes_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before, changed = binary().hash(VERSIONS), text_of(TEMPLATE) + "\n// changed"
        monkeypatch.setattr("farm.kernels.binary.text_of", lambda _: changed)
        assert binary().hash(VERSIONS) != before

    def test_the_template_uses_every_definition(self) -> None:
        text = text_of(TEMPLATE)
        assert [name for name, _ in binary().definitions if name not in text] == []

    def test_people_can_tell_it_by_a_line(self) -> None:
        line = "f16:f16:f32 nt tile 64x64x32 warp 32x32 stages 3 swizzle 1 align 8,8,8 sm_90a"
        assert str(binary(layout="nt")) == line


class TestAccessWidths:
    def test_the_most_is_16_bytes(self) -> None:
        assert aligned(binary("f16")) == (8, 8, 8)
        assert aligned(binary("tf32")) == (4, 4, 4)
        assert aligned(binary("i8", "nt")) == (16, 16, 4)
        assert aligned(binary("f16:f32:f32")) == (8, 8, 4)

    def test_simt_and_doubles_copy_single_elements(self) -> None:
        assert aligned(binary("f32")) == (1, 1, 1)
        assert aligned(binary("f64")) == (1, 1, 2)

    @pytest.mark.parametrize(
        ("layout", "expected"), [("nn", (4, 2, 2)), ("nt", (4, 4, 2)), ("tn", (1, 2, 2)), ("tt", (1, 4, 2))]
    )
    def test_each_operand_goes_by_its_own_leading_dimension(self, layout: str, expected: tuple[int, ...]) -> None:
        assert aligned(binary("f16", layout, "1023x1022x1020")) == expected

    def test_a_width_that_is_asked_for_holds_for_a_and_b(self) -> None:
        assert aligned(binary(align=2)) == (2, 2, 8)

    @given(st.integers(1, 2**31 - 1), st.sampled_from([e for e in ElementType if e.bytes <= 8]))
    def test_it_divides_the_leading_dimension_and_no_wider_one_does(self, leading: int, element: ElementType) -> None:
        width = widest_access(leading, element)
        assert leading % width == 0
        assert width * element.bytes <= 16
        assert width * 2 * element.bytes > 16 or leading % (width * 2)


class TestArchitectures:
    @pytest.mark.parametrize(
        ("capability", "arch"), [((7, 5), "sm_75"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")]
    )
    def test_a_card_has_one(self, capability: tuple[int, int], arch: str) -> None:
        assert architecture_of(capability) == arch
        assert dict(of(configuration(), arch).definitions)["ARCH"] == f"{capability[0]}{capability[1]}"

    @pytest.mark.parametrize("arch", ["sm_70", "90", "sm_", "sm_90x", "compute_90", ""])
    def test_others_are_refused(self, arch: str) -> None:
        with pytest.raises(BadArchitecture, match="sm_90a"):
            of(configuration(), arch)


class TestLibraries:
    """What is compiled for the host, with the kernel in it."""

    def test_it_is_told_so_and_holds_one_architecture_only(self) -> None:
        options = HOPPER.options
        assert "-shared" in options
        assert "-cubin" not in options
        assert [o for o in options if "arch" in o] == ["-gencode=arch=compute_90a,code=sm_90a"]

    def test_the_libraries_of_the_wheels_are_linked(self, tmp_path: Path) -> None:
        nvcc = tmp_path / "cu13" / "bin"
        nvcc.mkdir(parents=True)
        (tmp_path / "cu13" / "lib").mkdir()
        fake(nvcc, writes(cubin())).compile(HOPPER)
        *_, include, libraries, out, name, source = (nvcc / "seen").read_text().split("\0")
        assert (include, libraries) == (f"-I{nvcc}/include", f"-L{tmp_path}/cu13/lib")
        assert (out, name, source) == ("-o", "gemm.so", "gemm.cu")

    def test_words_of_the_runtime_that_is_linked_are_no_trap(self, tmp_path: Path) -> None:
        fake(tmp_path, writes(cubin() + b"this call is not implemented\n")).compile(HOPPER)

    def test_the_template_uses_every_definition(self) -> None:
        text = text_of(HOPPER.template)
        assert [name for name, _ in HOPPER.definitions if name not in text] == []


class TestFacts:
    def test_they_are_read_without_a_card(self) -> None:
        assert read_facts(cubin(400, 65536, 256)) == (400, 65536, 256)

    @pytest.mark.parametrize(
        ("code", "why"),
        [
            (b"", "no binary"),
            (b"MZ" + bytes(100), "no binary"),
            (cubin()[:100], "cut short"),
            (cubin(name=b"other_facts"), "no gemm_facts"),
        ],
    )
    def test_anything_else_is_refused(self, code: bytes, why: str) -> None:
        with pytest.raises(ValueError, match=why):
            read_facts(code)


FAKE = """\
#!{python}
import os, pathlib, subprocess, sys, time
if "--version" in sys.argv:
    print("Cuda compilation tools, release 13.0, V13.0.88")
    sys.exit()
pathlib.Path({seen!r}).write_text("\\0".join([os.getcwd(), os.environ["TMPDIR"], *sys.argv[1:]]))
{body}
"""


def fake(folder: Path, body: str) -> Nvcc:
    """A compiler that does what the body of a Python script says."""
    nvcc = folder / "nvcc"
    nvcc.write_text(FAKE.format(python=sys.executable, body=body, seen=str(folder / "seen")))
    nvcc.chmod(0o755)
    return Nvcc(nvcc=nvcc, headers=folder / "include", versions=VERSIONS)


def writes(code: bytes) -> str:
    return f"pathlib.Path(sys.argv[sys.argv.index('-o') + 1]).write_bytes({code!r}); print({PTXAS!r}, file=sys.stderr)"


class TestCompiling:
    def test_it_keeps_what_the_compiler_says(self, tmp_path: Path) -> None:
        made = binary()
        built = fake(tmp_path, writes(cubin())).compile(made)
        record = built.record
        assert built.code == cubin()
        assert built.intact
        assert (record.hash, record.definitions) == (made.hash(VERSIONS), dict(made.definitions))
        assert (record.arch, record.versions) == ("sm_90a", VERSIONS)
        assert (record.params_bytes, record.shared_bytes, record.threads) == (368, 49152, 128)
        assert (record.registers, record.spill_bytes, record.stack_bytes, record.static_shared_bytes) == (
            255,
            88,
            96,
            1024,
        )

    def test_it_works_in_a_folder_of_its_own_and_leaves_nothing(self, tmp_path: Path) -> None:
        made = binary()
        fake(tmp_path, writes(cubin())).compile(made)
        cwd, temporary, *arguments = (tmp_path / "seen").read_text().split("\0")
        assert cwd == temporary
        assert not Path(cwd).exists()
        assert arguments == [*made.options, "-Xptxas=-v", f"-I{tmp_path}/include", "-o", "gemm.cubin", "gemm.cu"]

    def test_a_kernel_that_does_not_compile_says_the_first_error(self, tmp_path: Path) -> None:
        error = 'cutlass/a.h(7): error: static assertion failed with "no"'
        said = f"a.h(6): warning: x\n{tmp_path}/include/{error}\nb.h(8): error: more"
        compiler = fake(tmp_path, f"print({said!r}); sys.exit(1)")
        with pytest.raises(DoesNotCompile) as raised:
            compiler.compile(binary())
        assert raised.value.fields["why"] == error
        assert "stages 3" in str(raised.value)

    def test_what_cutlass_compiles_into_a_trap_does_not_count(self, tmp_path: Path) -> None:
        with pytest.raises(DoesNotCompile, match="no instruction for it on sm_90a"):
            fake(tmp_path, writes(cubin() + b"void mma() not implemented\n")).compile(binary())

    @pytest.mark.parametrize(
        ("body", "why"),
        [
            ("print(\"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\"); sys.exit(9)", "signal 9"),
            ("print('a.cu(1): error: x\\ncicc: No space left on device'); sys.exit(1)", "a.cu"),
            (
                "print('cutlass.h:41:35: fatal error: cuda/std/utility: No such file or directory'); sys.exit(1)",
                "utility",
            ),
            ("print(\"nvcc fatal   : Unsupported gpu architecture 'sm_999'\"); sys.exit(1)", "sm_999"),
            ("os.kill(os.getpid(), 9)", "ended with -9"),
            ("sys.exit(3)", "ended with 3"),
            ("pass", "ended with 0"),
            (writes(b"half"), "cannot be read"),
        ],
    )
    def test_what_may_go_better_next_time_is_no_fault_of_the_kernel(self, tmp_path: Path, body: str, why: str) -> None:
        with pytest.raises(BuildFailed, match=why) as raised:
            fake(tmp_path, body).compile(binary())
        assert not isinstance(raised.value, DoesNotCompile)

    def test_a_compiler_that_is_too_slow_ends_with_all_it_started(self, tmp_path: Path) -> None:
        compiler = fake(tmp_path, "")
        compiler.nvcc.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > '{tmp_path}/child'\nwait\n")  # starts at once
        with pytest.raises(BuildFailed, match=r"longer than 3 s"):
            compiler.compile(binary(), time_limit=3.0)
        child = int((tmp_path / "child").read_text())
        eventually(lambda: not is_alive(child))

    def test_a_compiler_that_cannot_be_started(self, tmp_path: Path) -> None:
        with pytest.raises(BuildFailed, match="cannot be started"):
            Nvcc(nvcc=tmp_path / "none", headers=tmp_path, versions=VERSIONS).compile(binary())


class TestReadingWhatItSays:
    def test_an_error_of_any_of_its_programs(self) -> None:
        for line in ("ptxas error   : too many resources", "nvcc fatal   : no arch", "a.cu(1): catastrophic error: x"):
            assert error_line(f"a.cu(1): warning #177-D: unused\n{line}\nmore", Path("/none")) == line

    def test_no_error_in_it(self) -> None:
        assert error_line("a.cu(1): warning #177-D: unused", Path("/none")) is None

    def test_a_long_one_is_cut(self) -> None:
        assert len(error_line("error: " + "x" * 5000, Path("/none")) or "") < 500

    def test_resources_are_those_of_the_kernel_that_is_asked_for(self) -> None:
        assert resources(PTXAS, "gemm_pack")["registers"] == 32
        assert resources(PTXAS, "gemm")["registers"] == 255
        assert resources("", "gemm") == {"registers": 0, "spill_bytes": 0, "stack_bytes": 0, "static_shared_bytes": 0}


class TestFindingACompiler:
    def test_without_headers_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("workers.kernels.toolchains.nvcc._cutlass_headers", lambda: None)
        with pytest.raises(CompilerMissing, match=r"nvidia-cutlass.*pip install .*\[build\]"):
            Nvcc.find()

    def test_one_on_the_path_is_used_where_no_wheel_brings_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        version = tmp_path / "cutlass" / "version.h"
        version.parent.mkdir()
        version.write_text("#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n")
        nvcc = fake(tmp_path, "pass").nvcc
        monkeypatch.setattr("workers.kernels.toolchains.nvcc._cutlass_headers", lambda: tmp_path)
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        assert Nvcc.find() == Nvcc(nvcc=nvcc, headers=tmp_path, versions=VERSIONS)


class TestWithNvcc:
    @pytest.mark.parametrize(
        "arch", [*(pytest.param(one, marks=pytest.mark.long) for one in ("sm_75", "sm_80")), "sm_90a"]
    )
    def test_a_small_kernel_compiles(self, arch: str) -> None:
        try:
            compiler = Nvcc.find()
        except CompilerMissing as missing:
            pytest.skip(str(missing))
        stages = 2 if arch == "sm_75" else 3
        built = compiler.compile(of(configuration(stages=stages), arch))
        assert built.record.shared_bytes == stages * (64 + 64) * 32 * 2
        assert built.record.threads == 4 * 32
        assert 64 <= built.record.registers <= 255
        assert built.record.spill_bytes == 0

    @pytest.mark.long
    def test_a_kernel_for_hopper_compiles_into_a_library_that_takes_what_python_gives(self) -> None:
        """Without a card it is loaded all the same, judges problems, and says that there is no card."""
        try:
            compiler = Nvcc.find()
        except CompilerMissing as missing:
            pytest.skip(str(missing))
        built = compiler.compile(HOPPER)
        record = built.record
        assert (record.shared_bytes, record.threads, record.spill_bytes) == (231_040, 384, 0)
        assert record.params_bytes % ALIGNMENT == 0
        library = Library(FakeCupy(), record.hash, built.code)
        library.multiprocessors = library.clusters = 132

        def problem(shape: Shape) -> Any:
            return library.problem(placed(Problem(shape, ElementTypes.parse("f16"))), 0, 0, swizzle=1, raster=0)

        small = problem(Shape(128, 128, 4096))
        assert library.workspace_bytes(small) > 8 * 128 * 16 * 4  # parts of 8 tiles, in f32
        for shape in (Shape(128, 128, 4100), Shape(128, 132, 4096)):
            with pytest.raises(InvalidOnDevice, match="CUTLASS refuses the problem: its extents"):
                library.workspace_bytes(problem(shape))
        if shutil.which("nvidia-smi") is None:
            with pytest.raises(CUDARuntimeError, match=r"InsufficientDriver|NoDevice"):
                library.open()
            assert_no_descriptors(library, record.params_bytes, small)

    @pytest.mark.long
    def test_a_kernel_for_groups_factors_and_fused_operations_compiles_too(self) -> None:
        try:
            compiler = Nvcc.find()
        except CompilerMissing as missing:
            pytest.skip(str(missing))
        text = "cutlass3x(tile_k=128,tile_m=32,swap=1) 300x256x512 f8e4m3 nt scale=1x128:128x128 fused=bias+gelu groups=0,300"
        problem = Configuration.parse(text).problem
        built = compiler.compile(hopper(text))
        record = built.record
        assert (record.shared_bytes, record.threads, record.spill_bytes) == (226_304, 384, 0)
        library = Library(FakeCupy(), record.hash, built.code)
        library.multiprocessors = library.clusters = 132
        operands = library.problem(placed(problem), 0, 2**33, swizzle=1, raster=0)
        assert (
            library.workspace_bytes(operands) == 132 * 5 * 128
        )  # descriptors of A, B, C, and D for two groups of warps
        if shutil.which("nvidia-smi") is None:
            assert_no_descriptors(library, record.params_bytes, operands)


def placed(problem: Problem) -> Placement:
    """An operand set at addresses that nothing reads."""
    return Placement(
        layout=SetLayout.of(problem, 256), sets=1, inputs=2**30, inputs_of_b=2**30, addends=0, outputs=2**32,
        a_factors=2**34, b_factors=2**35, bias=2**36,
    )  # fmt: skip


def assert_no_descriptors(library: Library, params_bytes: int, operands: Any) -> None:
    packed = np.empty(params_bytes + ALIGNMENT, np.uint8)
    place = -(-packed.ctypes.data // ALIGNMENT) * ALIGNMENT
    with pytest.raises(MeasurementFailed, match="the driver made no TMA descriptor"):
        library.pack(place, operands, 2**33)
