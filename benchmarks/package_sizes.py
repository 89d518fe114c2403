"""How large are the packages of a release, and installations with each extra?

Installs the wheel with each extra into an environment of its own, and adds up its files. The packages are those of `make dist`;
others come from the package index. Extras that are left out with `--without` keep no figure.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import markdown, write

EXTRAS = ("", "embedded", "trainer", "web", "embedded,trainer,web", "s3", "triton", "build", "cuda12", "cuda13")
MIB = 2**20


def installed(uv: str, wheel: Path, extra: str) -> dict[str, Any]:
    """Packages and MiB of an environment with that extra. Other programs' environments are no part of it."""
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    with tempfile.TemporaryDirectory(prefix="package-sizes-") as folder:
        environment = Path(folder) / "venv"
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
        before = size(environment)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", environment, wanted], check=True)
        packages = len(list(environment.glob("lib/python*/site-packages/*.dist-info")))
        return {"packages": packages, "mib": (size(environment) - before) / MIB}


def size(folder: Path) -> int:
    """Bytes of the files of a folder; each file once, links not followed."""
    found = {(one := path.lstat()).st_ino: one.st_size for path in folder.rglob("*") if not path.is_dir()}
    return sum(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=Path("dist"), help="folder that make dist wrote")
    parser.add_argument("--without", nargs="*", default=[], metavar="EXTRA", help="extras that are not installed")
    asked = parser.parse_args()
    (wheel,) = asked.dist.absolute().glob("*.whl")
    (sdist,) = asked.dist.absolute().glob("*.tar.gz")
    uv = str(Path(sys.executable).with_name("uv"))
    sizes = {extra: installed(uv, wheel, extra) for extra in EXTRAS if extra not in asked.without}
    files = {"wheel_mib": wheel.stat().st_size / MIB, "sdist_mib": sdist.stat().st_size / MIB}
    environments = [
        [f"environment with `{extra}`" if extra else "environment without extras", one["packages"], one["mib"]]
        for extra, one in sizes.items()
    ]
    table = markdown(
        ["what", "packages", "MiB"],
        [["wheel", 1, files["wheel_mib"]], ["sdist", 1, files["sdist_mib"]], *environments],
    )
    write(
        "package_sizes",
        {**files, "extras": {extra or "none": one for extra, one in sizes.items()}},
        table,
        repetitions=1,
    )


if __name__ == "__main__":
    main()
