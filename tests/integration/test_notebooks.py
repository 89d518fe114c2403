"""The notebooks of examples/ run from top to bottom on one farm."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from farm.db import devices
from farm.services import ServiceUrls
from farm.settings import settings
from support.batch_steps import claim, form, land
from support.samples import cpu
from support.two_transports import TwoTransports, two_transports

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.ipynb"))}

SHOWN = {
    "submit_and_wait": ["6 of 6 jobs, 100%", "complete", "tflops", "blas(threads="],
    "compare_two_gpus": ["imported 204 rows", "time 0.998", "over 80 configurations", "ratio"],
    "predict_and_recommend": ["runtime_ms", "energy [", "512x512' is not a configuration", "gate_up"],
}
"""What their cells print and return."""


@pytest.fixture(scope="module")
def clients(
    farm_services: ServiceUrls, tmp_path_factory: pytest.TempPathFactory, new_registry: Callable[[Path], str]
) -> Iterator[TwoTransports]:
    with two_transports(farm_services, new_registry(tmp_path_factory.mktemp("registry"))) as both:
        yield both


@contextmanager
def worker(clients: TwoTransports) -> Iterator[None]:
    """A worker that lands a row for each open job of the CPU."""
    with clients.engine.begin() as connection:
        device_id = devices.register(connection, host="here", host_facts={}, device=cpu())
    ended = threading.Event()

    def measure() -> None:
        while not ended.wait(0.1):
            batch = form(clients.engine)
            lease = None if batch is None else claim(clients.engine, batch, device_id)
            if lease is not None:
                land(clients.engine, lease)

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run(notebook: dict[str, Any]) -> str:
    """Runs the code cells in turn. Returns what they print, and the value of the last line of each."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        for number, cell in enumerate(notebook["cells"]):
            if cell["cell_type"] == "code":
                printed.write(f"{_run_cell(''.join(cell['source']), f'cell {number}', names)}\n")
    return printed.getvalue()


def _run_cell(source: str, name: str, names: dict[str, Any]) -> Any:
    """Runs a cell as Jupyter does. Returns the value of its last line, where that is an expression."""
    cell = ast.parse(source)
    last = cell.body.pop() if isinstance(cell.body[-1], ast.Expr) else None
    exec(compile(cell, name, "exec"), names)
    return eval(compile(ast.Expression(last.value), name, "eval"), names) if isinstance(last, ast.Expr) else ""


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_from_top_to_bottom(name: str, clients: TwoTransports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_API_URL", clients.url)
    monkeypatch.chdir(FOLDER)
    settings.cache_clear()
    try:
        with worker(clients):
            shown = run(NOTEBOOKS[name])
    finally:
        settings.cache_clear()
    for text in SHOWN[name]:
        assert text in shown, shown


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    notebook = NOTEBOOKS[name]
    assert notebook["nbformat"] == 4
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert cell["cell_type"] in ("markdown", "code")
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
