"""Reads thresholds that the user set in `advisor.toml` or in the table `[tool.advisor]` of `pyproject.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from advisor.engine.registry import ThresholdSettings
from advisor.model.errors import AdvisorError

_SETTINGS_KEYS = ("rules",)


def find_settings(folder: Path) -> ThresholdSettings:
    """Return {rule id: thresholds} from the nearest settings file in `folder` or its parents; empty without a settings file.
    Raises AdvisorError if the file is not valid TOML or contains any key other than `rules`."""
    for home in (folder, *folder.parents):
        settings_file = home / "advisor.toml"
        if settings_file.is_file():
            return _rule_settings(_read(settings_file), settings_file)
        project_file = home / "pyproject.toml"
        if project_file.is_file():
            tool_tables = _read(project_file).get("tool")
            if isinstance(tool_tables, dict) and "advisor" in tool_tables:
                return _rule_settings(tool_tables["advisor"], project_file)
    return {}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # Very long numbers and deep nesting also raise these errors.
        raise AdvisorError(f"{path}: not readable as TOML: {error}") from None
    except OSError as error:
        raise AdvisorError(f"cannot read the settings {str(path)!r}: {error.strerror or error}") from None


def _rule_settings(table: object, path: Path) -> ThresholdSettings:
    if not isinstance(table, dict):
        raise AdvisorError(f"{path}: `advisor` must be a table of settings")
    for key in table:
        if key not in _SETTINGS_KEYS:
            raise AdvisorError(f"{path}: advisor has no setting {key!r}; thresholds go under [rules.<rule id>]")
    thresholds_by_rule = table.get("rules", {})
    if not isinstance(thresholds_by_rule, dict) or not all(isinstance(v, dict) for v in thresholds_by_rule.values()):
        raise AdvisorError(f"{path}: thresholds go under [rules.<rule id>], one table for each rule")
    return thresholds_by_rule
