"""Defines `GuardPruner`, which prunes the trials of an Optuna study that cannot become the best."""

from __future__ import annotations

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from advisor.engine.guard.policy import Policy, TrialProgress
from advisor.engine.guard.replay import guard_stopper


class GuardPruner(optuna.pruners.BasePruner):
    """Prunes a trial if two bounds on the trial's further improvement show that it cannot become the best of its study.

        from advisor.interop.exports.optuna import GuardPruner

        def objective(trial):
            rate = trial.suggest_float("learning_rate", 1e-4, 1.0, log=True)
            for epoch in range(50):
                error = train_one_epoch(rate)
                trial.report(error, epoch)
                if trial.should_prune():
                    raise optuna.TrialPruned
            return error

        study = optuna.create_study(direction="minimize", pruner=GuardPruner(max_steps=50))

    A trial is pruned if two conditions hold at three consecutive reports. First, the trial's lowest value so far is above the other
    trials' median at the same step. Second, the trial's lowest value exceeds the best value of all trials by more than two bounds:
    a margin (see `Policy.margin`) times the largest improvement of any completed trial after this step, and the trial's own further
    improvement at its recent pace. A slow starter therefore continues, although a median pruner or successive halving would stop
    it. Pruning by the bounds requires four completed trials with at least ten reports each. A trial whose last two reports are NaN
    or infinite is always pruned.

    All trials must have the same number of steps. The pruner ignores completed trials with fewer than `max_steps` steps. If any
    trial reports a step beyond `max_steps`, only trials with NaN or infinite values are pruned.
    """

    def __init__(self, max_steps: int, *, policy: Policy | None = None) -> None:
        """max_steps: steps of a complete trial, as passed to `trial.report`. Raises ValueError if `max_steps` is not
        positive."""
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, not {max_steps}")
        self._max_steps, self._policy = max_steps, policy or Policy()

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        own = self._trial_progress(study, trial)
        if not len(own.steps):
            return False
        at = len(own.steps) - 1
        other_trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number and t.intermediate_values]
        trial_progress = [(t, self._trial_progress(study, t)) for t in other_trials]
        # A trial counts as complete if its next report, at the distance of its last two reports, would reach `max_steps`.
        ended_progress = [p for t, p in trial_progress if t.state == TrialState.COMPLETE and len(p.steps) > 1]
        complete_progress = [p for p in ended_progress if 2 * p.steps[-1] - p.steps[-2] >= self._max_steps]
        if any(p.steps[-1] > self._max_steps for p in (own, *(p for _, p in trial_progress))):
            complete_progress = []
        return guard_stopper(self._policy)(own, at, complete_progress)

    def _trial_progress(self, study: optuna.Study, trial: FrozenTrial) -> TrialProgress:
        sorted_reports = sorted(trial.intermediate_values.items())
        cost_sign = -1.0 if study.direction == optuna.study.StudyDirection.MAXIMIZE else 1.0
        steps, values = np.array([s for s, _ in sorted_reports]), np.array([cost_sign * v for _, v in sorted_reports], float)
        return TrialProgress(steps, values, float(self._max_steps))
