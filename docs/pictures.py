"""Makes the pictures of the documentation from shipped datasets: `.venv/bin/python docs/pictures.py`. Needs Chromium."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURES = Path(__file__).parent / "pictures"

FIGURES = {"roofline.png": ("hopper-f16", "Roofline of recorded-nvidia-h200, f16:f16:f32")}
"""The dataset to replay and the title of the figure in its report, for each picture."""


def report_of(dataset: str, folder: Path) -> Path:
    page = folder / f"{dataset}.html"
    command = [sys.executable, "-m", "farm", "replay", dataset, "--home", str(folder / "home"), "--output", str(page)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return page


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (dataset, title) in FIGURES.items():
            page = browser.new_page(viewport={"width": 900, "height": 900})
            page.goto(report_of(dataset, Path(folder)).as_uri())
            figure = page.locator("figure", has_text=title).first
            figure.scroll_into_view_if_needed()
            figure.locator(".main-svg").first.wait_for()
            page.wait_for_timeout(1000)  # Plotly draws the points of large figures after the axes
            figure.screenshot(path=str(PICTURES / name))


if __name__ == "__main__":
    main()
