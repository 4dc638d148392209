"""The next study if no rule recommends a change.

The candidates, in this order: the study that a probe prepared, more trials of the same space, a final adaptive search, long runs,
and repeats of the best trial with other seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.engine.rule import Rule
from advisor.model.change import Change, PlanName, RunPlan
from advisor.model.finding import Verdict
from advisor.model.spec import Sampler, StudySpec
from advisor.model.study import Study
from advisor.planning.base import name_of_round, validate
from advisor.planning.designs import exploit
from advisor.planning.designs.catalogue import DESIGNS
from advisor.planning.designs.explore import explore
from advisor.planning.designs.reseed import reseed


def closing_study(
    study: Study, verdicts: Sequence[Verdict], rules: Sequence[Rule], base: StudySpec
) -> StudySpec | None:
    """Return the next study if no rule recommends a change. None if nothing is left to do or a probe prepared no study."""
    name = name_of_round(base, base.round)
    if study.spec.baseline is not None:
        return base.model_copy(update={"study": name, "goal": f"Resume the study that {study.name} prepared"})
    if study.probe is not None:
        return None
    for spec in _candidates(study, verdicts, rules, base):
        if isinstance(spec, StudySpec):
            sampler = Sampler(kind=spec.sampler.kind, seed=base.round)
            return validate(spec.model_copy(update={"study": name, "sampler": sampler}))
    again = reseed(study, base)
    return None if again is None else validate(again)


def _candidates(
    study: Study, verdicts: Sequence[Verdict], rules: Sequence[Rule], base: StudySpec
) -> Iterator[StudySpec | tuple[Change, ...] | None]:
    designs: list[PlanName] = ["exploit"] if exploit.ready(study, verdicts, rules) else []
    designs += ["rounds"] if base.final_train_steps else []
    yield explore(study, verdicts, rules, base)
    for name in designs:
        yield DESIGNS[name](RunPlan(plan=name, why="nothing is left to change"), study, base)
