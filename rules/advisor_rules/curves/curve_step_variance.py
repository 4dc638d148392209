"""Implements the rule `curve-step-variance`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.computed.curves import noise
from advisor.computed.curves.step_noise import (
    MIN_EVALUATIONS_FOR_NOISE,
    HalfAroundBest,
    Ranking,
    redraw_ranking,
    split_around_best,
    split_ends,
)
from advisor.computed.decision import repeats
from advisor.computed.pipeline import validation
from advisor.computed.steps import schedules
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.message import Message, MessagePart, Name, Number, Percent, say, value_with_limit
from advisor.model.study import Study, Trial
from advisor.stats.curve import change_since
from advisor.stats.heterogeneity import measure_heterogeneity
from advisor_rules.curves._jump_causes import find_noise_remedy

_DETECTABLE_DIFFERENCE_SDS = 1.96 * 2**0.5
"""Smallest detectable difference of two single values at 95 % confidence, in standard deviations of one value."""


class CurveStepVariance(Rule):
    """Validation jumps so much between evaluations that noise decides the ranking of the best trials.

    ## What it looks at
    The rule compares the best trial of each of the best settings; other seeds of a setting are not compared. For each
    compared trial, the half of the curve around the best step is split into a smooth course and noise. All evaluations are
    redrawn 500 times from the smooth course and the noise, and the best step is selected again in each draw. If the
    learning rate of all trials decays to zero, the rule compares the evaluations at rates of at most 5 % of the peak,
    because noise is smaller there. The rule fires if another trial wins in most draws and most of the variance between the
    best values is noise. If there is only one trial, the rule compares the smallest detectable difference between two such
    trials with the gain from training. The finding is a note if repeats of one setting differ as much as the best settings
    do, or if there are fewer settings than hyperparameters.

    ## Why it matters
    A lucky or unlucky step decides the result of a trial, so the comparison of hyperparameters depends on chance. A training
    run in production will not end at a lucky step.

    ## What to do
    Decay the learning rate if it is constant. If it decays to zero, repeat the best settings with other seeds. If training
    metrics jump together with validation, use weight averaging over the last steps or raise the batch size. In other cases,
    evaluate on more validation data. Noise falls with the square root of the number of examples, so the finding says how
    many times as many examples would separate the trials.

    ## How sure
    Confidence is the share of draws that another trial wins, which is at most 1 - 1 / n for n trials. For a single trial,
    confidence is the probability that its noise exceeds the limit. Of three estimates of the noise, the lowest is used, so that
    bends of a curve do not count as noise. In simulated studies with 50 evaluations, the rule fired in at most 1 % of studies
    if trials differ by at least 2 standard deviations of the noise. If all trials are equal and noise alone ranks them, the
    rule fired in 29 % of studies with 2 trials, 67 % with 5 and 79 % with 20.
    """

    playbook = "Examining the training curves"
    goal = "efficiency"
    compares_results = True
    needs_order = True
    needs_learning = True

    best: Count = 5
    """Number of best settings to compare."""
    keeps: Share = 0.5
    """Minimum share of draws that the best trial must win for its ranking to count as reliable. Our choice."""
    reliable: Share = 0.5
    """Minimum share of the variance between the best trials that is due to true differences, for their ranking to count as
    reliable. Our choice."""
    blur: Share = 0.05
    """Maximum acceptable value of the smallest detectable difference if there is a single trial, as a share of the trial's
    gain. Our choice."""
    constant: Share = 0.5
    """Minimum final learning rate, as a share of its peak, that counts as not decayed."""
    false_alarms: Share = 0.05
    """Maximum probability that chance alone raises a finding about a single trial."""

    def check(self, study: Study) -> Iterator[Finding]:
        trials = _best_trials_of_settings(study)[: self.best]
        if not trials:
            raise MissingData("no trial ended with a finite objective", needs="trials", at_least=1)
        parts = [(t, a) for t in trials if (a := split_around_best(study.cost_curve(t).finite.values)) is not None]
        if not parts or parts[0][0] != trials[0] or len(parts) < min(2, len(trials)):
            raise MissingData(
                f"the best trials have fewer than {MIN_EVALUATIONS_FOR_NOISE} evaluations of {study.spec.objective.metric}; "
                "evaluate more often",
                needs="evaluations",
                at_least=MIN_EVALUATIONS_FOR_NOISE,
            )
        if len(trials) == 1:
            yield from self._report_noisy_trial(study, *parts[0])
            return
        if len({float(study.costs[t.index]) for t, _ in parts}) == 1:
            raise MissingData(
                f"the {len(parts)} best trials all have the same best {study.spec.objective.metric}, so they cannot be ranked; "
                + _advice_for_ties(study)
            )
        curves = [study.cost_curve(t).finite for t, _ in parts]
        ends = [schedules.evaluations_after_decay(study, t, c) for (t, _), c in zip(parts, curves, strict=True)]
        ranking = redraw_ranking(split_ends([c.values for c in curves], ends) or [a for _, a in parts])
        if ranking.noise_sd > 0 and ranking.best_unchanged_share < self.keeps and ranking.reliability < self.reliable:
            yield self._report_noisy_ranking(study, [t for t, _ in parts], ranking)

    def _report_noisy_ranking(self, study: Study, trials: list[Trial], ranking: Ranking) -> Finding:
        message = say(
            "The {n} best settings differ by only {gap} in {metric}, and noise between evaluations changes the best value of "
            "a trial by {noise} (standard deviation). If the evaluations were drawn again, {best} would stay the best with a "
            "probability of {keeps}.",
            n=len(trials),
            metric=Name(study.spec.objective.metric),
            noise=Number(ranking.best_cost_sd, 2),
            gap=Number(float(study.costs[trials[-1].index]) - float(study.costs[trials[0].index]), 2),
            best=Name(trials[0].name),
            keeps=Percent(ranking.best_unchanged_share),
        )
        costs = study.costs[[t.index for t in trials]]
        test = measure_heterogeneity(costs, np.full(len(costs), ranking.best_cost_sd), self.false_alarms)
        rows = (
            ("compared settings, each by its best trial", len(trials)),
            ("noise between evaluations", ranking.noise_sd),
            ("noise of a trial's best value", ranking.best_cost_sd),
            (
                "draws in which the best trial wins",
                say("{share} of 500 (limit {limit})", share=Percent(ranking.best_unchanged_share), limit=Percent(self.keeps)),
            ),
            (
                "share of the variance between trials that is not noise",
                value_with_limit(Percent(ranking.reliability), Percent(self.reliable)),
            ),
            (
                "detectable difference",
                say("{least}; it falls with the square root of the number of examples", least=test.critical_range),
            ),
        )
        # If settings differ no more than repeats do, only more seeds can rank them; more precise evaluations cannot. If there are
        # fewer settings than hyperparameters, no ranking shows the effects of most hyperparameters.
        by_seeds = noise.seed_noise_explains_differences(study, trials, self.false_alarms)
        few = len({repeats.key(t) for t in study.ranked()}) < len(study.searched)
        severity: Severity = "note" if by_seeds or few else "warning"
        return self._report_noise(
            study, trials, message, 1 - ranking.best_unchanged_share, rows, severity, test.examples_factor
        )

    def _report_noisy_trial(self, study: Study, trial: Trial, part: HalfAroundBest) -> Iterator[Finding]:
        curve = study.cost_curve(trial).finite
        fall = change_since(curve.values, 0)
        gain = float(curve.values[: int(np.argmin(curve.values)) + 1].max()) - float(curve.values.min())
        if fall is None or fall.p_fall > self.false_alarms or gain <= 0:
            raise MissingData(
                "the only trial with a result does not end better, beyond its noise, than in its first tenth; the rule needs two "
                "trials or more",
                needs="trials",
                at_least=2,
            )
        probability = part.chance_noise_exceeds(self.blur * gain / _DETECTABLE_DIFFERENCE_SDS)
        if probability < 1 - self.false_alarms:
            return
        detectable = _DETECTABLE_DIFFERENCE_SDS * part.noise_sd
        message = say(
            "In the only trial with a result, {trial}, {metric} jumps by {noise} (standard deviation) between evaluations. Trials "
            "must differ by {needed} to be distinguished, which is {share} of all that training gained.",
            trial=Name(trial.name),
            metric=Name(study.spec.objective.metric),
            noise=Number(part.noise_sd, 2),
            needed=Number(detectable, 2),
            share=Percent(detectable / gain),
        )
        needed_share = say("{share} of the gain (limit {limit})", share=Percent(detectable / gain, 1), limit=Percent(self.blur))
        rows = (
            ("evaluations around the best step", len(part.smooth_curve)),
            ("noise between evaluations", part.noise_sd),
            ("detectable difference at 95 % confidence", say("{needed}, {share}", needed=detectable, share=needed_share)),
            (
                "probability that the noise exceeds the limit",
                say("{sure} (fires from {limit})", sure=Percent(probability, 1), limit=Percent(1 - self.false_alarms)),
            ),
        )
        yield self._report_noise(study, [trial], message, probability, rows, "note", (detectable / (self.blur * gain)) ** 2)

    def _report_noise(
        self,
        study: Study,
        trials: list[Trial],
        message: Message,
        confidence: float,
        rows: tuple[tuple[str, MessagePart | float], ...],
        severity: Severity,
        examples: float,
    ) -> Finding:
        metric = study.spec.objective.metric
        change, cause = find_noise_remedy(study, trials, constant=self.constant, examples=examples)
        best = study.objective_value(float(study.costs[trials[0].index]))
        caption = "Late evaluations of {metric} scatter."
        return self.finding(
            message,
            action=change.text if isinstance(change, Advise) else "Decay the learning rate to zero over the training.",
            severity=severity,
            confidence=confidence,
            subject=metric,
            trials=trials,
            evidence=(
                curve_plot(metric, say(caption, metric=Name(metric)), trials, lines={"best value": best}),
                table(*rows, ("likely cause", cause)),
            ),
            changes=(change,),
        )


def _advice_for_ties(study: Study) -> str:
    """Return advice for the case that all of the best trials have the same result."""
    if validation.perfect_trials(study):
        return "no result can be better, so evaluate on harder examples"
    if len({float(study.costs[t.index]) for t in study.ranked()}) > 1:
        return "log the metric with more digits, or evaluate on more examples"
    return "check that the training uses the hyperparameters, or log the metric with more digits"


def _best_trials_of_settings(study: Study) -> list[Trial]:
    """Return the best trial of each setting, best trials first; all trials if there is only one setting."""
    best = repeats.first_trial_per_setting(study.ranked())
    return best if len(best) > 1 else study.ranked()
