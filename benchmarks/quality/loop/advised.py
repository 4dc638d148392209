"""This project's loop as a contender: three rounds, each with the first study that the analysis of the earlier rounds planned.

The plan determines the space, the number of steps, the schedule and the hyperparameters to search. The benchmark determines the
number of trials from an equal share of the remaining training steps, so longer trainings mean fewer trials. The last round always
uses the adaptive sampler, as the playbook exploits; its last trials repeat the leading setting with other seeds, as the playbook
asks before a setting is adopted.
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
"""Trials of the last round that repeat the leading setting; at most a third of the round."""


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
    spec = space = task.start.model_copy(update={"sampler": Sampler(seed=seed)})
    left = task.trials * _steps(spec)
    done: list[_Trial] = []
    log: list[str] = []
    for number in range(1, ROUNDS + 1):
        last = number == ROUNDS
        while last and spec.baseline is not None:
            spec = spec.baseline  # no round is left to use the result of the special study
        if last:
            spec, space = reopened(spec), reopened(space)
        if spec.searched and spec.probe is None:
            space = spec
        before, share = len(done), left // (ROUNDS - number + 1)
        _round(task, space if last else spec, done, share, seed, last)
        left -= sum(t.setting.steps for t in done[before:])
        log.append(f"{len(done) - before} trials in {_summary(spec)}; best {min(map(_mean, _settings(done))):.5g}")
        if not last:
            probed = done[before:] if spec.probe is not None else None
            spec = _next(task, spec if probed else space, probed or within(space, done), seed + number, log)
    best = _best(done)
    return Chosen(best.setting, best.outcome.cost, len(done), sum(t.setting.steps for t in done), tuple(log))


def _round(task: Task, spec: StudySpec, done: list[_Trial], budget: int, seed: int, last: bool) -> None:
    """Run a study within a budget of training steps; a study without a search has its own number of trials."""
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
        wanted = (spec.trials or 1) if spec.probe is not None else affordable
        for params in sample(spec, min(wanted, affordable)):
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
    """Repeat the setting with the best mean, which may change after each run."""
    while budget >= (leader := min(_settings(done), key=_mean)[0].setting).steps:
        own = 1000 * seed + len(done)
        done.append(_Trial(leader, task.run(leader, own), own))
        budget -= leader.steps


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


def _run(task: Task, spec: StudySpec, params: dict[str, Value], done: list[_Trial], seed: int) -> None:
    setting, own = Setting(params, _steps(spec), dict(spec.schedule or {})), 1000 * seed + len(done)
    outcome = task.run(setting, own)
    if spec.probe is not None:
        outcome = replace(outcome, facts={**outcome.facts, contract.TAG_PROBE: spec.probe})
    done.append(_Trial(setting, outcome, own, spec.probe))


def _next(task: Task, spec: StudySpec, counted: Sequence[_Trial], seed: int, log: list[str]) -> StudySpec:
    """Return the first study that the analysis plans, or the same study if it plans none."""
    assembled = study(spec, [t.outcome for t in counted], [t.seed for t in counted])
    verdicts = judge(assembled, _rules())
    fired = [f"{f.rule}({f.subject or ''}{' ' + f.side if f.side else ''})" for v in verdicts for f in v.findings]
    specs = plan(assembled, verdicts).specs
    log.append(f"{', '.join(fired) or 'nothing fired'} → {specs[0].goal if specs else 'no study'}")
    following = specs[0] if specs else spec.baseline or spec
    return task.legal(following.model_copy(update={"sampler": Sampler(kind=following.sampler.kind, seed=seed)}))


def within(spec: StudySpec, done: Sequence[_Trial]) -> list[_Trial]:
    """Return the trials that lie in the space and have its steps and schedule: they are data of the study."""
    return [t for t in done if t.probe is None and t.setting.steps == _steps(spec) and _lies_in(spec, t)]


def _lies_in(spec: StudySpec, trial: _Trial) -> bool:
    same = trial.setting.schedule == dict(spec.schedule or {})
    params = spec.completed(trial.outcome.params)
    inside = all(p.allows(params[name]) for name, p in spec.searched.items() if name in params)
    return same and inside and spec.forbids(params) is None


def _steps(spec: StudySpec) -> int:
    return spec.max_train_steps or 1


def _best(done: Sequence[_Trial]) -> _Trial:
    """Return a trial of the setting with the best mean. If settings were repeated, only these count: one run proves little."""
    groups = _settings(done)
    repeated = [g for g in groups if len(g) > 1 and math.isfinite(_mean(g))]
    return min(repeated or groups, key=_mean)[0]


def _summary(spec: StudySpec) -> str:
    parts = [
        f"{n} {p.low:g}..{p.high:g}" if p.numeric else f"{n} {list(p.options)}"
        for n, p in spec.searched.items()
    ]  # fmt: skip
    return f"{', '.join(parts) or 'one setting'}, {_steps(spec)} steps" + (
        f", {dict(spec.schedule)}" if spec.schedule else ""
    )
