"""What a change does to a study, line by line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from advisor.model.change import AddParameter, Advise, Change, FixParameter, SetRange
from advisor.model.spec import Parameter, Region, StudySpec
from advisor.model.words import capital, clean, setting, trimmed


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One line of a study file, before and after; None where it is not there."""

    name: str
    before: str | None
    after: str | None
    why: str | None = None


_FIELDS = ("trials", "max_train_steps", "final_train_steps", "evaluate_every", "seeds")


def describe(parameter: Parameter) -> str:
    """A hyperparameter's domain in a few words: `1e-4 … 1, log`."""
    if parameter.role == "fixed":
        text = f"fixed at {setting(parameter.value)}"
    elif parameter.formula is not None:
        text = f"computed: {setting(parameter.formula)}"
    elif parameter.low is not None and parameter.high is not None:
        kind = "int, " if parameter.type == "int" else ""
        text = f"{trimmed(parameter.low)} … {trimmed(parameter.high)}, {kind}{parameter.scale}"
    else:
        text = "one of " + ", ".join(setting(v) for v in parameter.options)
    if parameter.when:
        text += ", when " + " and ".join(f"{clean(n)} is {setting(v)}" for n, v in parameter.when.items())
    return text


def diff_specs(old: StudySpec, new: StudySpec) -> tuple[DiffRow, ...]:
    """What differs between two studies in what they run: the space, the steps, the schedule; not names and reasons."""
    rows = []
    names = [*old.parameters, *(n for n in new.parameters if n not in old.parameters)]
    for name in names:
        before, after = old.parameters.get(name), new.parameters.get(name)
        texts = [None if p is None else describe(p) for p in (before, after)]
        if (
            before is not None
            and after is not None
            and before.role != after.role
            and "fixed" not in (before.role, after.role)
        ):
            texts = [f"{text}, {p.role}" for text, p in zip(texts, (before, after), strict=True)]
        if texts[0] != texts[1]:
            rows.append(DiffRow(name, texts[0], texts[1], None if after is None else after.why))
    for field in _FIELDS:
        was, now = getattr(old, field), getattr(new, field)
        if was != now:
            rows.append(DiffRow(field, None if was is None else f"{was:,}", None if now is None else f"{now:,}"))
    schedules = [
        None if s is None else ", ".join(f"{clean(k)}: {setting(v)}" for k, v in s.items())
        for s in (old.schedule, new.schedule)
    ]
    if schedules[0] != schedules[1]:
        rows.append(DiffRow("schedule", schedules[0], schedules[1]))
    rows += [DiffRow("forbidden", None, _region(r), r.why) for r in new.forbidden if r not in old.forbidden]
    rows += [DiffRow("forbidden", _region(r), None) for r in old.forbidden if r not in new.forbidden]
    return tuple(rows)


def _region(region: Region) -> str:
    """A forbidden region in a few words: `lr ≥ 0.1 and width ≥ 200`."""
    parts = []
    for name, bounds in region.where.items():
        ends = [f"≥ {trimmed(bounds.low)}"] if bounds.low is not None else []
        ends += [f"≤ {trimmed(bounds.high)}"] if bounds.high is not None else []
        ends += ["one of " + ", ".join(setting(v) for v in bounds.choices)] if bounds.choices else []
        parts.append(f"{clean(name)} {' and '.join(ends)}")
    return " and ".join(parts)


def diff_changes(spec: StudySpec, changes: Iterable[Change]) -> tuple[DiffRow, ...]:
    """What a finding's changes, made one after the other, do to a study; one that does not fit it is shown as it is asked for."""
    now, odd = spec, []
    for change in changes:
        try:
            now = StudySpec.model_validate(change.apply(now).model_dump())
        except ValidationError:
            odd.append(_asked(change))
    return (*diff_specs(spec, now), *(row for row in odd if row is not None))


def _asked(change: Change) -> DiffRow | None:
    if isinstance(change, SetRange):
        return DiffRow(
            change.parameter, None, f"{trimmed(change.low)} … {trimmed(change.high)}, {change.scale}", change.why
        )
    if isinstance(change, FixParameter):
        return DiffRow(change.parameter, None, f"fixed at {setting(change.value)}", change.why)
    if isinstance(change, AddParameter):
        return DiffRow(change.name, None, describe(change.parameter), change.parameter.why)
    return None


def reasons(changes: Iterable[Change]) -> tuple[str, ...]:
    """Why the changes are made, each reason once."""
    given = [c.parameter.why if isinstance(c, AddParameter) else getattr(c, "why", None) for c in changes]
    return tuple(dict.fromkeys(capital(clean(w)) for w in given if w))


def advice(changes: Iterable[Change]) -> tuple[str, ...]:
    """What the changes ask for that a study file cannot hold."""
    return tuple(dict.fromkeys(c.text for c in changes if isinstance(c, Advise)))
