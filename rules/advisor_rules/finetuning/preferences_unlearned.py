from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.space import extension, failures
from advisor.engine.rule import Grounds, Relation, Rule, Share
from advisor.model.change import Change, SetRange
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.learning_rate import searched_learning_rates
from advisor.model.message import Name, Number, Percent, say
from advisor.model.space import as_number, round_significant
from advisor.model.study import Signal, Study, Trial
from advisor.model.words import setting

_MARGIN_SIGNALS: tuple[Signal, ...] = ("train_margin", "valid_margin")
_REFERENCE_FREE_LOSSES = frozenset({"simpo", "alphapo", "orpo", "cpo"})
_REFERENCE_FREE_PARAMETERS = ("cpo_alpha", "simpo_gamma")
"""Hyperparameters that only TRL's CPO and SimPO have."""
_ODDS_RATIO_METRIC = "log_odds_ratio"
"""Metric that only TRL's ORPO logs."""
_MIN_EXPECTED_CHANGE, _MAX_EXPECTED_CHANGE = 0.1, 10.0
"""Expected changes of the log-odds at the lowest and the highest proposed learning rate, if the change is proportional to the
rate."""
_CHANCE_EXPLANATION = "No trial changed the model much, so the results differ by chance."


@dataclass(frozen=True, slots=True)
class _LogOddsChange:
    trial: Trial
    median: float
    """Median absolute change of the log-odds over the second half of the training, in nats: the larger one of the medians in
    training and in evaluations."""

    @property
    def of_odds(self) -> float:
        return math.expm1(self.median)


