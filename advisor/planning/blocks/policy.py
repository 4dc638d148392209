"""Decides which trials the next block of a search contains.

A search starts with quasi-random trials. Then the analysis of all trials in the current search space plans the next study. If
the planned study extends the space, the search adopts this study at once and first draws trials from the added part of the
space. Otherwise the adaptive sampler draws the block, based on all trials so far, including trials outside the current space.
The adaptive sampler extends a range if it expects better results beyond one end than inside the range. Ranges never shrink,
because the sampler avoids bad regions. The last trials repeat the best setting with other seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from typing import Literal

from advisor.model.space import HyperparameterValue
from advisor.model.spec import Sampler, StudySpec
from advisor.planning.blocks import leader, spaces
from advisor.planning.blocks.model import Analyst, Block, TrainedTrial
from advisor.planning.designs.exploit import with_reopened_parameters
from advisor.planning.sampling.adaptive import with_wider_ranges
from advisor.planning.sampling.halton import draw_trials

BLOCKS_PER_SEARCH = 12
"""Number of blocks into which the trials of a search are divided."""
BLOCKS_BEFORE_ANALYSIS = 3
"""Number of blocks before the first analysis; with fewer blocks, the rules lack data."""
MIN_GROWTH_TO_REANALYZE = 1.25
"""Minimum factor by which the number of trials must grow before an unchanged search space is analysed again. With fewer new
trials, the statistical power hardly increases."""
MAX_FINAL_REPEATS = 4
"""Maximum number of final trials that repeat the best setting. They are also at most a ninth of all trials."""
PROBE_STEPS_DIVISOR = 3
"""Minimum ratio of the remaining steps to the steps of a probe (short diagnostic study)."""
MAX_POINTS_TRIED = 500
"""Maximum number of points that are drawn from a quasi-random sequence to find points in the added part of a search space."""


@dataclass(frozen=True)
class Search:
    """A search within a budget of training steps."""

    start: StudySpec
    """The study with the search space at the start."""
    trials: int
    """Budget of the search, as a number of trials of the starting study's training length."""
    analyst: Analyst
    parallel: int = 1
    """Number of trials that train at the same time; each block has at least this many trials."""

    @property
    def trials_per_block(self) -> int:
        return max(self.trials // BLOCKS_PER_SEARCH, self.parallel, 1)

    @property
    def seed(self) -> int:
        return self.start.sampler.seed

    def next_block(self, blocks: Sequence[Block]) -> Block | None:
        """Return the block to train next, or None if the budget is spent. blocks: all blocks that have been trained."""
        state = _SearchState(self, tuple(blocks))
        if not blocks:
            return state.quasi_random_block(state.space, BLOCKS_BEFORE_ANALYSIS * self.trials_per_block)
        has_budget = blocks[-1].kind == "probe" or state.affordable_trials(state.space)
        return (state.decide_next_block() if has_budget else None) or state.repeat()

    def search_space(self, blocks: Sequence[Block]) -> StudySpec:
        """Return the study with the search space that applies after the trained blocks."""
        return _SearchState(self, tuple(blocks)).space


@dataclass(frozen=True)
class _SearchState:
    search: Search
    blocks: tuple[Block, ...]

    @cached_property
    def trained_trials(self) -> list[TrainedTrial]:
        return [t for block in self.blocks for t in block.trained]

    @cached_property
    def space(self) -> StudySpec:
        """The current search space. Probes and repeats do not change the search space."""
        specs = [b.spec for b in self.blocks if b.changes_space or b.kind == "adaptive"]
        # The seed comes from the block that introduced this space.
        last_change_index = max((i for i, b in enumerate(self.blocks) if b.changes_space), default=0)
        seed = self.blocks[last_change_index].spec.sampler.seed if self.blocks else self.search.seed
        if self.blocks and self.blocks[last_change_index].spec.sampler.kind == "adaptive":
            seed = self.search.seed + sum(len(b.trained) for b in self.blocks[:last_change_index])
        trials = self.search.trials_per_block if last_change_index > 0 else self.search.trials
        update = {"sampler": Sampler(seed=seed), "settings": (), "seeds": None, "trials": trials}
        return (specs[-1] if specs else self.search.start).model_copy(update=update)

    @cached_property
    def remaining_steps(self) -> int:
        steps_spent = sum(t.steps if t.charged_steps is None else t.charged_steps for t in self.trained_trials)
        return self.search.trials * spaces.steps_per_trial(self.search.start) - steps_spent

    def affordable_trials(self, space: StudySpec) -> int:
        remaining = self.remaining_steps // spaces.steps_per_trial(space)
        repeats = min(MAX_FINAL_REPEATS, (len(spaces.trials_of_same_length(space, self.trained_trials)) + remaining) // 9)
        return max(remaining - repeats, 0)

    @cached_property
    def trials_at_last_analysis(self) -> int:
        """Number of trials at the last analysis of the current search space; 0 if this space was not analysed yet."""
        if not self.blocks:
            return 0
        last, before = self.blocks[-1], _SearchState(self.search, self.blocks[:-1])
        if last.changes_space:
            return 0
        followed_probe = bool(before.blocks) and before.blocks[-1].kind == "probe"
        was_analysed = last.kind == "probe" or (last.kind == "adaptive" and not followed_probe and before.analysis_is_due)
        return len(before.trained_trials) if was_analysed else before.trials_at_last_analysis

    @property
    def analysis_is_due(self) -> bool:
        has_trials = bool(spaces.trials_within_space(self.space, self.trained_trials))
        return has_trials and len(self.trained_trials) >= MIN_GROWTH_TO_REANALYZE * self.trials_at_last_analysis

    def decide_next_block(self) -> Block | None:
        last_block = self.blocks[-1]
        if last_block.kind == "probe":
            planned = self._adapted_planned_study(last_block.spec, last_block.trained) if last_block.trained else None
            follows_probe = planned is not None and planned.probe is None
            return self._block_of_planned_study(planned if follows_probe else last_block.spec.baseline)
        if not self.analysis_is_due:
            return self.adaptive_block(self.space)
        planned = self._adapted_planned_study(self.space, spaces.trials_within_space(self.space, self.trained_trials))
        if planned is None or planned.probe is None:
            return self._block_of_planned_study(planned)
        # An earlier probe of the same kind makes this probe unnecessary if all numbers of the two probes differ by less than a
        # factor of 2.
        probe_numbers, is_answered = planned.starts_from or {}, False
        for earlier in (b.spec.starts_from or {} for b in self.blocks if b.kind == "probe" and b.spec.probe == planned.probe):
            is_near = all(max(v, earlier[n]) < 2 * min(v, earlier[n]) for n, v in probe_numbers.items() if n in earlier)
            is_answered = is_answered or (earlier.keys() == probe_numbers.keys() and is_near)
        steps = (planned.trials or 1) * (planned.seeds or 1) * spaces.steps_per_trial(planned)
        if is_answered or PROBE_STEPS_DIVISOR * steps > self.remaining_steps:
            return self._block_of_planned_study(planned.baseline)
        return Block("probe", planned)

    def _adapted_planned_study(self, spec: StudySpec, trials: Sequence[TrainedTrial]) -> StudySpec | None:
        """Return the first study that the analysis plans, adapted to this search. The study is adapted before its effects are
        predicted, so the predictions are about the trials of its block."""
        sampler = Sampler(seed=self.search.seed + len(self.trained_trials))

        def prepare(planned: StudySpec) -> StudySpec:
            trials = (planned.trials if planned.probe is not None else None) or self.search.trials_per_block
            resized = with_reopened_parameters(planned.model_copy(update={"trials": trials}))
            spec = self.search.analyst.supported_study(resized.model_copy(update={"sampler": sampler}), self.space)
            block = self._block_if_space_changes(spec) if spec.probe is None else None
            return spec if block is None or block.spec.sampler.kind == "adaptive" else block.spec

        return self.search.analyst.next_study(spec, trials, prepare)

    def _block_of_planned_study(self, planned: StudySpec | None) -> Block | None:
        changing_block = self._block_if_space_changes(with_reopened_parameters(planned)) if planned is not None else None
        return changing_block or self.adaptive_block(self.space)

    def _block_if_space_changes(self, planned: StudySpec) -> Block | None:
        """Return a block of the planned study, or None if the study does not change the search space or costs too much. If the
        training length changes, the budget must also cover one more block and the final repeats."""
        block_size, is_longer = self.search.trials_per_block, not spaces.same_length_and_schedule(planned, self.space)
        if not planned.searched:
            return None
        if is_longer and (BLOCKS_BEFORE_ANALYSIS + 1) * block_size > self.affordable_trials(planned):
            return None
        spec = spaces.enclosing_space(self.space, planned)
        if spaces.same_space(spec, self.space):
            return None
        if is_longer:
            block = self.quasi_random_block(spec, BLOCKS_BEFORE_ANALYSIS * block_size)
        else:
            block = self._extension_block(spec, block_size)
        return block or self.adaptive_block(spec, kind="extend")

    def quasi_random_block(self, spec: StudySpec, count: int) -> Block | None:
        count = min(count, self.remaining_steps // spaces.steps_per_trial(spec))
        return Block("explore", spec.model_copy(update={"trials": count})) if count > 0 else None

    def _extension_block(self, spec: StudySpec, count: int) -> Block | None:
        count = min(count, self.affordable_trials(spec))
        points = draw_trials(spec.model_copy(update={"settings": ()}), MAX_POINTS_TRIED)
        new = tuple(islice((p for p in points if not spaces.earlier_space_covers(self.space, spec, p)), count))
        settings = tuple(_searched_values(spec, p) for p in new)
        return Block("extend", spec.model_copy(update={"trials": len(new), "settings": settings})) if new else None

    def adaptive_block(self, space: StudySpec, *, kind: Literal["adaptive", "extend"] = "adaptive") -> Block | None:
        wider_space = with_wider_ranges(space, spaces.sampler_observations(space, self.trained_trials))
        space = self.search.analyst.supported_study(wider_space, self.space)
        count = min(self.search.trials_per_block, self.affordable_trials(space))
        update = {"sampler": Sampler(kind="adaptive", seed=self.search.seed), "trials": count, "settings": ()}
        return Block(kind, space.model_copy(update=update)) if count else None

    def repeat(self) -> Block | None:
        """Return a block of repeats of the setting with the best mean so far, or None after the last repeat."""
        leading = leader.lowest_cost_trials(leader.group_by_setting(self.trained_trials))[0]
        repeat_count = sum(len(b.trained) for b in takewhile(lambda b: b.kind == "repeat", reversed(self.blocks)))
        count = min(self.search.parallel, self.remaining_steps // leading.steps, MAX_FINAL_REPEATS - repeat_count)
        if count < 1:
            return None
        spec = next(b.spec for b in self.blocks if leading in b.trained)
        update = {
            "settings": (_searched_values(spec, leading.setting),),
            "trials": 1,
            "seeds": count if count > 1 else None,
            "sampler": Sampler(seed=self.search.seed),
        }
        return Block("repeat", spec.model_copy(update=update))


def _searched_values(spec: StudySpec, params: Mapping[str, HyperparameterValue]) -> dict[str, HyperparameterValue]:
    return {name: value for name, value in params.items() if name in spec.searched}
