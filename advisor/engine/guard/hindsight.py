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
from advisor.engine.guard.replay import Stopper, is_not_finite, replay_trials
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
"""Maximum number of evaluations of the replayed trials; their replay takes about two seconds."""
MAX_TRIAL_ORDERS = 5
"""Maximum number of orders of the trials to replay: the actual order and random ones. The order matters, because early-stopping
methods compare a trial with earlier trials."""
MAX_REPLAYED_EVALUATIONS = 50_000
"""Maximum number of evaluations to replay, summed over all orders."""
PRUNING_WARMUP_SHARES = (0.25, 0.5, 0.75)
"""Shares of the training before which the median pruner stops no trial; we replay the study once for each share."""
ETA = 3
"""Reduction factor of successive halving."""
PRUNING_STARTUP_TRIALS = 5
"""Number of trials that must be complete before the median pruner stops any trial; Optuna's default."""


class StoppingOutcome(FrozenModel):
    """The steps that one early-stopping method would have saved, and the number of best trials that it would have stopped."""

    name: str
    saved: float
    """Saved share of all training steps; median over the replayed orders."""
    kept: bool
    """True if the method would have kept the best trial, or a trial that equals the best one within seed noise."""
    lost: int
    """Number of the best trials that the method would have stopped, in the worst order."""


class Hindsight(FrozenModel):
    """The outcome of replaying a study, or the reason why it cannot be replayed."""

    reason: str = ""
    """Clause that says why the study cannot be replayed; empty if it was replayed."""
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
    """Return the effects that early stopping would have had on the study; None if the study has no curves."""
    policy = Policy()
    if study.probe is not None or not any(len(study.cost_curve(t)) > 1 for t in study.trials):
        return None
    runs = _trials_to_replay(study, policy)
    if isinstance(runs, str):
        return Hindsight(reason=runs)
    if (tied := ties.reason_settings_tie(study)) is not None:
        return Hindsight(reason=f"the results do not rank the settings: {tied}")
    return _replay_guard(study, policy, runs)


@dataclass(frozen=True)
class _ReplayedTrial:
    trial: Trial
    progress: TrialProgress
    is_complete: bool  # it trained to its planned end
    start_time: float
    end_time: float


def _trials_to_replay(study: Study, policy: Policy) -> list[_ReplayedTrial] | str:
    """Return the trials to replay, in the order of their start, or the reason why the study cannot be replayed."""
    own = [t for t in study.trials if t.round is None and t.status != "no_data"]
    if any(t.status == "running" for t in own):
        return "trials still run"
    trained = [t for t in own if len(study.cost_curve(t))]
    complete = [t for t in trained if _is_complete(t)]
    kinds = Counter((study.planned_steps(t), schedules.read_schedule(study, t).logged_kind) for t in complete)
    if not kinds:
        return "no trial is complete"
    length, kind = kinds.most_common(1)[0][0]
    if not math.isfinite(length):
        return "the planned length of the trials is unknown"
    runs = []
    for t in trained:  # without those that were cut short, because the rest of their curve is unknown
        curve, own_length = study.cost_curve(t), study.planned_steps(t)
        has_usual_length = abs(own_length - length) <= MAX_RELATIVE_LENGTH_DIFFERENCE * length
        has_final_result = _is_complete(t) or t.status in ("diverged", "infeasible")
        if has_usual_length and has_final_result and schedules.read_schedule(study, t).logged_kind == kind:
            progress = TrialProgress(curve.steps, curve.values, own_length)
            began, end = (math.nan if time is None else time for time in (t.started, t.ended))
            is_complete = _is_complete(t) and math.isfinite(progress.best[-1])
            runs.append(_ReplayedTrial(t, progress, is_complete, began, end))
    runs.sort(key=lambda r: (r.start_time, r.trial.index))
    return _reason_against_replay(policy, runs, len(trained)) or runs


def _is_complete(trial: Trial) -> bool:
    return trial.status in ("complete", "not_learned")


