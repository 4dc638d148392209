"""`make compat` tests the oldest supported versions of dependencies."""

import re
import sys
import tomllib
from pathlib import Path

import compatibility
import pytest
from compatibility import Cell, Result, cells, table
from versions.checks import run_tests
from versions.places import CheckFailed, Place

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = ("torch", "lightning", "transformers", "importers", "ray", "ui")
STATED = {line for name in EXTRAS for line in PROJECT["optional-dependencies"][name]} | {*PROJECT["dependencies"]}
TRIED = ("torch", "lightning", "transformers", "optuna", "ray", "mlflow", "mlflow-skinny")


@pytest.mark.parametrize("requirement", sorted(line for line in STATED if re.split(r"[\[>]", line)[0] in TRIED))
def test_the_oldest_version_is_tried(requirement):
    name, oldest = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", requirement).groups()
    minor = ".".join([*oldest.split("."), "0"][:2])
    wanted = f"{name.removesuffix('-skinny')}-{minor}."
    assert any(cell.name.startswith(wanted) for cell in cells()), requirement


def test_a_cell_with_tests_says_how_many_ran(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '-q'\n")
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_skipped(): pytest.skip('not here')\n"
        "def test_bad(): assert 1 == 2, 'one is two'\n"
    )
    here = Place(Path(sys.executable).parent, tmp_path / "work")
    assert run_tests(here, tmp_path, ["test_some.py", "-k", "not bad"]) == "1 passed, 1 skipped, 1 deselected"
    with pytest.raises(CheckFailed, match=r"test_bad - .*one is two; 1 failed, 1 passed, 1 skipped"):
        run_tests(here, tmp_path, ["test_some.py"])
    with pytest.raises(CheckFailed, match="1 skipped, 2 deselected"):
        run_tests(here, tmp_path, ["test_some.py", "-k", "skipped"])


@pytest.mark.parametrize("name", ["store-2.16.2", "mlflow-2.16.2"])
def test_a_newest_release_that_cannot_be_installed_is_a_result(name, tmp_path, monkeypatch):
    def newest():
        raise CheckFailed("no version of mlflow-skinny")

    place = Place(tmp_path / "env/bin", tmp_path / "work")
    place.bin.mkdir(parents=True)
    monkeypatch.setattr(compatibility, "prepare", lambda *_: place)
    monkeypatch.setattr(compatibility, "versions", lambda *_: {"python": "3.11.7"})
    result = compatibility.run(Cell(name), tmp_path, tmp_path, newest)
    assert result.checks == {"the newest MLflow beside it installs": "no version of mlflow-skinny"}
    assert not place.bin.exists()


def test_the_table_says_a_version_once():
    versions = {"python": "3.11.7", "mlflow": "2.16.2", "mlflow-skinny": "2.16.2"}
    text = table([Result("store-2.16.2", {"mlflow-skinny": "2.16.2"}), Result("ray-2.30.0", versions)])
    assert [line.split(" | ")[1] for line in text.splitlines()[2:]] == ["", "python 3.11.7, mlflow 2.16.2"]
