"""Writes the table of rooms in docs/architecture.md from the folders' docstrings: python docs/generator/rooms.py"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
_TABLE = re.compile(r"(?<=<!-- rooms -->\n).*?(?=<!-- end of rooms -->)", re.DOTALL)
SOURCES = {"advisor": ROOT / "advisor", "adapters": ROOT / "adapters", "rules": ROOT / "rules"}


def with_rooms(page: str) -> str:
    """Return the page with its table of rooms as the code is now."""
    return _TABLE.sub(lambda _: table(), page)


def table() -> str:
    """Return a Markdown table of the packages: folder, what it is for, number of modules."""
    rows = [row for name, folder in SOURCES.items() for row in _rows(folder, name)]
    return "\n".join(["", "| folder | purpose | modules |", "|---|---|---|", *rows, "", ""])


def _rows(folder: Path, name: str, depth: int = 0) -> Iterator[str]:
    modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    if (folder / "__init__.py").is_file():
        yield f"| {'&emsp;' * depth}`{name}/` | {_purpose(folder / '__init__.py')} | {len(modules)} |"
    for below in sorted(path for path in folder.iterdir() if (path / "__init__.py").is_file()):
        yield from _rows(below, below.name, depth + (folder / "__init__.py").is_file())


def _purpose(init: Path) -> str:
    """The first sentence of the package's docstring."""
    text = " ".join((ast.get_docstring(ast.parse(init.read_text("utf-8"))) or "").split("\n\n")[0].split())
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(with_rooms(PAGE.read_text("utf-8")), encoding="utf-8")
