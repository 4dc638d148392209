"""This project's loop as a contender: after each block of trials, a quarter of a round, the analysis decides about the space.

Quasi-random trials start the search. Then the analysis of all trials in the present space plans the next study. If that study
extends the space, the loop adopts it at once and first draws trials from the part that was not searched before. Otherwise the
adaptive sampler draws the block, based on all trials so far, also those outside the present space; it extends a range if it expects
more beyond an end than inside. Ranges never shrink: the sampler knows where results are bad. The last trials repeat the leading
setting with other seeds, as the playbook asks before a setting is adopted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice

from advisor import contract
from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.engine.rule import Rule
from advisor.history.judge import outcomes
from advisor.history.predict import predicted
from advisor.model.finding import Verdict
from advisor.model.space import Value
from advisor.model.spec import Sampler, StudySpec
from advisor.planning import plan
from advisor.planning.designs.exploit import reopened
from advisor.planning.sampling.adaptive import Observation, suggest, widened
from advisor.planning.sampling.halton import sample
from loop.contenders import Chosen
from loop.record import study
from loop.task import Outcome, Setting, Task

BLOCKS = 12
"""Number of blocks into which the trials of a search are divided: three rounds of four."""
FIRST_BLOCKS = 3
"""Number of blocks before the first decision: fewer trials tell the rules too little."""
MIN_GROWTH = 1.25
"""Minimum growth of the number of trials before a space that was not changed is analysed again: a test gains little by less."""
REPEATS = 4
"""Trials at the end that repeat the leading setting; at most a ninth of all."""
MAX_SHARE = 3
"""A special study, or longer training, is only begun if it leaves trials for its result: it may take a third of what is left."""
MAX_POINTS = 500
"""Maximum number of points of a sequence that are tried to find unexplored ones."""


@dataclass(frozen=True)
class _Trial:
    setting: Setting
    outcome: Outcome
    seed: int
    probe: str | None = None
    """Kind of the special study it belongs to, such as a search for warmups: its trials are no candidates."""


@lru_cache(maxsize=1)
def _rules() -> tuple[Rule, ...]:
    return tuple(load_rules())


def advised(task: Task, seed: int) -> Chosen:
    """Run the loop."""
    return _Search(task, seed).chosen()


@dataclass
class _Search:
    task: Task
    seed: int
    space: StudySpec = field(init=False)
    """The present search space."""
    left: int = field(init=False)
    """Training steps that are left."""
    done: list[_Trial] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    looked: int = 0
    """Number of trials at the last analysis that changed no range."""
    predictions: list[tuple[float, bool]] = field(default_factory=list)
    """(stated probability, whether it came true) of each prediction that could be judged."""

    def __post_init__(self) -> None:
        self.space = self.task.start.model_copy(update={"sampler": Sampler(seed=self.seed)})
        self.left = self.task.trials * _steps(self.space)

    @property
    def block(self) -> int:
        """Number of trials of a block."""
        return max(self.task.trials // BLOCKS, 1)

    @property
    def affordable(self) -> int:
        """Number of trials of the present length that are left before the repeats."""
        repeats = min(REPEATS, self.task.trials // 9)
        return max(self.left // _steps(self.space) - repeats, 0)

    def chosen(self) -> Chosen:
        """Search and return the choice."""
        self._explore(self.space, FIRST_BLOCKS * self.block)
        while self.affordable:
            self._step()
        self._confirm()
        best = _best(self.done)
        steps = sum(t.setting.steps for t in self.done)
        return Chosen(best.setting, best.outcome.cost, len(self.done), steps, tuple(self.log), tuple(self.predictions))

    def _step(self) -> None:
        """Run a block of the study that the analysis plans; without enough new trials for an analysis, an adaptive block."""
        counted = within(self.space, self.done)
        if not counted or len(self.done) < MIN_GROWTH * self.looked:
            self._exploit()
            return
        self.looked = len(self.done)
        spec, verdicts = self._next(self.space, counted)
        if spec is not None and spec.probe is not None:
            spec, verdicts = self._after_probe(spec)
        spec = None if spec is None or not self._worth(spec) else _hull(self.space, spec)
        if spec is None or _same_space(spec, self.space):
            self._exploit()
            return
        before, self.space = self.space, spec.model_copy(update={"trials": self.block})
        fresh = _steps(spec) != _steps(before) or spec.schedule != before.schedule
        count = FIRST_BLOCKS * self.block if fresh else self.block
        new = self._explore(self.space, count, without=None if fresh else before)
        self.looked = 0
        if new:
            self._judge(spec, new, verdicts)
        else:
            self._exploit()

    def _next(self, spec: StudySpec, counted: Sequence[_Trial]) -> tuple[StudySpec | None, Sequence[Verdict]]:
        """Return the first study that the analysis plans, None without one, and the verdicts."""
        assembled = study(spec, [t.outcome for t in counted], [t.seed for t in counted])
        verdicts = judge(assembled, _rules())
        fired = [f"{f.rule}({f.subject or ''}{' ' + f.side if f.side else ''})" for v in verdicts for f in v.findings]
        specs = plan(assembled, verdicts).specs
        self.log.append(f"{', '.join(fired) or 'nothing fired'} → {specs[0].goal if specs else 'no study'}")
        if not specs:
            return None, verdicts
        first = reopened(specs[0].model_copy(update={"trials": self.block}))
        first = self.task.legal(first.model_copy(update={"sampler": Sampler(seed=self.seed + len(self.done))}))
        return predicted(assembled, verdicts, [first], _rules())[0], verdicts

    def _after_probe(self, spec: StudySpec) -> tuple[StudySpec | None, Sequence[Verdict]]:
        """Run a special study and return the study that its analysis plans; its baseline if it costs too much or plans another."""
        count = (spec.trials or 1) * (spec.seeds or 1)
        baseline = None if spec.baseline is None else reopened(spec.baseline)
        if MAX_SHARE * count * _steps(spec) > self.left:
            return baseline, ()
        before = len(self.done)
        for params in sample(spec, count):
            self._run(spec, params)
        self.log.append(f"{count} trials in {_summary(spec)}")
        if len(self.done) == before:
            return baseline, ()
        following, verdicts = self._next(spec, self.done[before:])
        return (baseline, ()) if following is None or following.probe is not None else (following, verdicts)

    def _worth(self, spec: StudySpec) -> bool:
        """Whether enough trials of this length are left to search."""
        if not spec.searched:
            return False
        fresh = _steps(spec) != _steps(self.space) or spec.schedule != self.space.schedule
        return not fresh or FIRST_BLOCKS * self.block * _steps(spec) <= self.left

    def _explore(self, spec: StudySpec, count: int, without: StudySpec | None = None) -> list[_Trial]:
        """Draw at most this many trials from the space, or from its part outside another space."""
        before, steps = len(self.done), _steps(spec)
        points = islice(sample(spec, MAX_POINTS if without else count), MAX_POINTS)
        fresh = (p for p in points if without is None or not _covers(without, spec, p))
        for params in islice(fresh, min(count, self.left // steps)):
            self._run(spec, params)
        new = self.done[before:]
        self._note("unexplored" if without else "quasi-random", len(new), spec)
        return new

    def _exploit(self) -> None:
        """Run an adaptive block, in a wider space if the model expects more improvement beyond an end."""
        self.space = self.task.legal(widened(self.space, self._history()))
        adaptive = self.space.model_copy(update={"sampler": Sampler(kind="adaptive", seed=self.seed)})
        count = min(self.block, self.affordable)
        for _ in range(count):
            self._run(adaptive, suggest(adaptive, self._history())[0])
        self._note("adaptive", count, self.space)

    def _history(self) -> list[Observation]:
        """Return all trials with the present steps and schedule, wherever they lie."""
        return [
            Observation(
                self.space.completed(t.outcome.params), t.outcome.cost if math.isfinite(t.outcome.cost) else None
            )
            for t in _comparable(self.space, self.done)
        ]

    def _judge(self, spec: StudySpec, new: Sequence[_Trial], verdicts: Sequence[Verdict]) -> None:
        """Judge the predictions for a study by its trials."""
        assembled = study(spec, [t.outcome for t in new], [t.seed for t in new])
        by_rule = {v.rule: v for v in verdicts}
        for outcome in outcomes(assembled, by_rule.get):
            probability = outcome.prediction.probability
            if probability is not None and outcome.judged in ("kept", "not kept"):
                self.predictions.append((probability, outcome.judged == "kept"))

    def _confirm(self) -> None:
        """Repeat the setting with the best mean, which may change after each run."""
        while self.left >= (leader := _leader(_settings(self.done)).setting).steps:
            self._train(leader)

    def _run(self, spec: StudySpec, params: dict[str, Value]) -> None:
        self._train(Setting(params, _steps(spec), dict(spec.schedule or {})), spec.probe)

    def _train(self, setting: Setting, probe: str | None = None) -> None:
        own = 1000 * self.seed + len(self.done)
        outcome = self.task.run(setting, own)
        if probe is not None:
            outcome = replace(outcome, facts={**outcome.facts, contract.TAG_PROBE: probe})
        self.done.append(_Trial(setting, outcome, own, probe))
        self.left -= setting.steps

    def _note(self, how: str, count: int, spec: StudySpec) -> None:
        best = min(map(_mean, _settings(self.done)))
        self.log.append(f"{count} {how} trials in {_summary(spec)}; best {best:.5g}")


def _hull(before: StudySpec, after: StudySpec) -> StudySpec:
    """Return the later study with ranges that contain the earlier ones: the sampler knows what is bad and needs no narrowing."""
    parameters = dict(after.parameters)
    for name, old in before.searched.items():
        new = parameters.get(name)
        if new is None or not (old.numeric and new.numeric) or new.low is None or new.high is None:
            continue
        low, high = min(old.low or 0.0, new.low), max(old.high or 0.0, new.high)
        if not (new.scale == "log" and low <= 0):
            parameters[name] = new.model_copy(update={"low": low, "high": high})
    return after.model_copy(update={"parameters": parameters})


def _same_space(spec: StudySpec, other: StudySpec) -> bool:
    """Whether both studies search the same values with the same length and schedule of training."""
    domains = [
        {n: p.domain.model_dump(exclude={"limits"}) for n, p in reopened(s).searched.items()} for s in (spec, other)
    ]
    lengths = [(_steps(s), dict(s.schedule or {})) for s in (spec, other)]
    return domains[0] == domains[1] and lengths[0] == lengths[1]


def _settings(done: Sequence[_Trial]) -> list[list[_Trial]]:
    """Return the trials of each setting."""
    groups: list[list[_Trial]] = []
    for trial in (t for t in done if t.probe is None):
        same = next((g for g in groups if g[0].setting == trial.setting), None)
        if same is None:
            groups.append([trial])
        else:
            same.append(trial)
    return groups


def _mean(trials: Sequence[_Trial]) -> float:
    """Return the mean cost, or infinity if a trial failed."""
    costs = [t.outcome.cost for t in trials]
    return math.fsum(costs) / len(costs) if all(map(math.isfinite, costs)) else math.inf


def _comparable(spec: StudySpec, done: Sequence[_Trial]) -> list[_Trial]:
    """Return the trials with the study's steps and schedule, wherever they lie."""
    schedule = dict(spec.schedule or {})
    return [t for t in done if t.probe is None and (t.setting.steps, t.setting.schedule) == (_steps(spec), schedule)]


