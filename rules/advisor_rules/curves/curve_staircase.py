from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from advisor.engine.rule import Count, Grounds, Relation, Rule, Share
from advisor.model.evidence import Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData, MissingDataKind
from advisor.model.message import Count as Counted, Number, Percent, Probability, join_items, say
from advisor.model.space import FloatArray
from advisor.model.study import Curve, Study, Trial
from advisor.model.words import number

_MIN_EPOCH_STEPS = 20
"""Minimum number of steps per epoch; with 20 steps, each compared part of an epoch has three losses."""
_COMPARED_EPOCH_SHARE = 0.15
_MAX_LEARNING_RATE_CHANGE = 0.01
"""Maximum relative change of the learning rate around the start of an epoch at which the learning rate counts as constant."""
_MIN_EPOCH_END_NOISE = 0.3
"""Minimum noise of the loss at the end of epochs, as a share of the noise at their start. If the logged loss is the mean over
the epoch so far, its noise at the end is much lower."""


@dataclass(frozen=True, slots=True)
class _EpochFalls:
    """Falls of one trial's training loss at the starts of epochs; arrays have shape (epochs - 1,)."""

    trial: Trial
    steps_per_epoch: float
    falls: FloatArray
    excess: FloatArray
    """Each fall at the start of an epoch, minus the mean of the falls in the middle of the epochs before and after it."""
    relative_excess: FloatArray
    """Excess fall as a share of the mean loss just before each start of an epoch."""


