"""The table of study designs that rules can request."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from advisor.model.change import Change, RunPlan, StudyDesignName
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning.designs import batch_sweep, clip, exploit, per_optimizer, probe_early, rounds, steps_initial, warmup

StudyDesign = Callable[[RunPlan, Study, StudySpec], StudySpec | tuple[Change, ...]]
"""A function of (request, analysed study, next study). It returns a new study, or changes to the next study."""
STUDY_DESIGNS: Mapping[StudyDesignName, StudyDesign] = {
    "probe-early": probe_early.design,
    "warmup": warmup.design,
    "clip": clip.design,
    "steps-initial": steps_initial.design,
    "batch-sweep": batch_sweep.design,
    "rounds": rounds.design,
    "exploit": exploit.design,
    "per-optimizer": per_optimizer.design,
}
