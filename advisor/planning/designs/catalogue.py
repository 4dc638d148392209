"""Which file makes what of a plan that a rule asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from advisor.model.change import Change, PlanName, RunPlan
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning.designs import batch_sweep, clip, exploit, probe_early, rounds, steps_initial, warmup

Design = Callable[[RunPlan, Study, StudySpec], StudySpec | tuple[Change, ...]]
"""(what was asked for, the study that was analysed, the study to follow): a study of its own, or changes of the one to follow."""

PLANS: Mapping[PlanName, Design] = {
    "probe-early": probe_early.design,
    "warmup": warmup.design,
    "clip": clip.design,
    "steps-initial": steps_initial.design,
    "batch-sweep": batch_sweep.design,
    "rounds": rounds.design,
    "exploit": exploit.design,
}