def within(spec: StudySpec, done: Sequence[_Trial]) -> list[_Trial]:
    """Return the trials that lie in the space and have its steps and schedule: they are data of the study."""
    return [t for t in _comparable(spec, done) if _lies_in(spec, spec.completed(t.outcome.params))]


def _lies_in(spec: StudySpec, params: dict[str, Value]) -> bool:
    inside = all(p.allows(params[name]) for name, p in spec.searched.items() if name in params)
    return inside and spec.forbids(params) is None


def _covers(before: StudySpec, spec: StudySpec, params: dict[str, Value]) -> bool:
    """Whether an earlier space contains a trial of the study; it does not if it lacks a hyperparameter that the study searches."""
    return spec.searched.keys() <= before.parameters.keys() and _lies_in(before, spec.completed(params))


def _steps(spec: StudySpec) -> int:
    return spec.max_train_steps or 1


def _best(done: Sequence[_Trial]) -> _Trial:
    """Return a trial of the setting with the best mean. If settings were repeated, only these count: one run proves little."""
    groups = _settings(done)
    repeated = [g for g in groups if len(g) > 1 and math.isfinite(_mean(g))]
    return _leader(repeated or groups)


def _leader(groups: Sequence[Sequence[_Trial]]) -> _Trial:
    """Return a trial of the setting with the best mean; of equal ones the last, which the sampler drew from more knowledge."""
    return min(reversed(groups), key=_mean)[0]


def _summary(spec: StudySpec) -> str:
    parts = [
        f"{n} {p.low:g}..{p.high:g}" if p.numeric else f"{n} {list(p.options)}"
        for n, p in spec.searched.items()
    ]  # fmt: skip
    return f"{', '.join(parts) or 'one setting'}, {_steps(spec)} steps" + (
        f", {dict(spec.schedule)}" if spec.schedule else ""
    )