def _reason_against_replay(policy: Policy, runs: Sequence[_ReplayedTrial], trained_count: int) -> str:
    complete_progress = [r.progress for r in runs if r.is_complete]
    if len(complete_progress) < MIN_TRIALS or not policy.has_enough_evaluations(complete_progress):
        return f"fewer than {MIN_TRIALS} complete trials have {policy.evaluations} evaluations and the same length and schedule"
    if len(runs) < MIN_REPLAYED_TRIAL_SHARE * trained_count:
        return f"{trained_count - len(runs)} of {trained_count} trials were cut short or have another length or schedule"
    if any(p.steps[-1] > (1 + MAX_RELATIVE_LENGTH_EXCESS) * p.length for p in complete_progress):
        return "some trials trained beyond their planned length"
    if not all(r.start_time < r.end_time for r in runs):
        return "the times at which trials began and ended are unknown"
    if sum(len(r.progress.steps) for r in runs) > MAX_EVALUATIONS_PER_STUDY:
        return f"the trials have more than {MAX_EVALUATIONS_PER_STUDY:,} evaluations"
    return ""


def mean_concurrency(times: Sequence[tuple[float, float]]) -> int:
    """Return the mean number of trials that train at the same time, at least 1, without pauses. times: (start, end)."""
    busy_time, busy_until = 0.0, -math.inf
    for began, ended in sorted(times):
        busy_time += max(0.0, ended - max(began, busy_until))
        busy_until = max(busy_until, ended)
    return max(1, round(sum(ended - began for began, ended in times) / busy_time))


def median_stopper(warmup: float) -> Stopper:
    """Return a stopper like `optuna.pruners.MedianPruner`. After the share `warmup` of the training, it stops a trial whose best
    cost is above the median cost of the complete trials at the same evaluation."""

    def should_stop(trial: TrialProgress, at: int, completed: Sequence[TrialProgress]) -> bool:
        if len(completed) < PRUNING_STARTUP_TRIALS or trial.steps[at] < warmup * trial.length:
            return False
        known_costs = [cost for t in completed if at < len(t.costs) and not math.isnan(cost := t.costs[at])]
        return bool(known_costs) and not trial.best[at] <= statistics.median(known_costs)

    return should_stop


