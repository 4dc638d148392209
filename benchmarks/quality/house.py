"""Measures the code base: its size, its modules and how many other modules a rule depends on.

    python benchmarks/quality/house.py                 this checkout
    python benchmarks/quality/house.py FOLDER …        other checkouts beside it, oldest first

Only tracked source files are counted. The product consists of advisor, adapters, rules and templates. The lines of a rule are those
of its own file and its private helpers. A rule reaches a module of shared computations or statistics if it imports that module
directly or indirectly.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PRODUCT = ("advisor", "adapters", "rules", "templates")
SHARED = ("advisor.computed", "advisor.stats")
SOURCE = (".py", ".j2", ".js", ".css", ".md", ".csv", ".yaml")
MAX_FUNCTION = 40
"""Maximum number of lines with which a function fits on a screen."""


class CodeBase:
    def __init__(self, root: Path) -> None:
        self.root = root
        listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout
        self.files = [f for f in listed.splitlines() if (root / f).is_file()]

    def lines(self, *folders: str, ends: tuple[str, ...] = SOURCE) -> int:
        """Return the number of lines in the source files of the folders."""
        chosen = [f for f in self.files if f.startswith(tuple(f"{name}/" for name in folders)) and f.endswith(ends)]
        return sum(len((self.root / f).read_text("utf-8").splitlines()) for f in chosen)

    @cached_property
    def modules(self) -> dict[str, Path]:
        """The product's Python modules by import name."""
        paths = {}
        for file in self.files:
            path = Path(file)
            if path.suffix == ".py" and path.parts[0] in PRODUCT:
                parts = path.with_suffix("").parts[path.parts[0] in ("adapters", "rules") :]
                paths[".".join(parts).removesuffix(".__init__")] = self.root / path
        return paths

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """For each module, the product modules that it imports, including imports inside functions but not imports for type
        checkers."""
        return {name: self._imported_modules(name, path) for name, path in self.modules.items()}

    def _imported_modules(self, name: str, path: Path) -> set[str]:
        names = set()
        for node in _without_type_checking(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names |= {
                    full if (full := f"{node.module}.{alias.name}") in self.modules else node.module for alias in node.names
                }
        return (names & self.modules.keys()) - {name}

    @property
    def rules(self) -> dict[str, list[Path]]:
        """The files of each rule: its own file and the private helpers that no other rule imports."""
        own = {
            name: path
            for name, path in self.modules.items()
            if path.relative_to(self.root).parts[0] == "rules" and not path.name.startswith("_")
        }
        helpers = {
            name for name in self.modules if name.rpartition(".")[2].startswith("_") and name.startswith("advisor_rules")
        }
        users = {h: {r for r in own if h in self._reachable_modules(r, helpers)} for h in helpers}
        return {name: [path, *(self.modules[h] for h in helpers if users[h] == {name})] for name, path in own.items()}

    def _reachable_modules(self, start: str, allowed: set[str]) -> set[str]:
        """Return the modules in `allowed` that `start` imports, directly or via other modules in `allowed`."""
        reached: set[str] = set()
        new = self.imports[start] & allowed
        while new:
            reached |= new
            new = set().union(*(self.imports[m] for m in new)) & allowed - reached
        return reached

    def reach(self) -> tuple[float, float]:
        """Return medians over rules: of the number of shared modules that a rule reaches, and of the total lines of these
        modules."""
        shared = {m for m in self.modules if m.startswith(SHARED) and not self.modules[m].name.startswith("__")}
        helpers = {m for m in self.modules if m.startswith("advisor_rules") and m.rpartition(".")[2].startswith("_")}
        counts, lines = [], []
        for name in self.rules:
            reached = self._reachable_modules(name, shared | helpers) & shared
            counts.append(len(reached))
            lines.append(sum(len(self.modules[m].read_text("utf-8").splitlines()) for m in reached))
        return statistics.median(counts), statistics.median(lines)

    def rule_names(self) -> list[str]:
        """Return the built-in rules whose ids appear in modules of `advisor/`, as `module: rule`.

        Ids of a single word (seeds, tracking, adopt) are ignored, because they are also ordinary words.
        """
        ids = {files[0].stem.replace("_", "-") for files in self.rules.values()}
        patterns = {rule: re.compile(rf"(?<![\w-]){rule}(?![\w-])") for rule in sorted(ids) if "-" in rule}
        texts = {name: list(_string_constants(path)) for name, path in self.modules.items() if name.startswith("advisor.")}
        return [
            f"{name}: {rule}"
            for name, strings in texts.items()
            for rule, pattern in patterns.items()
            if any(rule in text and pattern.search(text) for text in strings)
        ]

    def circles(self) -> int:
        """Return the number of imports that must be removed until no import cycle is left; imports inside functions count too."""
        graph = {name: set(targets) for name, targets in self.imports.items()}
        removed = 0
        while True:
            try:
                TopologicalSorter(graph).prepare()
            except CycleError as error:
                first, second = error.args[1][:2]
                graph[second].discard(first)
                graph[first].discard(second)
                removed += 1
            else:
                return removed

    def long_functions(self) -> int:
        return sum(
            node.end_lineno - node.lineno + 1 > MAX_FUNCTION
            for path in self.modules.values()
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
        )


def _without_type_checking(tree: ast.Module) -> Iterator[ast.AST]:
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes += node.orelse
            continue
        yield node
        nodes += ast.iter_child_nodes(node)


def _string_constants(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


FIGURES: Mapping[str, Callable[[CodeBase], object]] = {
    "product lines": lambda h: f"{h.lines(*PRODUCT):,}",
    "test lines (Python)": lambda h: f"{h.lines('tests', ends=('.py',)):,}",
    "entries in advisor/": lambda h: len({Path(f).parts[1] for f in h.files if f.startswith("advisor/")}),
    "modules": lambda h: len(h.modules),
    f"functions over {MAX_FUNCTION} lines": lambda h: h.long_functions(),
    "lines of a rule, median": lambda h: statistics.median(
        sum(len(f.read_text("utf-8").splitlines()) for f in files) for files in h.rules.values()
    ),
    "lines of a rule's own file, median": lambda h: statistics.median(
        len(files[0].read_text("utf-8").splitlines()) for files in h.rules.values()
    ),
    "shared modules that a rule reaches, median": lambda h: h.reach()[0],
    "lines of them, median": lambda h: h.reach()[1],
    "modules of advisor/ that name a rule": lambda h: len({line.partition(":")[0] for line in h.rule_names()}),
    "circles of imports": lambda h: h.circles(),
}


def main() -> None:
    houses = [CodeBase(Path(folder)) for folder in sys.argv[1:]] + [CodeBase(Path(__file__).resolve().parents[2])]
    print("| figure |" + "".join(f" {house.root.name} |" for house in houses))
    print("|---|" + "---|" * len(houses))
    for name, figure in FIGURES.items():
        print(f"| {name} |" + "".join(f" {figure(house)} |" for house in houses))


if __name__ == "__main__":
    main()
