"""Replays the trials of an ended study with several early-stopping methods, to judge if early stopping would have been safe."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from advisor.computed.decision import repeats
from advisor.computed.pipeline import ties
from advisor.computed.steps import schedules
from advisor.engine.guard.policy import Policy, TrialProgress
from advisor.engine.guard.replay import Stopper, not_finite, replay_trials
from advisor.engine.guard.verdicts import MAX_RELATIVE_LENGTH_DIFFERENCE, MAX_RELATIVE_LENGTH_EXCESS
from advisor.model.frozen import FrozenModel
from advisor.model.message import Message, MessageField, Percent, say
from advisor.model.study import Study, Trial

MIN_TRIALS = 8
"""Minimum number of complete trials to replay a study."""
PROTECTED_BEST_TRIALS = 5
"""Number of best trials that an early-stopping method should not stop."""
MIN_REPLAYED_TRIAL_SHARE = 0.9
"""Minimum share of the trained trials that can be replayed; if more trials are missing, the result of the replay is unreliable."""
MAX_EVALUATIONS_PER_STUDY = 20_000
"""Maximum number of evaluations of the replayed trials, about two seconds."""
MAX_TRIAL_ORDERS = 5
"""Maximum number of orders to replay, the actual and random ones: a method compares a trial with earlier ones."""
MAX_REPLAYED_EVALUATIONS = 50_000
"""Maximum number of evaluations to replay, summed over all orders."""
PRUNING_WARMUP_SHARES = (0.25, 0.5, 0.75)
"""The median pruner stops no trial before this share of the training; we replay it once for each share."""
ETA = 3
"""Reduction factor of successive halving."""
PRUNING_STARTUP_TRIALS = 5
"""Complete trials before the median pruner stops one; Optuna's default."""


class StoppingOutcome(FrozenModel):
    """The steps that one early-stopping method would have saved, and the number of best trials that it would have stopped."""

    name: str
    saved: float
    """Share of all training steps; median over the replayed orders."""
    kept: bool
    """True if the best trial, or one that equals it within seed noise, would have been kept."""
    lost: int
    """Number of the best trials that the method would have stopped, in the worst order."""


class Hindsight(FrozenModel):
    """The outcome of replaying a study, or the reason why it cannot be replayed."""

    reason: str = ""
    """Why the study cannot be replayed, as a clause; empty if it was."""
    trials: int = 0
    workers: int = 0
    """Number of trials that trained at the same time."""
    best: int = 0
    """Number of best trials among which the replay counts the trials that each method would have stopped."""
    orders: int = 0
    guard: StoppingOutcome | None = None
    others: tuple[StoppingOutcome, ...] = ()
    """Outcomes of other early-stopping methods, to compare with ours."""
    message: MessageField = Message(())
    """Result of the replay in two or three sentences; empty if the study cannot be replayed."""


def hindsight(study: Study) -> Hindsight | None:
    """Return the effects that early stopping would have had on the study; None without curves."""
    policy = Policy()
    if study.probe is not None or not any(len(study.cost_curve(t)) > 1 for t in study.trials):
        return None
    found = _trials_to_replay(study, policy)
    if not isinstance(found, str) and (tied := ties.reason_settings_tie(study)) is not None:
        found = f"the results do not rank the settings: {tied}"
    return Hindsight(reason=found) if isinstance(found, str) else _replay_guard(study, policy, found)


# --- which trials can be replayed -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ReplayedTrial:
    trial: Trial
    progress: TrialProgress
    whole: bool  # it trained to its planned end
    began: float
    ended: float


def _trials_to_replay(study: Study, policy: Policy) -> list[_ReplayedTrial] | str:
    """Return the trials to replay, in the order of their start, or the reason why the study cannot be replayed."""
    own = [t for t in study.trials if t.round is None and t.status != "no_data"]
    if any(t.status == "running" for t in own):
        return "trials still run"
    trained = [t for t in own if len(study.cost_curve(t))]
    kinds = Counter((study.planned_steps(t), schedules.read_schedule(study, t).logged_kind) for t in trained if _is_complete(t))
    if not kinds:
        return "no trial is complete"
    length, kind = kinds.most_common(1)[0][0]
    if not math.isfinite(length):
        return "the planned length of the trials is unknown"
    runs = []
    for t in trained:  # without those that were cut short, because the rest of their curve is unknown
        curve, own_length = study.cost_curve(t), study.planned_steps(t)
        alike = abs(own_length - length) <= MAX_RELATIVE_LENGTH_DIFFERENCE * length
        ended = _is_complete(t) or t.status in ("diverged", "infeasible")
        if alike and ended and schedules.read_schedule(study, t).logged_kind == kind:
            progress = TrialProgress(curve.steps, curve.values, own_length)
            began, end = (math.nan if time is None else time for time in (t.started, t.ended))
            runs.append(_ReplayedTrial(t, progress, _is_complete(t) and math.isfinite(progress.best[-1]), began, end))
    return _reason_against_replay(policy, runs, len(trained)) or sorted(runs, key=lambda r: (r.began, r.trial.index))