def halving_stopper(eta: int) -> Stopper:
    """Return a stopper like `optuna.pruners.SuccessiveHalvingPruner`, for one replay. The rungs are at 1 / eta^3, 1 / eta^2 and
    1 / eta of the training. A trial continues beyond a rung if its cost is among the best 1 / eta at this rung."""
    divisors = [eta**k for k in (3, 2, 1)]
    rung_costs: list[list[float]] = [[] for _ in divisors]
    reached: dict[int, int] = {}

    def should_stop(trial: TrialProgress, at: int, _: Sequence[TrialProgress]) -> bool:
        cost = float(trial.costs[at])
        step = trial.steps[at]
        while (rung := reached.get(id(trial), 0)) < len(divisors) and step >= trial.length / divisors[rung]:
            if math.isnan(cost):
                return True
            rung_costs[rung].append(cost)
            if cost > sorted(rung_costs[rung])[max(0, len(rung_costs[rung]) // eta - 1)]:
                return True
            reached[id(trial)] = rung + 1
        return False

    return should_stop


def _guard_stopper_for_trials(policy: Policy, runs: Sequence[_ReplayedTrial]) -> Stopper:
    """Return a stopper that decides as `advisor run --stop-doomed` does; it never calls a setting with several seeds doomed."""
    params_of_trials = [r.trial.params for r in runs]
    repeated_ids = {id(r.progress) for r in runs if params_of_trials.count(r.trial.params) > 1}

    def should_stop(trial: TrialProgress, at: int, completed: Sequence[TrialProgress]) -> bool:
        is_doomed = id(trial) not in repeated_ids and policy.bounds_if_doomed(trial, at, completed) is not None
        return is_doomed or is_not_finite(trial, at)

    return should_stop


def _restrict_to_complete_siblings(complete_ids: set[int], stopper: Stopper) -> Stopper:
    """Return a stopper that passes to `stopper` only the trials that trained to their end."""
    complete_siblings: list[TrialProgress] = []
    seen_count = 0

    def should_stop(trial: TrialProgress, at: int, completed: Sequence[TrialProgress]) -> bool:
        nonlocal seen_count
        complete_siblings.extend(t for t in completed[seen_count:] if id(t) in complete_ids)
        seen_count = len(completed)
        return stopper(trial, at, complete_siblings)

    return should_stop


def _replay_guard(study: Study, policy: Policy, runs: Sequence[_ReplayedTrial]) -> Hindsight:
    progress = [r.progress for r in runs]
    complete_ids = {id(r.progress) for r in runs if r.is_complete}
    workers = mean_concurrency([(r.start_time, r.end_time) for r in runs])
    stoppers = {"guard": lambda: _guard_stopper_for_trials(policy, runs), **pruning_stoppers()}
    seed_variance = repeats.variance_between_seeds([s for s in repeats.full_length_settings(study) if len(s.trials) > 1])
    noise = 0.0 if seed_variance is None else seed_variance[0]
    guard, *others = replay_outcomes(progress, complete_ids, stoppers, workers, noise=noise)
    best, orders = min(PROTECTED_BEST_TRIALS, len(complete_ids)), len(_trial_orders(progress))
    message, trials = _hindsight_message(guard, others, best, orders), len(runs)
    return Hindsight(
        trials=trials, workers=workers, best=best, orders=orders, guard=guard, others=tuple(others), message=message
    )


def pruning_stoppers() -> dict[str, Callable[[], Stopper]]:
    """Return {name: factory} of the early-stopping methods with which the guard is compared."""
    median_factories: dict[str, Callable[[], Stopper]] = {
        f"median pruning from {Percent(share)} of the training": partial(median_stopper, share)
        for share in PRUNING_WARMUP_SHARES
    }
    return {**median_factories, f"successive halving (eta {ETA})": partial(halving_stopper, ETA)}


def replay_outcomes(
    trials: Sequence[TrialProgress], whole: set[int], ways: Mapping[str, Callable[[], Stopper]], workers: int, *, noise: float
) -> list[StoppingOutcome]:
    """Replay each early-stopping method. trials: in the order of their start. whole: `id()` of each trial that trained to its end.
    ways: {name of the method: factory of its stopper}. noise: maximum difference between two results that count as equal."""
    best_first = sorted((t for t in trials if id(t) in whole), key=lambda t: t.best[-1])
    best, limit = best_first[:PROTECTED_BEST_TRIALS], best_first[0].best[-1] + noise
    equally_best_trials = [t for t in best_first if t.best[-1] <= limit]
    total_steps = sum(float(t.steps[-1]) for t in trials)
    trial_orders = _trial_orders(trials)

    def end_evaluations(make: Callable[[], Stopper], order: Sequence[TrialProgress]) -> dict[TrialProgress, int]:
        return dict(zip(order, replay_trials(order, _restrict_to_complete_siblings(whole, make()), workers), strict=True))

    def stopping_outcome(name: str, replays: Sequence[Mapping[TrialProgress, int]]) -> StoppingOutcome:
        saved_steps = [sum(float(t.steps[-1] - t.steps[end - 1]) for t, end in found.items()) for found in replays]
        finished_trials = [{t for t, end in found.items() if end == len(t.steps)} for found in replays]
        return StoppingOutcome(
            name=name,
            saved=statistics.median(saved_steps) / total_steps,
            kept=not finished_trials[0].isdisjoint(equally_best_trials),
            lost=max(len(best) - len(those.intersection(best)) for those in finished_trials),
        )

    return [stopping_outcome(name, [end_evaluations(make, order) for order in trial_orders]) for name, make in ways.items()]


def _trial_orders(trials: Sequence[TrialProgress]) -> list[Sequence[TrialProgress]]:
    max_orders = MAX_REPLAYED_EVALUATIONS // sum(len(t.steps) for t in trials)
    rng = np.random.default_rng(0)
    random_orders = [[trials[i] for i in rng.permutation(len(trials))] for _ in range(min(max_orders, MAX_TRIAL_ORDERS) - 1)]
    return [trials, *random_orders]


def _hindsight_message(guard: StoppingOutcome, others: Sequence[StoppingOutcome], best: int, orders: int) -> Message:
    result_text = " and would have kept the best result" if guard.kept else ", but would have lost the best result"
    if guard.kept and guard.lost:
        orders_text = f" in the worst of {orders} orders of the trials" if orders > 1 else ""
        result_text += f", but would have lost {guard.lost} of the {best} best trials{orders_text}"
    guard_sentence = say(
        "In this study, the guard (`advisor run --stop-doomed`) would have saved {saved} of all steps{result}.",
        saved=Percent(guard.saved),
        result=result_text,
    )
    if not guard.saved:
        guard_sentence = say("In this study, the guard (`advisor run --stop-doomed`) would have stopped no trial early.")
    return say("{first} {second}", first=guard_sentence, second=_pruning_message(others, best, orders))


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
    orders_text = f" in each of {orders} orders of the trials" if orders > 1 else ""
    template = "Median pruning and successive halving would have kept all {best} best trials{orders}."
    return say(template, best=best, orders=orders_text)
