"""Which file makes what of a plan that a rule asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from advisor.finding import Change, PlanName, RunPlan
from advisor.plans import batch_sweep, clip, exploit, one_each, probe_early, rounds, steps_initial, warmup
from advisor.spec import StudySpec
from advisor.study import Study

Made = StudySpec | tuple[StudySpec, ...] | tuple[Change, ...]
Design = Callable[[RunPlan, Study, StudySpec], Made]
"""(what was asked for, the study that was analysed, the study to follow): studies of its own, or changes of the one to follow."""

PLANS: Mapping[PlanName, Design] = {
    "probe-early": probe_early.design,
    "warmup": warmup.design,
    "clip": clip.design,
    "steps-initial": steps_initial.design,
    "batch-sweep": batch_sweep.design,
    "rounds": rounds.design,
    "exploit": exploit.design,
    "one-each": one_each.design,
}


def made(ask: RunPlan, study: Study, base: StudySpec) -> tuple[tuple[StudySpec, ...], tuple[Change, ...]]:
    """What the plan makes: studies of its own, and changes of the study to follow; one of the two is empty."""
    out = PLANS[ask.plan](ask, study, base)
    parts = (out,) if isinstance(out, StudySpec) else out
    return (
        tuple(part for part in parts if isinstance(part, StudySpec)),
        tuple(part for part in parts if not isinstance(part, StudySpec)),
    )
