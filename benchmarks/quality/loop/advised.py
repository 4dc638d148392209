"""Runs this project's loop as a contender: the search in blocks of `advisor tune` (`advisor.planning.blocks`) on a benchmark's
task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from advisor import contract
from advisor.analysis import first_study
from advisor.engine.registry import load_rules
from advisor.engine.rule import Rule
from advisor.history.judge import judge_predictions
from advisor.model.finding import Verdict
from advisor.model.space import HyperparameterValue
from advisor.model.spec import Sampler, StudySpec
from advisor.planning.blocks import Block, Search, TrainedTrial, leader
from advisor.planning.blocks.spaces import sampler_observations, steps_per_trial
from advisor.planning.sampling.adaptive import suggest_trial
from advisor.planning.sampling.halton import draw_trials
from loop.contenders import SearchResult
from loop.record import study
from loop.task import Outcome, Setting, Task


@lru_cache(maxsize=1)
def _rules() -> tuple[Rule, ...]:
    return tuple(load_rules())


def search_by_advisor(task: Task, seed: int) -> SearchResult:
    """Run the loop of studies on a task."""
    return _AdvisedSearch(task, seed).chosen()


ROUND_TRIALS = (12, 24, 48)
"""Numbers of trials in the first study of the contender "one round", by seed."""


def one_round(task: Task, seed: int) -> SearchResult:
    """Run one study and then the next study that the analysis plans, and judge the predictions in the next study's file."""
    loop = _AdvisedSearch(task, seed)
    update = {"sampler": Sampler(seed=seed), "trials": ROUND_TRIALS[seed % len(ROUND_TRIALS)]}
    start = task.start.model_copy(update=update)
    trials = list(loop._train_block(Block("explore", start), ()).trained)
    following = loop.next_study(start, trials, task.supported_study)
    if following is not None and following.searched and not following.probe and following.sampler.kind != "adaptive":
        block = loop._train_block(Block("extend", following), trials)
        loop._judge(following, block.trained)
        trials += block.trained
    best = leader.trials_of_best_setting(trials)[0]
    setting = Setting(best.setting, best.steps, best.schedule)
    steps = sum(t.steps for t in trials)
    return SearchResult(setting, best.cost, len(trials), steps, tuple(loop.log), tuple(loop.predictions))


@dataclass
class _AdvisedSearch:
    """Trains the blocks of trials, and acts as the analyst of these trials."""

    task: Task
    seed: int
    outcomes: list[tuple[Outcome, int]] = field(default_factory=list)
    """Outcome and seed of each trial; a trial's id is its index in this list."""
    verdicts: Sequence[Verdict] = ()
    """Verdicts of the rules in the last analysis."""
    log: list[str] = field(default_factory=list)
    predictions: list[tuple[float, bool]] = field(default_factory=list)
    """(stated probability, whether the prediction came true) for each prediction that could be judged."""

    def chosen(self) -> SearchResult:
        """Run the search and return its choice."""
        start = self.task.start.model_copy(update={"sampler": Sampler(seed=self.seed)})
        search, blocks = Search(start, self.task.trials, self), list[Block]()
        while (block := search.next_block(blocks)) is not None:
            blocks.append(self._train_block(block, [t for b in blocks for t in b.trained]))
            if block.changes_space and len(blocks) > 1 and block.spec.sampler.kind != "adaptive":
                self._judge(search.search_space(blocks), blocks[-1].trained)
        trials = [t for b in blocks for t in b.trained]
        best = leader.trials_of_best_setting(trials)[0]
        setting = Setting(best.setting, best.steps, best.schedule)
        steps = sum(t.steps for t in trials)
        return SearchResult(setting, best.cost, len(trials), steps, tuple(self.log), tuple(self.predictions))

    # --- training ---------------------------------------------------------------------------------------------------------------

    def _train_block(self, block: Block, earlier: Sequence[TrainedTrial]) -> Block:
        """Train the trials of the block and return the block with them."""
        trials = list[TrainedTrial]()
        for params in self._draw_settings(block.spec, lambda: [*earlier, *trials]):
            setting = Setting(params, steps_per_trial(block.spec), dict(block.spec.schedule or {}))
            trials.append(self._train(setting, block.spec.probe))
        if block.kind != "repeat":
            best = min(map(leader.mean_cost, leader.group_by_setting([*earlier, *trials])), default=math.nan)
            self.log.append(f"{len(trials)} {_kind_of_block(block)} trials in {_summary(block.spec)}; best {best:.5g}")
        return replace(block, trained=tuple(trials))

    def _draw_settings(
        self, spec: StudySpec, done: Callable[[], Sequence[TrainedTrial]]
    ) -> Iterator[dict[str, HyperparameterValue]]:
        count = (spec.trials or 1) * (spec.seeds or 1)
        if spec.sampler.kind != "adaptive":
            yield from draw_trials(spec, count)
            return
        for _ in range(count):
            yield suggest_trial(spec, sampler_observations(spec, done()))

    def _train(self, setting: Setting, probe: str | None) -> TrainedTrial:
        own = 1000 * self.seed + len(self.outcomes)
        outcome = self.task.run(setting, own)
        if probe is not None:
            outcome = replace(outcome, facts={**outcome.facts, contract.TAG_PROBE: probe})
        self.outcomes.append((outcome, own))
        id = str(len(self.outcomes) - 1)
        return TrainedTrial(id, setting.params, outcome.params, outcome.cost, setting.steps, setting.schedule, probe)

    # --- analysis ---------------------------------------------------------------------------------------------------------------

    def next_study(
        self, spec: StudySpec, trials: Sequence[TrainedTrial], prepare: Callable[[StudySpec], StudySpec]
    ) -> StudySpec | None:
        """Return the first of the studies that the analysis plans next."""
        chosen = [self.outcomes[int(t.id)] for t in trials]
        assembled = study(spec, [outcome for outcome, _ in chosen], [seed for _, seed in chosen])
        following, self.verdicts = first_study(assembled, _rules(), prepare)
        fired = [f"{f.rule}({f.subject or ''}{' ' + f.side if f.side else ''})" for v in self.verdicts for f in v.findings]
        self.log.append(f"{', '.join(fired) or 'nothing fired'} → {following.goal if following else 'no study'}")
        return following

    def supported_study(self, spec: StudySpec, _before: StudySpec, /) -> StudySpec:
        """Return the study without the fields that the task does not support."""
        return self.task.supported_study(spec)

    def _judge(self, space: StudySpec, trials: Sequence[TrainedTrial]) -> None:
        """Judge, by its trials, the predictions made for a study."""
        chosen = [self.outcomes[int(t.id)] for t in trials]
        assembled = study(space, [outcome for outcome, _ in chosen], [seed for _, seed in chosen])
        by_rule = {v.rule: v for v in self.verdicts}
        for outcome in judge_predictions(assembled, by_rule.get):
            probability = outcome.prediction.probability
            if probability is not None and outcome.judged in ("kept", "not kept"):
                self.predictions.append((probability, outcome.judged == "kept"))


def _kind_of_block(block: Block) -> str:
    if block.spec.sampler.kind == "adaptive":
        return "adaptive"
    return {"explore": "quasi-random", "extend": "unexplored"}.get(block.kind, block.kind)


def _summary(spec: StudySpec) -> str:
    parts = [
        f"{n} {p.low:g}..{p.high:g}" if p.numeric else f"{n} {list(p.options)}"
        for n, p in spec.searched.items()
    ]  # fmt: skip
    return f"{', '.join(parts) or 'one setting'}, {steps_per_trial(spec)} steps" + (
        f", {dict(spec.schedule)}" if spec.schedule else ""
    )
