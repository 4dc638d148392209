"""The golden example of a rule: its first finding on one study, stored as a file. The rule's snapshot test and its
documentation page use the example.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import yaml

from advisor.engine.rule import Rule
from advisor.model.frozen import FrozenModel


class RuleExample(FrozenModel):
    """A one-line description of a study, the first finding of a rule on this study, and the changes that the finding makes to
    the next study."""

    study: str
    message: str
    action: str
    changes: tuple[str, ...] = ()


def example_path(rule: type[Rule]) -> Path:
    """Return the path of the example file next to the rule's file, such as `space_shrink.example.yaml`."""
    return Path(inspect.getfile(rule)).with_suffix(".example.yaml")


def load_example(rule: type[Rule]) -> RuleExample | None:
    """Return the golden example of a rule; None if the rule has no example file."""
    path = example_path(rule)
    return RuleExample.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))) if path.is_file() else None
