"""The house keeps its shape: tests mirror the tree, no rule is named outside its folder, no circle of imports, the map is fresh."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MIRRORED = ("advisor", "adapters", "rules")
ACROSS_MODULES = {
    "test_every_rule.py",
    "test_house.py",
    "test_invariance.py",
    "test_notebook.py",
    "test_promises.py",
    "test_readme.py",
}
"""Tests of the whole, at the top of `tests/`."""


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("needs a git checkout")
    return [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def mirrors(test: Path) -> bool:
    """Whether the test's path is that of a module, or of a package: test_NAME.py, or test_NAME_more.py for a large one."""
    folder, name = ROOT / Path(*test.parts[1:-1]), test.stem.removeprefix("test_")
    if not folder.is_dir():
        return False
    modules = {path.stem.lstrip("_") for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    return any(name == module or name.startswith(f"{module}_") for module in modules - {"init__", ""})


def test_tests_mirror_the_tree() -> None:
    tests = [path for path in tracked("tests/**/test_*.py") if path.parts[1] in MIRRORED]
    assert len(tests) > 100
    assert [str(path) for path in tests if not mirrors(path)] == []
    assert {path.name for path in tracked("tests/test_*.py") if len(path.parts) == 2} == ACROSS_MODULES


def test_the_engine_names_no_rule_and_no_import_goes_round() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks" / "quality"))
    from house import CodeBase

    house = CodeBase(ROOT)
    assert house.circles() == 0
    assert house.rule_names() == []
    assert len({Path(f).parts[1] for f in house.files if f.startswith("advisor/")}) <= 16


def test_the_map_of_the_house_is_fresh() -> None:
    sys.path.insert(0, str(ROOT / "docs" / "generator"))
    from rooms import PAGE, with_rooms

    text = PAGE.read_text("utf-8")
    assert with_rooms(text) == text, "run `make docs`"