class CurveStaircase(Rule):
    """The training loss falls in steps at the starts of epochs, so the model memorises single examples.

    ## What it looks at
    The rule reads the training loss of batches in the five best trials, if an epoch is known to have 20 steps or more. At each
    start of an epoch, the rule measures how far the mean loss falls from the last 15 % of the old epoch to the first 15 % of
    the new one. From the fall at the start of an epoch, the rule subtracts the fall in the middle of the epochs before and
    after it, measured in the same way. The difference between the two falls is divided by the loss just before the start of the
    epoch, because falls shrink with the loss. Three other causes make the loss fall at the starts of epochs, and trials with
    these causes are left out: a learning rate that changes at the starts of epochs, a loader without shuffling, and losses that
    are the mean of the epoch so far.

    ## Why it matters
    With shuffled data, only one thing changes at the start of an epoch: the model has seen each example once more. If the loss
    falls at once at the start of an epoch, the model remembers single examples after one pass. The training loss of a model
    that memorises examples says little about new data. The training loss of language models that are fine-tuned for several
    epochs often falls at the starts of epochs.

    ## What to do
    Compare trials by validation data only. If the validation loss rises, train for fewer epochs, use more data, lower the
    learning rate or regularise. If the validation loss still falls, the staircase itself does no harm.

    ## How sure
    The one-sided test (a t-test over all starts of epochs of the best trials) is conservative, because a curve that flattens
    falls less at the start of an epoch than on average around it. In simulated curves with white, heavy-tailed or
    autocorrelated noise the rule fired in 1 to 2 % of studies. On recorded trainings with seeds not used in development
    (`python benchmarks/quality/lm_rules.py`), the rule fired in 18 of 20 studies of models that can memorise and in none of 50
    studies of models that do not. The models of these two missed studies, and of one missed study among ten others (seeds 301
    to 310), memorise only in part. The confidence that the model memorises examples is 0.95. The finding is a note, because
    only the validation loss shows whether memorising does harm.
    """

    playbook = "Examining the training curves"
    grounds = Grounds(finding="test", advice="mechanism", source="practice")
    goal = "regularisation"
    explains = Relation(
        rules=("curve-overfitting",), shares="trials", because="The model memorises examples that it sees again.", waits=False
    )

    best: Count = 5
    """Maximum number of best trials to examine."""
    material: Share = 0.05
    """Minimum mean fall at the start of an epoch, beyond the fall within epochs, as a share of the loss just before the start.
    Our choice."""
    false_alarms: Share = 0.02
    """Maximum p-value, and so the maximum share of studies in which noise alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        epoch_falls = [s for t in study.ranked()[: self.best] if (s := _measure_epoch_falls(study, t)) is not None]
        if not epoch_falls:
            needs: MissingDataKind = "train_loss"
            if study.has("train_loss"):
                needs = "design" if any(trial.fact("steps_per_epoch") > 0 for trial in study.trials) else "facts"
            raise MissingData(
                "no good trial shows two starts of epochs in its training loss; log the loss of each batch, and give the training "
                "loader to the advisor's training hook, so that the length of an epoch is known",
                needs=needs,
            )
        shares = np.concatenate([s.relative_excess for s in epoch_falls])
        p, excess = _p_value_of_falls(shares), float(np.mean(shares))
        if p <= self.false_alarms and excess >= self.material:
            yield self._build_finding(study, epoch_falls, p, excess)

    def _build_finding(self, study: Study, epoch_falls: list[_EpochFalls], p: float, excess: float) -> Finding:
        metric, trials = study.signals["train_loss"], [s.trial for s in epoch_falls]
        marks = [Mark(trial=s.trial.id, step=round(s.steps_per_epoch), label="second epoch") for s in epoch_falls]
        falls = join_items(Number(float(s.falls.mean())) for s in epoch_falls)
        excesses = join_items(Number(float(s.excess.mean())) for s in epoch_falls)
        text = (
            "The training loss falls at once by {share} at the start of an epoch, on average over {n} epochs of {trials}, so "
            "the model memorises examples."
        )
        trials_text = Counted(len(epoch_falls), "good trial")
        return self.finding(
            say(text, share=Percent(excess), n=sum(len(s.excess) for s in epoch_falls), trials=trials_text),
            action="Judge trials by validation data only, and try fewer epochs, more data or more regularisation: from the "
            "second epoch on, the training loss measures memorisation.",
            severity="note",
            confidence=0.95 * (1 - p),
            subject=metric,
            trials=trials,
            evidence=(
                curve_plot(metric, "The training loss falls in steps at the starts of epochs.", trials, marks=marks),
                table(
                    ("steps per epoch", join_items(dict.fromkeys(number(s.steps_per_epoch) for s in epoch_falls))),
                    ("mean fall at a start of an epoch, by trial", falls),
                    ("mean fall beyond the fall within epochs, by trial", excesses),
                    ("p-value", Probability(p), self.false_alarms),
                ),
            ),
        )


def _measure_epoch_falls(study: Study, trial: Trial) -> _EpochFalls | None:
    """Return the falls of a trial's loss; None if its epochs are unknown, too few or too short, or if the logging causes the
    falls. Epochs at whose start the learning rate changes in a step are left out."""
    epoch, curve = trial.fact("steps_per_epoch"), study.curve(trial, "train_loss").finite
    if study.unit != "step" or not epoch >= _MIN_EPOCH_STEPS or not len(curve) or trial.facts.get("shuffle") == "false":
        return None
    width = _COMPARED_EPOCH_SHARE * epoch
    starts = np.arange(1, math.floor((curve.steps[-1] + 1) / epoch + 0.5)) * epoch
    starts = starts[starts + epoch / 2 + width <= curve.steps[-1] + 1]
    steady_starts = [s for s in starts if not _changes_learning_rate_at(study, trial, s, epoch)]
    falls = np.array([_loss_fall_at(curve, s, width) for s in steady_starts])
    neighbour_falls = [[_loss_fall_at(curve, s + side * epoch / 2, width) for side in (-1, 1)] for s in steady_starts]
    mid_falls = np.array(neighbour_falls).reshape(-1, 2).mean(axis=1)
    losses = np.array([_mean_loss_between(curve, s - width, s) for s in steady_starts])
    is_usable = np.isfinite(falls) & np.isfinite(mid_falls) & (losses > 0)
    if is_usable.sum() < 2 or _is_running_mean(curve, epoch):
        return None
    excess = falls[is_usable] - mid_falls[is_usable]
    return _EpochFalls(trial, epoch, falls[is_usable], excess, excess / losses[is_usable])


def _p_value_of_falls(shares: FloatArray) -> float:
    """Return the p-value of the hypothesis that falls at the starts of epochs are not larger than in the middle of epochs.

    `shares` are the excess falls of all trials, divided by the loss just before the fall, because falls become smaller with the
    loss. A curve that flattens has a negative excess fall, so this one-sided t-test is conservative.
    """
    if len(shares) < 3 or not np.ptp(shares) > 0:
        return 1.0
    return float(stats.ttest_1samp(shares, 0.0, alternative="greater").pvalue)


def _mean_loss_between(curve: Curve, start: float, end: float) -> float:
    losses = curve.values[(curve.steps >= start) & (curve.steps < end)]
    return float(np.mean(losses)) if len(losses) >= 3 else math.nan


def _loss_fall_at(curve: Curve, at: float, width: float) -> float:
    return _mean_loss_between(curve, at - width, at) - _mean_loss_between(curve, at, at + width)


def _changes_learning_rate_at(study: Study, trial: Trial, start: float, epoch: float) -> bool:
    rates = study.curve(trial, "learning_rate").finite
    old_rates = rates.values[(rates.steps >= start - epoch / 3) & (rates.steps < start)]
    new_rates = rates.values[(rates.steps >= start) & (rates.steps < start + epoch / 3)]
    if not len(old_rates) or not len(new_rates) or not old_rates[-1] > 0:
        return False
    is_constant = np.ptp(old_rates) <= 1e-6 * old_rates[-1] and np.ptp(new_rates) <= 1e-6 * old_rates[-1]
    return bool(is_constant and abs(new_rates[0] / old_rates[-1] - 1) > _MAX_LEARNING_RATE_CHANGE)


def _is_running_mean(curve: Curve, epoch: float) -> bool:
    """Return True if the noise of the loss fades within each epoch, as for a logged loss that is the mean of the epoch so
    far."""
    steps, noise = curve.steps[1:], np.abs(np.diff(curve.values))
    position = (steps % epoch) / epoch
    is_inner = (steps >= epoch / 2) & (position > 1 / epoch)
    early_noise, late_noise = noise[is_inner & (position < 0.2)], noise[is_inner & (position > 0.8)]
    if len(early_noise) < 3 or len(late_noise) < 3:
        return False
    return bool(np.median(late_noise) < _MIN_EPOCH_END_NOISE * np.median(early_noise))
