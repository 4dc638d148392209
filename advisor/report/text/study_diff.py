"""The differences between two studies, one row per changed line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from advisor.model.change import AddParameter, Advise, Change, FixParameter, SetRange
from advisor.model.spec import Parameter, Region, StudySpec
from advisor.model.words import capitalise, clean, plain_number, setting
from advisor.planning.base import validate_spec
from advisor.report.model import ReportData


@dataclass(frozen=True, slots=True)
class StudyDiffRow:
    """One line of a study file in its old and its new version, or None in place of a version without this line."""

    name: str
    before: str | None
    after: str | None
    why: str | None = None


_COMPARED_PARAMETER_FIELDS = tuple(Parameter.model_fields.keys() - {"why", "low", "high"})
"""Fields in which two versions of a hyperparameter must agree to count as alike. The ends of ranges are compared separately."""
RANGE_END_TOLERANCE = 0.01
"""Maximum distance between the ends of two alike ranges, as a share of the old range. Our choice."""
_COMPARED_STUDY_FIELDS = ("trials", "max_train_steps", "final_train_steps", "evaluate_every", "seeds")


def describe_domain(parameter: Parameter) -> str:
    """Return a short description of a hyperparameter's domain: `1e-4 … 1, log`."""
    if parameter.role == "fixed":
        domain_text = f"fixed at {setting(parameter.value)}"
    elif parameter.formula is not None:
        domain_text = f"computed: {setting(parameter.formula)}"
    elif parameter.low is not None and parameter.high is not None:
        type_text = "int, " if parameter.type == "int" else ""
        domain_text = f"{plain_number(parameter.low)} … {plain_number(parameter.high)}, {type_text}{parameter.scale}"
    else:
        domain_text = "one of " + ", ".join(setting(v) for v in parameter.options)
    if parameter.when:
        domain_text += ", when " + " and ".join(f"{clean(n)} is {setting(v)}" for n, v in parameter.when.items())
    return domain_text


def completed_spec(report: ReportData) -> StudySpec:
    """Return the analyzed study with its trials, evaluation interval and roles filled in, as a next study has them."""
    spec, counts = report.spec, report.counts
    ended_count = max(counts.total - counts.running - counts.no_data, 1)
    next_spec = report.next_studies[0].spec if report.next_studies else spec
    interval = spec.evaluate_every or next_spec.evaluate_every
    searched = {n: p for n, p in next_spec.searched.items() if n in spec.searched and n in report.inferred}
    roles = {n: spec.parameters[n].model_copy(update={"role": p.role}) for n, p in searched.items()}
    fields = {"trials": spec.trials or ended_count, "evaluate_every": interval, "parameters": {**spec.parameters, **roles}}
    return spec.model_copy(update=fields)


def diff_studies(old: StudySpec, new: StudySpec) -> tuple[StudyDiffRow, ...]:
    """Return the differences in search space, steps and schedule between two studies, but not in names and reasons."""
    pairs = ((n, old.parameters.get(n), new.parameters.get(n)) for n in dict.fromkeys([*old.parameters, *new.parameters]))
    rows = []
    for name, a, b in (pair for pair in pairs if not are_parameters_alike(*pair[1:])):
        before, after = (None if p is None else describe_domain(p) for p in (a, b))
        if a is not None and b is not None and a.role != b.role and "fixed" not in (a.role, b.role):
            before, after = f"{before}, {a.role}", f"{after}, {b.role}"
        rows.append(StudyDiffRow(name, before, after, None if b is None else b.why))
    for field in _COMPARED_STUDY_FIELDS:
        before, after = (None if v is None else f"{v:,}" for v in (getattr(old, field), getattr(new, field)))
        rows.append(StudyDiffRow(field, before, after))
    rows.append(StudyDiffRow("schedule", _schedule_text(old), _schedule_text(new)))
    rows += [StudyDiffRow("forbidden", None, _forbidden_region_text(r), r.why) for r in new.forbidden if r not in old.forbidden]
    rows += [StudyDiffRow("forbidden", _forbidden_region_text(r), None) for r in old.forbidden if r not in new.forbidden]
    return tuple(row for row in rows if row.before != row.after)


def are_parameters_alike(old: Parameter | None, new: Parameter | None) -> bool:
    """Return whether two versions of a hyperparameter are equal. The ends of their ranges may differ by rounding."""
    if old is None or new is None or any(getattr(old, f) != getattr(new, f) for f in _COMPARED_PARAMETER_FIELDS):
        return False
    if new.low is None or new.high is None or not old.numeric:
        return (old.low, old.high) == (new.low, new.high)
    low, high = old.to_positions([new.low, new.high])
    return bool(abs(low) <= RANGE_END_TOLERANCE and abs(high - 1) <= RANGE_END_TOLERANCE)


def is_same_domain(old: Parameter | None, new: Parameter | None) -> bool:
    """Return whether two versions of a hyperparameter have the same domain. The roles of two searched versions may differ."""
    if old is not None and new is not None and old.searched and new.searched:
        new = new.model_copy(update={"role": old.role})
    return are_parameters_alike(old, new)


def _schedule_text(spec: StudySpec) -> str | None:
    return None if spec.schedule is None else ", ".join(f"{clean(k)}: {setting(v)}" for k, v in spec.schedule.items())


def _forbidden_region_text(region: Region) -> str:
    limit_texts = []
    for name, bounds in region.where.items():
        bound_texts = [f"≥ {plain_number(bounds.low)}"] if bounds.low is not None else []
        bound_texts += [f"≤ {plain_number(bounds.high)}"] if bounds.high is not None else []
        bound_texts += ["one of " + ", ".join(setting(v) for v in bounds.choices)] if bounds.choices else []
        limit_texts.append(f"{clean(name)} {' and '.join(bound_texts)}")
    return " and ".join(limit_texts)


def diff_of_changes(spec: StudySpec, changes: Iterable[Change]) -> tuple[StudyDiffRow, ...]:
    """Apply the changes to the study in order, and return the differences. A change that cannot be applied stays as proposed."""
    changed_spec, invalid = spec, []
    for change in changes:
        try:
            changed_spec = validate_spec(change.apply(changed_spec), changed_spec)
        except ValidationError:
            invalid.append(_proposed_change_row(change))
    return (*diff_studies(spec, changed_spec), *(row for row in invalid if row is not None))


def _proposed_change_row(change: Change) -> StudyDiffRow | None:
    if isinstance(change, SetRange):
        domain = f"{plain_number(change.low)} … {plain_number(change.high)}, {change.scale}"
        return StudyDiffRow(change.parameter, None, domain, change.why)
    if isinstance(change, FixParameter):
        return StudyDiffRow(change.parameter, None, f"fixed at {setting(change.value)}", change.why)
    if isinstance(change, AddParameter):
        return StudyDiffRow(change.name, None, describe_domain(change.parameter), change.parameter.why)
    return None


def reasons(changes: Iterable[Change]) -> tuple[str, ...]:
    texts = [c.parameter.why if isinstance(c, AddParameter) else getattr(c, "why", None) for c in changes]
    return tuple(dict.fromkeys(capitalise(clean(t)) for t in texts if t))


def advice(changes: Iterable[Change]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(c.text for c in changes if isinstance(c, Advise)))