def _is_complete(trial: Trial) -> bool:
    return trial.status in ("complete", "not_learned")


def _reason_against_replay(policy: Policy, runs: Sequence[_ReplayedTrial], trained: int) -> str:
    """Return the reason why these trials cannot be replayed; empty if they can."""
    whole = [r.progress for r in runs if r.whole]
    if len(whole) < MIN_TRIALS or not policy.has_enough_evaluations(whole):
        return f"fewer than {MIN_TRIALS} complete trials have {policy.evaluations} evaluations and the same length and schedule"
    if len(runs) < MIN_REPLAYED_TRIAL_SHARE * trained:
        return f"{trained - len(runs)} of {trained} trials were cut short or have another length or schedule"
    if any(p.steps[-1] > (1 + MAX_RELATIVE_LENGTH_EXCESS) * p.length for p in whole):
        return "some trials trained beyond their planned length"
    if not all(r.began < r.ended for r in runs):
        return "the times at which trials began and ended are unknown"
    if sum(len(r.progress.steps) for r in runs) > MAX_EVALUATIONS_PER_STUDY:
        return f"the trials have more than {MAX_EVALUATIONS_PER_STUDY:,} evaluations"
    return ""


def mean_concurrency(times: Sequence[tuple[float, float]]) -> int:
    """Return the mean number of overlapping (start, end) intervals while there is any; at least 1."""
    busy, until = 0.0, -math.inf
    for began, ended in sorted(times):
        busy += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return max(1, round(sum(ended - began for began, ended in times) / busy))


# --- stoppers -------------------------------------------------------------------------------------------------------------------


def median_stopper(warmup: float) -> Stopper:
    """Return a stopper like `optuna.pruners.MedianPruner`: from the share `warmup` of the training on, it stops a trial whose
    best cost is above the median cost of the complete trials at the same evaluation."""

    def stops(trial: TrialProgress, at: int, completed: Sequence[TrialProgress]) -> bool:
        if len(completed) < PRUNING_STARTUP_TRIALS or trial.steps[at] < warmup * trial.length:
            return False
        known = [cost for t in completed if at < len(t.costs) and not math.isnan(cost := t.costs[at])]
        return bool(known) and not trial.best[at] <= statistics.median(known)

    return stops


