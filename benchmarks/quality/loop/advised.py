"""This project's loop as a contender: three rounds, each in the space that the analysis of the rounds before it wrote.

Nothing is chosen here: the space, the number of steps, the schedule and what is searched are those of the first study of the plan.
Only the number of trials is the benchmark's, a third of what is left of the budget in steps, so that training longer means
fewer trials. The last round is drawn by results, as the playbook exploits, whatever the plan's sampler; its last few trials repeat
what leads with other seeds, as the playbook asks before anything is adopted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from advisor import contract
from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.engine.rule import Rule
from advisor.history.pool import lies_in
from advisor.model.space import Value
from advisor.model.spec import Sampler, StudySpec
from advisor.planning import plan
from advisor.planning.designs.exploit import reopened
from advisor.planning.sampling.adaptive import Observation, suggest
from advisor.planning.sampling.halton import sample
from loop.contenders import Chosen
from loop.record import study
from loop.task import Outcome, Setting, Task

ROUNDS = 3
REPEATS = 4
"""Trials of the last round that repeat what leads; fewer where the round has fewer than three times as many."""


@dataclass(frozen=True)
class _Trial:
    setting: Setting
    outcome: Outcome
    seed: int
    probe: str | None = None
    """What study of another kind it was part of, such as one of warmups: it is no candidate."""


@lru_cache(maxsize=1)
def _rules() -> tuple[Rule, ...]:
    return tuple(load_rules())


def advised(task: Task, seed: int) -> Chosen:
    """Three rounds."""
    spec = space = task.start.model_copy(update={"sampler": Sampler(seed=seed)})
    left = task.trials * _steps(spec)
    done: list[_Trial] = []
    told: list[str] = []
    for number in range(1, ROUNDS + 1):
        last = number == ROUNDS
        while last and spec.baseline is not None:
            spec = spec.baseline  # no round is left to use what it would find
        if last:
            spec, space = reopened(spec), reopened(space)
        if spec.searched and spec.probe is None:
            space = spec
        before, share = len(done), left // (ROUNDS - number + 1)
        _round(task, space if last else spec, done, share, seed, last)
        left -= sum(t.setting.steps for t in done[before:])
        told.append(f"{len(done) - before} trials in {_told(spec)}; best {min(map(_mean, _settings(done))):.5g}")
        if not last:
            probed = done[before:] if spec.probe is not None else None
            spec = _next(task, spec if probed else space, probed or within(space, done), seed + number, told)
    best = _best(done)
    return Chosen(best.setting, best.outcome.cost, len(done), sum(t.setting.steps for t in done), tuple(told))


def _round(task: Task, spec: StudySpec, done: list[_Trial], budget: int, seed: int, last: bool) -> None:
    """Run a study for at most so many steps; one that is no search of a space has a number of trials of its own."""
    affordable = budget // _steps(spec)
    if not spec.searched:
        params = {n: p.value for n, p in spec.parameters.items() if p.value is not None}
        for _ in range(min(spec.seeds or 1, affordable)):
            _run(task, spec, params, done, seed)
    elif last:
        repeats = min(REPEATS, affordable // 3)
        _exploit(task, spec, done, affordable - repeats, seed)
        _confirm(task, done, repeats * _steps(spec), seed)
    elif spec.sampler.kind == "adaptive":
        _exploit(task, spec, done, affordable, seed)
    else:
        own = (spec.trials or 1) if spec.probe is not None else affordable
        for params in sample(spec, min(own, affordable)):
            _run(task, spec, params, done, seed)


def _exploit(task: Task, spec: StudySpec, done: list[_Trial], count: int, seed: int) -> None:
    adaptive = spec.model_copy(update={"sampler": Sampler(kind="adaptive", seed=spec.sampler.seed)})
    for _ in range(count):
        history = [
            Observation(spec.completed(t.outcome.params), t.outcome.cost if math.isfinite(t.outcome.cost) else None)
            for t in within(spec, done)
        ]
        _run(task, spec, suggest(adaptive, history)[0], done, seed)


def _confirm(task: Task, done: list[_Trial], budget: int, seed: int) -> None:
    """Repeat what leads by the mean of its runs, which may be another setting after each of them."""
    while budget >= (leader := min(_settings(done), key=_mean)[0].setting).steps:
        own = 1000 * seed + len(done)
        done.append(_Trial(leader, task.run(leader, own), own))
        budget -= leader.steps


def _settings(done: Sequence[_Trial]) -> list[list[_Trial]]:
    """The trials of each setting."""
    groups: list[list[_Trial]] = []
    for trial in (t for t in done if t.probe is None):
        same = next((g for g in groups if g[0].setting == trial.setting), None)
        if same is None:
            groups.append([trial])
        else:
            same.append(trial)
    return groups


def _mean(trials: Sequence[_Trial]) -> float:
    """Mean cost; infinite where one failed."""
    costs = [t.outcome.cost for t in trials]
    return math.fsum(costs) / len(costs) if all(map(math.isfinite, costs)) else math.inf


def _run(task: Task, spec: StudySpec, params: dict[str, Value], done: list[_Trial], seed: int) -> None:
    setting, own = Setting(params, _steps(spec), dict(spec.schedule or {})), 1000 * seed + len(done)
    outcome = task.run(setting, own)
    if spec.probe is not None:
        outcome = replace(outcome, facts={**outcome.facts, contract.TAG_PROBE: spec.probe})
    done.append(_Trial(setting, outcome, own, spec.probe))


def _next(task: Task, spec: StudySpec, counted: Sequence[_Trial], seed: int, told: list[str]) -> StudySpec:
    """The first study of the plan for what was run so far; the same space again where it asks for none."""
    made = study(spec, [t.outcome for t in counted], [t.seed for t in counted])
    verdicts = judge(made, _rules())
    fired = [f"{f.rule}({f.subject or ''}{' ' + f.side if f.side else ''})" for v in verdicts for f in v.findings]
    specs = plan(made, verdicts).specs
    told.append(f"{', '.join(fired) or 'nothing fired'} → {specs[0].goal if specs else 'no study'}")
    following = specs[0] if specs else spec.baseline or spec
    return task.legal(following.model_copy(update={"sampler": Sampler(kind=following.sampler.kind, seed=seed)}))


def within(spec: StudySpec, done: Sequence[_Trial]) -> list[_Trial]:
    """The trials so far that lie in the space and were trained as it says: they count as its data."""
    return [t for t in done if t.probe is None and t.setting.steps == _steps(spec) and _lies_in(spec, t)]


def _lies_in(spec: StudySpec, trial: _Trial) -> bool:
    same = trial.setting.schedule == dict(spec.schedule or {})
    return same and lies_in(spec, spec.completed(trial.outcome.params))


def _steps(spec: StudySpec) -> int:
    return spec.max_train_steps or 1


def _best(done: Sequence[_Trial]) -> _Trial:
    """A trial of the setting with the best mean; of those that were repeated where any were, as one lucky run proves nothing."""
    groups = _settings(done)
    repeated = [g for g in groups if len(g) > 1 and math.isfinite(_mean(g))]
    return min(repeated or groups, key=_mean)[0]


def _told(spec: StudySpec) -> str:
    """The space in a line."""
    parts = [
        f"{n} {p.low:g}..{p.high:g}" if p.numeric else f"{n} {list(p.options)}"
        for n, p in spec.searched.items()
    ]  # fmt: skip
    return f"{', '.join(parts) or 'one setting'}, {_steps(spec)} steps" + (
        f", {dict(spec.schedule)}" if spec.schedule else ""
    )
