"""The golden example of a rule: its first finding on one study. The rule's snapshot test and its documentation page use the
example.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import yaml

from advisor.engine.rule import Rule
from advisor.model.change import Advise, Change
from advisor.model.finding import Finding
from advisor.model.frozen import FrozenModel
from advisor.model.study import Study


class Example(FrozenModel):
    """Description of a study in one line, the rule's first finding on it, and the resulting changes to the next study."""

    study: str
    message: str
    action: str
    changes: tuple[str, ...] = ()


def example_path(rule: type[Rule]) -> Path:
    """Return the path of a rule's example file in the folder of the rule, such as `space_shrink.example.yaml`."""
    return Path(inspect.getfile(rule)).with_suffix(".example.yaml")


def load_example(rule: type[Rule]) -> Example | None:
    """Return the golden example of a rule; None if the rule has no example file."""
    path = example_path(rule)
    return Example.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))) if path.is_file() else None


def make_example(study: Study, finding: Finding) -> Example:
    """Create the golden example from a finding on a study."""
    return Example(
        study=_describe_study(study),
        message=str(finding.message),
        action=str(finding.action),
        changes=tuple(_describe_change(change) for change in finding.changes),
    )


def dump_example(example: Example) -> str:
    """Return the content of the example file."""
    text: str = yaml.safe_dump(example.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
    return text


def _describe_study(study: Study) -> str:
    ranges = ", ".join(f"{name} ({p.low:g} to {p.high:g})" if p.numeric else name for name, p in study.searched.items())
    failed_count = int((study.ended & ~study.feasible).sum())
    trials = f"{len(study.trials)} trial{'s' * (len(study.trials) != 1)}" + (
        f", {failed_count} of them failed" if failed_count else ""
    )
    return f"{trials}; searched: {ranges or 'nothing'}; objective: {study.spec.objective.metric}"


def _describe_change(change: Change) -> str:
    if isinstance(change, Advise):
        return f"advise: {change.text}"
    fields = change.model_dump(mode="json", exclude={"kind", "why"}, exclude_defaults=True)
    return f"{change.kind}: " + ", ".join(f"{name} {value}" for name, value in fields.items())