class PreferencesUnlearned(Rule):
    """Preference training hardly changes the model, so the trials differ only by chance.

    ## What it looks at
    The rule reads the margin between the rewards of the preferred and the rejected answer (TRL's `rewards/margins`), divided by
    beta. This quotient is the change of the log-odds of the preferred against the rejected answer since the start of the
    training. The rule fires if the median change of the odds in the second half of every trial is less than a tenth, in
    training and in evaluations. The rule does not apply to losses without a reference model (ORPO, CPO, SimPO), whose margin is
    not a change since the start, nor to IPO, whose best margin depends on beta.

    ## Why it matters
    The share of correctly ordered pairs counts a margin of 0.0001 as much as one of 10. If all learning rates are too low, the
    share of correctly ordered pairs is often high from the first evaluation and almost equal in all trials, as if any rate
    solved the task. The loss reveals that the model hardly changes: in DPO, the loss stays at ln 2, about 0.693.

    ## What to do
    Search higher learning rates. Small changes of the log-odds are proportional to the learning rate, so the advice proposes
    the rates at which the log-odds would change by 0.1 to 10. The proposed range does not exceed the usual learning rates for
    the kind of training. If the trials are much shorter than the final training, train longer instead.

    ## How sure
    The change of the odds follows from logged values, and noise mostly makes it larger. On tiny models trained by TRL's
    DPOTrainer with ten seeds not used in development, the rule fired in 10 of 10 studies with learning rates of at most 1e-6,
    and in none of 50 studies with higher rates (`python benchmarks/quality/finetuning.py --by trl --only trl-dpo --seeds 60
    70`).
    """

    playbook = "Identifying bad search space boundaries"
    grounds = Grounds(finding="count", advice="mechanism", source="arXiv 2305.18290")
    goal = "pipeline"
    explains = (
        Relation(rules="needs_learning", because=_CHANCE_EXPLANATION, blinds=True),
        Relation(rules=("eval-size",), because=_CHANCE_EXPLANATION, waits=False, blinds=True),
        Relation(rules=("space-infeasible", "curve-worse-than-chance"), because=_CHANCE_EXPLANATION, blinds=True),
        Relation(
            rules=("stability-spikes", "clip-insufficient", "clip-aggressive"),
            because="No trial changed the model much, so large gradients come from single batches and not from unstable training.",
            blinds=True,
        ),
    )

    moved: Share = 0.1
    """Minimum change of the odds of the preferred against the rejected answer that counts as training. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        if not any(map(study.has, _MARGIN_SIGNALS)):
            raise MissingData("no trial logged the margin between preferred and rejected answers", needs="design")
        trials = study.ranked()
        if _is_margin_unusable(study, trials):
            reason = "the margin is a change since the start only with a reference model, and for losses other than IPO"
            raise MissingData(reason)
        changes = [s for t in trials if (s := _log_odds_change(study, t)) is not None]
        if not trials or len(changes) < len(trials):
            raise MissingData("a trial did not log beta, or the margin of rewards in training", needs="facts")
        failure_masks = failures.failure_masks(study)
        largest = max(changes, key=lambda s: s.median)
        if largest.of_odds < self.moved and not (failure_masks.diverged | failure_masks.crashed).any():
            yield self._build_finding(study, largest, changes)

    def _build_finding(self, study: Study, largest: _LogOddsChange, odds_changes: Sequence[_LogOddsChange]) -> Finding:
        metrics, trials = [study.signals[m] for m in _MARGIN_SIGNALS if study.has(m)], [s.trial for s in odds_changes]
        changes = _search_higher_rates(study, largest)
        caption = say("{metric} stays near zero.", metric=Name(metrics[-1]))
        return self.finding(
            say(
                "Training hardly changes the model: in no trial do the odds of the preferred against the rejected answer change by "
                "more than {share} (median of the second half, in {trial}). "
                "Differences in {objective} between the trials are due to chance.",
                share=Percent(largest.of_odds, 2),
                trial=Name(largest.trial.name),
                objective=Name(study.spec.objective.metric),
            ),
            action="Search higher learning rates." if changes else "Train at much higher learning rates, or longer.",
            severity="critical",
            # Below 1, because the training data can be at fault instead.
            confidence=0.9,
            subject=metrics[-1],
            trials=trials,
            evidence=(
                curve_plot(metrics, caption, trials[:5]),
                table(
                    ("trials", len(odds_changes)),
                    ("largest median change of the log-odds", Number(largest.median, 2)),
                    ("largest median change of the odds", Percent(largest.of_odds, 2), self.moved),
                ),
            ),
            changes=changes or None,
        )


def _log_odds_change(study: Study, trial: Trial) -> _LogOddsChange | None:
    beta = as_number(trial.params.get("beta"))
    curves = {m: study.curve(trial, m).finite.values for m in _MARGIN_SIGNALS}
    # If only evaluations log the margin, the model may have changed on the training data and not on the validation data.
    if not beta > 0 or not len(curves["train_margin"]):
        return None
    # The median is used, because the largest of many noisy values would exceed any limit.
    medians = [float(np.median(np.abs(values[len(values) // 2 :]))) for values in curves.values() if len(values)]
    return _LogOddsChange(trial, max(medians) / beta)


def _is_margin_unusable(study: Study, trials: Sequence[Trial]) -> bool:
    """Return True if the margin is no change since the start, because the loss is IPO or has no reference model."""
    if any(name.replace("/", "_").removeprefix("train_").removeprefix("eval_") == _ODDS_RATIO_METRIC for name in study.metrics):
        return True
    for params in (t.params for t in trials):
        # TRL also accepts a list of losses.
        losses = {part.strip(" []'\"") for part in str(params.get("loss_type", "")).lower().split(",")}
        is_reference_free = str(params.get("reference_free", "")).lower() in {"true", "1"}
        if is_reference_free or losses & (_REFERENCE_FREE_LOSSES | {"ipo"}):
            return True
        if any(params.get(name) is not None for name in _REFERENCE_FREE_PARAMETERS):
            return True
    return False


def _search_higher_rates(study: Study, largest: _LogOddsChange) -> tuple[Change, ...]:
    """Return the proposal to search the learning rates at which the log-odds would change enough; empty if no rate was
    searched, or if the searched range already reaches the highest usual rate."""
    rates = searched_learning_rates(study)
    if rates is None or largest.median <= 0:
        return ()
    name, domain = rates[0], study.spec.parameters[rates[0]]
    rate, usual = as_number(largest.trial.params.get(name)), extension.usual_rates(study, name)
    limit = min(usual.high if usual is not None else math.inf, domain.declared_limits[1])
    low, high = (round_significant(rate * nats / largest.median, 2) for nats in (_MIN_EXPECTED_CHANGE, _MAX_EXPECTED_CHANGE))
    low, high = max(low, domain.declared_limits[0]), min(high, limit)
    if not rate > 0 or not low < high or high <= (domain.high or 0.0):
        return ()
    why = (
        f"At {setting(rate)}, training changes the log-odds of the answers by {setting(round_significant(largest.median, 2))}. In "
        f"proportion to the rate, they would change by {setting(_MIN_EXPECTED_CHANGE)} at {setting(low)}"
    )
    return (SetRange(parameter=name, low=low, high=high, scale="log", why=why),)
