"""The table of study designs that rules can request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from advisor.model.change import Change, RunPlan, StudyDesignName
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning.designs import batch_sweep, clip, exploit, per_optimizer, probe_early, rounds, steps_initial, warmup


class StudyDesign(Protocol):
    """A function that derives, from the analysed study, a new study or changes to the next study (`base`)."""

    def __call__(self, request: RunPlan, study: Study, base: StudySpec, /) -> StudySpec | tuple[Change, ...]:
        """Return the new study that the design creates, or its changes to `base`."""


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
