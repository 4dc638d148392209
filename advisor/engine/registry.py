"""Loads built-in rules, rules in users' folders, and rules of installed distributions."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from pydantic import ValidationError

from advisor.engine.explain import check_relations
from advisor.engine.rule import Rule
from advisor.model.errors import AdvisorError

BUILT_IN_RULES_PACKAGE = "advisor_rules"
ENTRY_POINT_GROUP = "advisor.rules"

ThresholdSettings: TypeAlias = Mapping[str, Mapping[str, Any]]
"""{rule id: {threshold: value}} for the thresholds that the user has set."""


def path_of_rule_table(file: str) -> Path:
    """Return the path of a CSV file in the folder of the built-in rules."""
    return Path(importlib.import_module(BUILT_IN_RULES_PACKAGE).__path__[0]) / file


def read_rule_table(file: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file in the folder of the built-in rules; empty if the file is missing."""
    path = path_of_rule_table(file)
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def load_rules(*, settings: ThresholdSettings | None = None, directories: Iterable[Path] = ()) -> tuple[Rule, ...]:
    """Return all rules with the user's thresholds applied; built-in rules first, in the declared order of their folders.

    Raises AdvisorError for a rule file that cannot be loaded, two rules with one id, unknown rules or thresholds in `settings`,
    an invalid threshold, a relation to an unknown rule, or relations that form a cycle.
    """
    settings = dict(settings or {})
    class_by_id: dict[str, type[Rule]] = {}
    for cls in _discover_rules(directories):
        if class_by_id.setdefault(cls.rule_id(), cls) is not cls:
            name = cls.rule_id()
            raise AdvisorError(f"two rules have the id {name!r}, which comes from the file name: rename one of the files")
    for rule_id in settings:
        if rule_id not in class_by_id:
            raise AdvisorError(f"settings name the rule {rule_id!r}, which does not exist; `advisor rules` lists all rules")
    rules = tuple(_configure_rule(cls, settings.get(rule_id, {})) for rule_id, cls in class_by_id.items())
    check_relations(rules)
    return rules


def rule_chapters() -> tuple[str, ...]:
    """Return the names of the folders of the built-in rules; folders with a declared order come first."""
    package = importlib.import_module(BUILT_IN_RULES_PACKAGE)
    folders = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.ispkg)
    order: tuple[str, ...] = package.CHAPTERS
    return tuple(sorted(folders, key=lambda name: order.index(name) if name in order else len(order)))


def _discover_rules(directories: Iterable[Path]) -> Iterator[type[Rule]]:
    for chapter in rule_chapters():
        package = importlib.import_module(f"{BUILT_IN_RULES_PACKAGE}.{chapter}")
        for name in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
            if not name.startswith("_"):
                yield from _rule_classes(importlib.import_module(f"{package.__name__}.{name}"))
    for directory in directories:
        if not directory.is_dir():
            raise AdvisorError(f"the rules folder {str(directory)!r} does not exist")
        for path in sorted(directory.rglob("[!_]*.py")):
            yield from _rule_classes(_load_file(path))
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            rules = entry.load()
        except Exception as error:
            raise AdvisorError(f"the rules of {entry.value!r} cannot be loaded: {type(error).__name__}: {error}") from error
        yield from _rule_classes(rules) if isinstance(rules, ModuleType) else [rules]


def _load_file(path: Path) -> ModuleType:
    # Add the module to sys.modules, where `inspect` finds the source of a rule, which contains the docstrings of thresholds.
    module_name = f"advisor_user_rules.{path.parent.name}.{path.stem}"
    loaded_module = sys.modules.get(module_name)
    if loaded_module is not None and loaded_module.__file__ == str(path):
        return loaded_module
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise AdvisorError(f"the rule file {str(path)!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _rule_classes(module: ModuleType) -> list[type[Rule]]:
    rules_in_module = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Rule)]
    return [cls for cls in rules_in_module if cls.__module__ == module.__name__ and not cls.__name__.startswith("_")]


def _configure_rule(cls: type[Rule], settings: Mapping[str, Any]) -> Rule:
    try:
        return cls(**settings)
    except ValidationError as error:
        first_error = error.errors()[0]
        threshold_name = ".".join(str(part) for part in first_error["loc"])
        if first_error["type"] == "extra_forbidden":
            known_names = ", ".join(cls.model_fields)
            raise AdvisorError(f"rule {cls.rule_id()!r} has no threshold {threshold_name!r}; it has: {known_names}") from None
        raise AdvisorError(f"rule {cls.rule_id()!r}, threshold {threshold_name!r}: {first_error['msg']}") from None
