"""A CUDA toolkit whose compiler is a script, for tests of everything around it."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

PTXAS = """\
ptxas info    : 11 bytes gmem, 12 bytes cmem[3]
ptxas info    : Compiling entry function 'gemm_pack' for 'sm_80'
ptxas info    : Function properties for gemm_pack
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
ptxas info    : Compiling entry function 'gemm' for 'sm_80'
ptxas info    : Function properties for gemm
    96 bytes stack frame, 88 bytes spill stores, 120 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 96 bytes cumulative stack size, 1024 bytes smem, 720 bytes cmem[0]
"""

LIBRARY = """\
/* What gemm3x.cu and gemm3x_kinds.cu export, for a card that is not there: a launch calls the function that the stream points to, with what was
   packed. The problem says what goes wrong: swizzle 2 and 4 are refused, raster 1 has no descriptor. */
#include <stdint.h>
#include <string.h>
#define TEXT(...) #__VA_ARGS__
#define NAMED(x) TEXT(x)
typedef struct {
  int64_t m, n, k;
  void *a, *b, *c, *d;
  double alpha, beta;
  int64_t swizzle, raster, multiprocessors, clusters;
#ifdef SCALE
  int64_t batch;
  void *factors_a, *factors_b, *bias;
  int64_t groups;
  void *table;
#endif
} Problem;
typedef struct __attribute__((aligned(128))) {
  int64_t a_transposed, b_transposed, swap, scale;
  void *workspace;
  char activation[48];
  Problem problem;
} Packed;
const int gemm_facts[] = {sizeof(Packed), 200704, SCHEDULE ? 384 : 256};
int gemm_open(int64_t *multiprocessors, int64_t *clusters) {
  *multiprocessors = 132, *clusters = CLUSTER_M * CLUSTER_N > 1 ? 120 / (CLUSTER_M * CLUSTER_N) : 264;
  return TILE_M == 256 ? 35 : 0;
}
int gemm_workspace(const Problem *p, int64_t *bytes) { return *bytes = STREAM_K ? 4096 : 0, p->swizzle == 2 ? -4 : 0; }
int gemm_pack(Packed *to, const Problem *p, void *workspace) {
  if ((uintptr_t)to % 128 || !workspace == STREAM_K) return 1;
#ifdef SCALE
  Packed made = {A_TRANSPOSED, B_TRANSPOSED, SWAP, SCALE, workspace, NAMED(ACTIVATION), *p};
#else
  Packed made = {A_TRANSPOSED, B_TRANSPOSED, SWAP, -1, workspace, "", *p};
#endif
  memcpy(to, &made, sizeof made);
  return p->swizzle == 4 ? -5 : p->raster == 1 ? -7 : 0;
}
int gemm_launch(const Packed *packed, int (*stream)(const Packed *)) { return stream(packed); }
int gemm_resources(const Packed *packed, int64_t *found) {
  const Problem p = packed->problem;
  const int64_t tiles = (p.m + TILE_M - 1) / TILE_M * ((p.n + TILE_N - 1) / TILE_N);
  found[0] = 2, found[1] = SCHEDULE && tiles > p.multiprocessors ? p.multiprocessors : tiles, found[2] = tiles, found[3] = 5;
  return 0;
}
"""

_NVCC = """\
#!{python}
import os, pathlib, subprocess, sys, time
if "--version" in sys.argv:
    print("Cuda compilation tools, release 13.0, V{version}")
    sys.exit()
folder, options = pathlib.Path({folder!r}), " ".join(a for a in sys.argv[1:] if a.startswith("-D"))
if (folder / "broken").exists():
    print("nvcc fatal   : Could not open output file")
    sys.exit(1)
if not options:  # a host that proves itself
    sys.exit()
with (folder / "compiled").open("a") as log:
    log.write(options + "\\n")
while (folder / "hold").exists():
    time.sleep(0.02)
def told(name):
    return (folder / name).exists() and (folder / name).read_text() in options
if told("refused"):
    print("gemm.cu(31): error: static assertion failed with \\"it is refused\\"")
    sys.exit(2)
if told("spoilt"):
    print("nvcc fatal   : Could not open output file")
    sys.exit(1)
output = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
if "-shared" in sys.argv:
    numbers = [a for a in sys.argv[1:] if a.startswith("-D") and (a.partition("=")[2].isdigit() or "ACTIVATION" in a)]
    subprocess.run(["cc", "-shared", "-fPIC", "-s", "-w", *numbers, "-o", output, "-x", "c", "-"], input={library!r}, text=True, check=True)
else:
    output.write_bytes({code!r} + options.encode())
print({said!r}, file=sys.stderr)
"""


def cubin(params: int = 368, shared: int = 49152, threads: int = 128, name: bytes = b"gemm_facts") -> bytes:
    """The smallest ELF file for CUDA that holds the facts."""
    facts = struct.pack("<3i", params, shared, threads)
    names = b"\0" + name + b"\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 1, 0, 1, 0, len(facts))
    at = [64, 64 + len(facts), 64 + len(facts) + len(names)]
    table = at[2] + len(symbols)

    def section(kind: int, start: int, length: int, link: int = 0) -> bytes:
        return struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, start, length, link, 0, 0, 0)

    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, table, 0, 64, 0, 0, 64, 4, 0)
    )
    sections = (
        section(0, 0, 0) + section(1, at[0], len(facts)) + section(3, at[1], len(names)) + section(2, at[2], 48, 2)
    )
    return header + facts + names + symbols + sections


class Toolkit:
    """nvcc and CUTLASS in a folder, found before all others by a process with the variables. No Triton is found then."""

    def __init__(self, folder: Path, *, version: str = "13.0.88") -> None:
        self._folder = folder
        headers = folder / "cutlass_library" / "source" / "include" / "cutlass"
        headers.mkdir(parents=True)
        (folder / "cutlass_library" / "__init__.py").touch()
        (headers / "version.h").write_text(
            "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n"
        )
        (folder / "triton-0.dist-info").mkdir()
        (folder / "triton-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 0\n")
        nvcc = folder / "nvidia" / "cu13" / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True)
        nvcc.write_text(
            _NVCC.format(
                **{"python": sys.executable, "version": version, "folder": str(folder)},
                **{"code": cubin(), "said": PTXAS, "library": LIBRARY},
            )
        )
        nvcc.chmod(0o755)

    @property
    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(self._folder), os.environ.get("PYTHONPATH"))))}

    def compiled(self) -> list[str]:
        """The macros of each compilation that began."""
        log = self._folder / "compiled"
        return log.read_text().splitlines() if log.exists() else []

    def hold(self, held: bool) -> None:
        """Whether compilations wait."""
        self._switch("hold", held)

    def break_(self) -> None:
        """The host is not able to compile anything."""
        self._switch("broken", True)

    def spoil(self, macro: str) -> None:
        """What the host is not able to compile, for reasons of its own: kernels with that macro."""
        (self._folder / "spoilt").write_text(macro)

    def refuse(self, macro: str) -> None:
        """What does not compile: kernels with that macro."""
        (self._folder / "refused").write_text(macro)

    def _switch(self, name: str, on: bool) -> None:
        if on:
            (self._folder / name).touch()
        else:
            (self._folder / name).unlink(missing_ok=True)
