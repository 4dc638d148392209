"""Decides which trials the next block of a search contains.

Quasi-random trials start the search. Then the analysis of all trials in the present space plans the next study. If the planned
study extends the space, the search adopts the study at once and first draws trials from the added part of the space. Otherwise the
adaptive sampler draws the block from all trials so far, including those outside the present space. The sampler extends a range if
it expects better results beyond an end than inside. Ranges never shrink, because the sampler knows where results are bad. The last
trials repeat the leading setting with other seeds, as the playbook asks before a setting is adopted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from typing import Literal

from advisor.model.space import Value
from advisor.model.spec import Sampler, StudySpec
from advisor.planning.blocks import leader
from advisor.planning.blocks.model import Analyst, Block, Trained
from advisor.planning.blocks.spaces import (
    comparable,
    covers,
    hull,
    observations,
    same_space,
    steps_of,
    trains_alike,
    within,
)
from advisor.planning.designs.exploit import reopened
from advisor.planning.sampling.adaptive import widened
from advisor.planning.sampling.halton import sample

BLOCKS = 12
"""Number of blocks into which the trials of a search are divided."""
FIRST_BLOCKS = 3
"""Number of blocks before the first analysis, because the rules need enough trials."""
MIN_GROWTH = 1.25
"""Minimum factor by which the number of trials must grow before an unchanged space is analysed again; fewer new trials add little
statistical power.
"""
REPEATS = 4
"""Maximum number of trials at the end that repeat the leading setting; at most a ninth of all trials of the present length."""
MAX_SHARE = 3
"""A special study may take at most 1 / `MAX_SHARE` of the remaining steps, so that trials remain to use its result."""
MAX_POINTS = 500
"""Maximum number of points of a quasi-random sequence that are tried to find points in an unexplored part of the space."""


@dataclass(frozen=True)
class Search:
    """A search within a budget of training steps."""

    start: StudySpec
    """The study whose space the search starts from."""
    trials: int
    """Budget of the search, as a number of trials of the starting study's training length."""
    analyst: Analyst
    parallel: int = 1
    """Number of trials that are trained at a time; a block has at least as many."""

    @property
    def block(self) -> int:
        """Number of trials in each block."""
        return max(self.trials // BLOCKS, self.parallel, 1)

    @property
    def seed(self) -> int:
        """Seed of the search."""
        return self.start.sampler.seed

    def next_block(self, blocks: Sequence[Block]) -> Block | None:
        """Return the block to train after these trained blocks; None if the budget is spent."""
        state = _State(self, tuple(blocks))
        if not blocks:
            return state.explore(state.space, FIRST_BLOCKS * self.block)
        if blocks[-1].kind == "probe":
            return state.after_probe() or state.repeat()
        return (state.decide() if state.affordable else None) or state.repeat()

    def space(self, blocks: Sequence[Block]) -> StudySpec:
        """Return the study with the search space that applies after these blocks."""
        return _State(self, tuple(blocks)).space


@dataclass(frozen=True)
class _State:
    """The state of a search after some of its blocks have been trained."""

    search: Search
    blocks: tuple[Block, ...]

    # --- the state after the blocks so far --------------------------------------------------------------------------------------

    @cached_property
    def done(self) -> list[Trained]:
        return [t for block in self.blocks for t in block.trained]

    @cached_property
    def space(self) -> StudySpec:
        """The present search space. Special studies and repeats do not change the search space."""
        spaces = [b.spec for b in self.blocks if b.changes_space or b.kind == "adaptive"]
        changed = any(b.changes_space for b in self.blocks[1:])
        update = {
            "sampler": Sampler(seed=self._space_seed),
            "settings": (),
            "seeds": None,
            "trials": self.search.block if changed else self.search.trials,
        }
        return (spaces[-1] if spaces else self.search.start).model_copy(update=update)

    @property
    def _space_seed(self) -> int:
        """Sampler seed of the present space: the seed of the block that introduced this space."""
        last = max((i for i, b in enumerate(self.blocks) if b.changes_space), default=0)
        if not self.blocks or self.blocks[last].spec.sampler.kind != "adaptive":
            return self.blocks[last].spec.sampler.seed if self.blocks else self.search.seed
        return self.search.seed + sum(len(b.trained) for b in self.blocks[:last])

    @cached_property
    def left(self) -> int:
        """Training steps that are left in the budget."""
        spent = sum(t.steps if t.paid is None else t.paid for t in self.done)
        return self.search.trials * steps_of(self.search.start) - spent

    @property
    def affordable(self) -> int:
        """Number of trials of the present training length that the budget still pays for before the final repeats."""
        return self._affordable(self.space)

    def _affordable(self, space: StudySpec) -> int:
        left = self.left // steps_of(space)
        repeats = min(REPEATS, (len(comparable(space, self.done)) + left) // 9)
        return max(left - repeats, 0)

    @property
    def repeated(self) -> int:
        """Number of repeats since the last block that was not a block of repeats."""
        return sum(len(b.trained) for b in takewhile(lambda b: b.kind == "repeat", reversed(self.blocks)))

    @cached_property
    def analysed_trials(self) -> int:
        """Number of trials at the last analysis that did not change the space; 0 if the space was changed after this analysis."""
        if not self.blocks:
            return 0
        last, before = self.blocks[-1], _State(self.search, self.blocks[:-1])
        if last.changes_space:
            return 0
        was_probe = bool(before.blocks) and before.blocks[-1].kind == "probe"
        analysed = last.kind == "probe" or (last.kind == "adaptive" and not was_probe and before.is_due)
        return len(before.done) if analysed else before.analysed_trials

    @property
    def is_due(self) -> bool:
        """Whether there are enough new trials for an analysis."""
        return bool(within(self.space, self.done)) and len(self.done) >= MIN_GROWTH * self.analysed_trials

    # --- decisions --------------------------------------------------------------------------------------------------------------

    def decide(self) -> Block | None:
        """Return a block of the study that the analysis plans; without enough new trials for an analysis, an adaptive block."""
        if not self.is_due:
            return self.adaptive(self.space)
        planned = self._planned(self.space, within(self.space, self.done))
        if planned is None or planned.probe is None:
            return self._adopt(planned)
        count = (planned.trials or 1) * (planned.seeds or 1)
        if MAX_SHARE * count * steps_of(planned) > self.left or self._answered(planned):
            return self._adopt(_baseline(planned))
        return Block("probe", planned)

    def _answered(self, probe: StudySpec) -> bool:
        """Return whether an earlier special study asked the same question, with numbers that differ from this study's by less than
        a factor of 2.
        """
        before = [b.spec.starts_from or {} for b in self.blocks if b.kind == "probe" and b.spec.probe == probe.probe]
        now = probe.starts_from or {}
        return any(
            earlier.keys() == now.keys() and all(max(v, earlier[n]) < 2 * min(v, earlier[n]) for n, v in now.items())
            for earlier in before
        )

    def after_probe(self) -> Block | None:
        """Return a block of trials for the study that follows from the last special study; if none follows, a block of the special
        study's baseline."""
        probe = self.blocks[-1]
        following = self._planned(probe.spec, probe.trained) if probe.trained else None
        return self._adopt(_baseline(probe.spec) if following is None or following.probe is not None else following)

    def _planned(self, spec: StudySpec, trials: Sequence[Trained]) -> StudySpec | None:
        """Return the first study that the analysis plans, adapted to this search; None if the analysis plans none.

        If the study gets a block of trials, the predictions in its file are about these trials.
        """
        sampler = Sampler(seed=self.search.seed + len(self.done))

        def prepare(planned: StudySpec) -> StudySpec:
            trials = (planned.trials if planned.probe is not None else None) or self.search.block
            first = reopened(planned.model_copy(update={"trials": trials}))
            spec = self.search.analyst.legal(first.model_copy(update={"sampler": sampler}), self.space)
            block = self._changing(spec) if spec.probe is None else None
            return spec if block is None or block.spec.sampler.kind == "adaptive" else block.spec

        return self.search.analyst.next_study(spec, trials, prepare)

    def _adopt(self, planned: StudySpec | None) -> Block | None:
        """Return a block of the planned study if the study changes the space and the budget is large enough for it; else a block of
        the adaptive sampler.
        """
        changing = self._changing(planned) if planned is not None else None
        return changing or self.adaptive(self.space)

    def _changing(self, planned: StudySpec) -> Block | None:
        """Return a block of the planned study; None if the study does not change the space, or if the budget is too small for its
        training length.
        """
        if not self._is_worthwhile(planned):
            return None
        spec = hull(self.space, planned)
        if same_space(spec, self.space):
            return None
        if not trains_alike(spec, self.space):
            block = self.explore(spec, FIRST_BLOCKS * self.search.block)
        else:
            block = self._extend(spec, self.search.block)
        return block or self.adaptive(spec, kind="extend")

    def _is_worthwhile(self, spec: StudySpec) -> bool:
        """Return whether the study searches hyperparameters. If its training length differs from the present one, also require that
        the budget then suffices for one more block and the repeats.
        """
        longer = not trains_alike(spec, self.space)
        return bool(spec.searched) and (not longer or (FIRST_BLOCKS + 1) * self.search.block <= self._affordable(spec))

    # --- blocks -----------------------------------------------------------------------------------------------------------------

    def explore(self, spec: StudySpec, count: int) -> Block | None:
        """Return at most `count` quasi-random trials of a space; None if the budget has no steps left for a trial."""
        count = min(count, self.left // steps_of(spec))
        return Block("explore", spec.model_copy(update={"trials": count})) if count > 0 else None

    def _extend(self, spec: StudySpec, count: int) -> Block | None:
        """Return at most `count` trials from the part of the study's space that lies outside the present space; None if no part
        lies outside.
        """
        count = min(count, self._affordable(spec))
        points = sample(spec.model_copy(update={"settings": ()}), MAX_POINTS)
        fresh = tuple(islice((p for p in points if not covers(self.space, spec, p)), count))
        settings = tuple(_searched_values(spec, p) for p in fresh)
        return Block("extend", spec.model_copy(update={"trials": len(fresh), "settings": settings})) if fresh else None

    def adaptive(self, space: StudySpec, *, kind: Literal["adaptive", "extend"] = "adaptive") -> Block | None:
        """Return a block of the adaptive sampler, in a wider space if the model expects more improvement beyond a range's end; None
        at the end of the search.
        """
        space = self.search.analyst.legal(widened(space, observations(space, self.done)), self.space)
        count = min(self.search.block, self._affordable(space))
        update = {"sampler": Sampler(kind="adaptive", seed=self.search.seed), "trials": count, "settings": ()}
        return Block(kind, space.model_copy(update=update)) if count else None

    def repeat(self) -> Block | None:
        """Return repeats of the setting with the best mean, which may change after each block; None after the last one."""
        leading = leader.leading(leader.settings(self.done))[0]
        count = min(self.search.parallel, self.left // leading.steps, REPEATS - self.repeated)
        if count < 1:
            return None
        origin = next(b.spec for b in self.blocks if leading in b.trained)
        update = {
            "settings": (_searched_values(origin, leading.setting),),
            "trials": 1,
            "seeds": count if count > 1 else None,
            "sampler": Sampler(seed=self.search.seed),
        }
        return Block("repeat", origin.model_copy(update=update))


def _searched_values(spec: StudySpec, params: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values of the hyperparameters that the study searches, because the study file fixes or computes all others."""
    return {name: value for name, value in params.items() if name in spec.searched}


def _baseline(probe: StudySpec) -> StudySpec | None:
    return None if probe.baseline is None else reopened(probe.baseline)
