"""Takes the screenshots of docs/images: `make demo && python docs/screenshots.py BENCHMARK demo-out`.

BENCHMARK is a folder with other people's studies, which are not part of the project: `formats/algoperf_baseline` as AlgoPerf
writes it, and `deepobs` as tidy tables (`advisor import tables --help`). It needs Chromium and takes about a minute. Check each
picture afterwards: `docs/reports.md` describes them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).resolve().parent / "images"
SWEEP = "fmnist_2c2d/MomentumOptimizer"
"""A study of DeepOBS with 36 learning rates, and ten seeds at the best one."""
WORKLOAD = "ogbg"
MAX_BYTES = 250_000


@dataclass(frozen=True)
class Shot:
    """Name, report, and width and height in CSS pixels of a picture."""

    name: str
    report: Path
    width: int
    height: int


def main(benchmark: Path, demo: Path) -> None:
    """Make the three reports in a temporary folder and take the pictures."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        imported = ("--tracking-uri", f"sqlite:///{work / 'mlflow.db'}")
        _advisor("import", "algoperf", str(benchmark / "formats/algoperf_baseline"), "--experiment", WORKLOAD, *imported)
        _advisor("import", "tables", *_sweep(benchmark / "deepobs", work), "--experiment", SWEEP, *imported)
        demo = demo.resolve()
        tuned = ("--tracking-uri", f"sqlite:///{demo / 'mlflow.db'}", "--study", str(demo / "round-1.yaml"))
        for experiment, where in (("digits", tuned), (WORKLOAD, imported), (SWEEP, imported)):
            _advisor("analyze", experiment, *where, "--out", experiment.partition("/")[0], folder=work)
        _take(
            [
                Shot("demo", work / "digits", 1200, 1400),
                Shot("algoperf", work / WORKLOAD, 1200, 1400),
                Shot("deepobs", work / SWEEP.partition("/")[0], 1200, 1400),
                Shot("demo-phone", work / "digits", 390, 1200),
            ]
        )


def _sweep(tables: Path, work: Path) -> list[str]:
    """Write the tables of one study and return their paths."""
    written = []
    for name in ("trials", "curves"):
        table = pq.read_table(tables / f"{name}.parquet")
        written.append(str(work / f"{name}.parquet"))
        pq.write_table(table.filter(pc.equal(table["study"], SWEEP)), written[-1])
    return written


def _advisor(*arguments: str, folder: Path | None = None) -> None:
    command = shutil.which("advisor", path=str(Path(sys.executable).parent))
    subprocess.run([command or "advisor", *arguments, "--quiet"], check=True, cwd=folder)


def _take(shots: list[Shot]) -> None:
    chromium = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for shot in shots:
            page = browser.new_page(viewport={"width": shot.width, "height": shot.height}, color_scheme="light")
            page.goto((shot.report / "report.html").as_uri())
            path = IMAGES / f"{shot.name}.png"
            page.screenshot(path=path, animations="disabled")
            summary = {"picture": path.name, "bytes": path.stat().st_size, "verdict": page.locator("h1").inner_text()}
            print(json.dumps(summary, ensure_ascii=False))
            if path.stat().st_size > MAX_BYTES:
                raise SystemExit(f"{path.name} is larger than {MAX_BYTES // 1000} kB: show less of the page")
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
