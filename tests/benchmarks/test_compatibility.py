"""The oldest versions that the project says it works with are among those that `make compat` tries."""

import re
import tomllib
from pathlib import Path

import pytest
from compatibility import cells

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = ("torch", "lightning", "transformers", "importers", "adaptive", "ray", "ui")
STATED = {line for name in EXTRAS for line in PROJECT["optional-dependencies"][name]} | {*PROJECT["dependencies"]}
TRIED = ("torch", "lightning", "transformers", "optuna", "ray", "mlflow", "mlflow-skinny")


@pytest.mark.parametrize("requirement", sorted(line for line in STATED if re.split(r"[\[>]", line)[0] in TRIED))
def test_the_oldest_version_is_tried(requirement):
    name, oldest = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", requirement).groups()
    minor = ".".join([*oldest.split("."), "0"][:2])
    wanted = f"{name.removesuffix('-skinny')}-{minor}."
    assert any(cell.name.startswith(wanted) for cell in cells()), requirement