def halving_stopper(eta: int) -> Stopper:
    """Return a stopper like `optuna.pruners.SuccessiveHalvingPruner`, for one replay: at each rung, 1 / eta^3, 1 / eta^2 and 1
    / eta of the training, a trial continues if its cost is among the best 1 / eta of those that have reached the rung."""
    rungs = [eta**k for k in (3, 2, 1)]
    costs: list[list[float]] = [[] for _ in rungs]
    reached: dict[int, int] = {}

    def stops(trial: TrialProgress, at: int, _: Sequence[TrialProgress]) -> bool:
        cost = float(trial.costs[at])
        while (rung := reached.get(id(trial), 0)) < len(rungs) and trial.steps[at] >= trial.length / rungs[rung]:
            if math.isnan(cost):
                return True
            costs[rung].append(cost)
            if cost > sorted(costs[rung])[max(0, len(costs[rung]) // eta - 1)]:
                return True
            reached[id(trial)] = rung + 1
        return False

    return stops


def _guard_stopper_for_trials(policy: Policy, runs: Sequence[_ReplayedTrial]) -> Stopper:
    """Return a stopper that decides as `advisor run --stop-doomed`, also for settings with several seeds."""
    settings = [r.trial.params for r in runs]
    repeated = {id(r.progress) for r in runs if settings.count(r.trial.params) > 1}

    def stops(trial: TrialProgress, at: int, completed: Sequence[TrialProgress]) -> bool:
        doomed = id(trial) not in repeated and policy.bounds_if_doomed(trial, at, completed) is not None
        return doomed or not_finite(trial, at)

    return stops


def _restrict_to_complete_siblings(whole: set[int], stopper: Stopper) -> Stopper:
    """Return a stopper that calls `stopper` only with trials that trained to their end: failed ones are no siblings."""
    siblings: list[TrialProgress] = []
    seen = 0

    def stops(trial: TrialProgress, at: int, completed: Sequence[TrialProgress]) -> bool:
        nonlocal seen
        siblings.extend(t for t in completed[seen:] if id(t) in whole)
        seen = len(completed)
        return stopper(trial, at, siblings)

    return stops


# --- the result -----------------------------------------------------------------------------------------------------------------


def _replay_guard(study: Study, policy: Policy, runs: Sequence[_ReplayedTrial]) -> Hindsight:
    trials = [r.progress for r in runs]
    whole = {id(r.progress) for r in runs if r.whole}
    workers = mean_concurrency([(r.began, r.ended) for r in runs])
    ways = {"guard": lambda: _guard_stopper_for_trials(policy, runs), **pruning_stoppers()}
    variance = repeats.variance_between_seeds([s for s in repeats.full_length_settings(study) if len(s.trials) > 1])
    guard, *others = replay_outcomes(trials, whole, ways, workers, noise=variance[0] if variance is not None else 0.0)
    best, orders = min(PROTECTED_BEST_TRIALS, len(whole)), len(_trial_orders(trials))
    return Hindsight(
        trials=len(runs),
        workers=workers,
        best=best,
        orders=orders,
        guard=guard,
        others=tuple(others),
        message=_hindsight_message(guard, others, best, orders),
    )


def pruning_stoppers() -> dict[str, Callable[[], Stopper]]:
    """Return {name: factory} of the early-stopping methods with which the guard is compared."""
    found: dict[str, Callable[[], Stopper]] = {
        f"median pruning from {Percent(share)} of the training": partial(median_stopper, share)
        for share in PRUNING_WARMUP_SHARES
    }
    return {**found, f"successive halving (eta {ETA})": partial(halving_stopper, ETA)}


def replay_outcomes(
    trials: Sequence[TrialProgress], whole: set[int], ways: Mapping[str, Callable[[], Stopper]], workers: int, *, noise: float
) -> list[StoppingOutcome]:
    """Replay each early-stopping method. trials: in the order of their start; whole: ids of those that trained to their end;
    ways: {name: factory}; noise: maximum difference between two results that count as equal."""
    ranked = sorted((t for t in trials if id(t) in whole), key=lambda t: t.best[-1])
    best, limit = ranked[:PROTECTED_BEST_TRIALS], ranked[0].best[-1] + noise
    winners = [t for t in ranked if t.best[-1] <= limit]
    steps = sum(float(t.steps[-1]) for t in trials)
    orders = _trial_orders(trials)

    def ends(make: Callable[[], Stopper], order: Sequence[TrialProgress]) -> dict[TrialProgress, int]:
        return dict(zip(order, replay_trials(order, _restrict_to_complete_siblings(whole, make()), workers), strict=True))

    def outcome(name: str, replays: Sequence[Mapping[TrialProgress, int]]) -> StoppingOutcome:
        saved = [sum(float(t.steps[-1] - t.steps[end - 1]) for t, end in found.items()) for found in replays]
        finished = [{t for t, end in found.items() if end == len(t.steps)} for found in replays]
        return StoppingOutcome(
            name=name,
            saved=statistics.median(saved) / steps,
            kept=not finished[0].isdisjoint(winners),
            lost=max(len(best) - len(those.intersection(best)) for those in finished),
        )

    return [outcome(name, [ends(make, order) for order in orders]) for name, make in ways.items()]


def _trial_orders(trials: Sequence[TrialProgress]) -> list[Sequence[TrialProgress]]:
    count = MAX_REPLAYED_EVALUATIONS // sum(len(t.steps) for t in trials)
    rng = np.random.default_rng(0)
    others = [[trials[i] for i in rng.permutation(len(trials))] for _ in range(min(count, MAX_TRIAL_ORDERS) - 1)]
    return [trials, *others]


def _hindsight_message(guard: StoppingOutcome, others: Sequence[StoppingOutcome], best: int, orders: int) -> Message:
    result = " and would have kept the best result" if guard.kept else ", but would have lost the best result"
    if guard.kept and guard.lost:
        worst = f" in the worst of {orders} orders of the trials" if orders > 1 else ""
        result += f", but would have lost {guard.lost} of the {best} best trials{worst}"
    first = say(
        "In this study, the guard (`advisor run --stop-doomed`) would have saved {saved} of all steps{result}.",
        saved=Percent(guard.saved),
        result=result,
    )
    if not guard.saved:
        first = say("In this study, the guard (`advisor run --stop-doomed`) would have stopped no trial early.")
    return say("{first} {second}", first=first, second=_pruning_message(others, best, orders))


def _pruning_message(others: Sequence[StoppingOutcome], best: int, orders: int) -> Message:
    stopping, losing = [o for o in others if o.lost], [o for o in others if not o.kept]
    if losing:
        return say("{losing} of {n} pruning methods would have lost the best result.", losing=len(losing), n=len(others))
    if stopping:
        return say(
            "Pruning would have kept the best result, but {stopping} of {n} ways of pruning would have stopped other trials among "
            "the best {best}{orders}.",
            stopping=len(stopping),
            n=len(others),
            best=best,
            orders=f", in the worst of {orders} orders of the trials" if orders > 1 else "",
        )
    return say(
        "Median pruning and successive halving would have kept all {best} best trials{orders}.",
        best=best,
        orders=f" in each of {orders} orders of the trials" if orders > 1 else "",
    )
