from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import spearmanr

from advisor.computed.curves import noise
from advisor.computed.curves.curve_tails import MIN_WORTHWHILE_GAIN
from advisor.computed.decision import repeats
from advisor.computed.pipeline import validation
from advisor.computed.steps import schedules
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise, RepeatTrial, SetSchedule
from advisor.model.evidence import CurveEvidence, FigureEvidence, curve_plot, table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.message import Message, Name, Number, Percent, say
from advisor.model.space import FloatArray
from advisor.model.study import Signal, Study, Trial
from advisor.stats.curve import change_since
from advisor.stats.heterogeneity import measure_heterogeneity

_DETECTABLE_DIFFERENCE_SDS = 1.96 * 2**0.5
"""Smallest detectable difference of two single values at 95 % confidence, in standard deviations of one value."""
_MAX_P_VALUE = 0.05
"""Maximum median p-value at which training metrics count as jumping at the same steps as validation metrics."""
_TRAINING_SIGNALS: tuple[Signal, ...] = ("train_objective", "train_eval_loss")


class CurveStepVariance(Rule):
    """Validation jumps so much between evaluations that noise decides the ranking of the best trials.

    ## What it looks at
    The rule compares the best trial of each of the best settings; other seeds of a setting are not compared. For each compared
    trial, the half of the curve around the best step is split into a smooth course and noise. All evaluations are redrawn 500
    times from the smooth course and the noise, and the best step is selected again in each draw. If the learning rate of all
    trials decays to zero, the rule compares the evaluations at rates of at most 5 % of the peak, because noise is smaller
    there. The rule fires if another trial wins in most draws and most of the variance between the best values is noise. If
    there is only one trial, the rule compares the smallest detectable difference between two such trials with the gain from
    training. The finding is a note if repeats of one setting differ as much as the best settings do, or if there are fewer
    settings than hyperparameters.

    Noise that decides a ranking matters only if it hides a difference that is worth finding. Evaluations without noise would
    gain the difference between the best of the compared trials and their mean; the redraws estimate this gain, and an upper
    bound of all differences between the trials. If the expected gain is below 1 % of what training gained, the finding is a note:
    the compared settings are equally good, except those that are expected to lose more than this share.

    ## Why it matters
    A lucky or unlucky step decides the result of a trial, so the comparison of hyperparameters depends on chance. A training
    run in production will not end at a lucky step.

    ## What to do
    If the settings are equally good, take any of them, such as the cheapest one. Repeat it with other seeds to see how much
    results vary between seeds, which more validation data do not show. Otherwise, decay the learning rate if it is constant.
    If it decays to zero, repeat the best settings with other seeds. If training metrics jump together with validation, use
    weight averaging over the last steps or raise the batch size. In other cases, evaluate on more validation data. Noise falls
    with the square root of the number of examples, so the finding says how many times as many examples would separate the
    trials, or leave no more than a negligible gain to find.

    ## How sure
    Confidence is the share of draws that another trial wins, which is at most 1 - 1 / n for n trials. For equally good settings,
    confidence is the share of draws in which a choice among them loses less than 1 % of what training gained. For a single trial,
    confidence is the probability that its noise exceeds the limit. Of three estimates of the noise, the lowest is used, so that
    bends of a curve do not count as noise. In simulated studies with 50 evaluations, the rule fired in at most 1 % of studies
    if trials differ by at least 2 standard deviations of the noise. If all trials are equal and noise alone ranks them, the
    rule fired in 29 % of studies with 2 trials, 67 % with 5 and 79 % with 20.
    """

    playbook = "Examining the training curves"
    goal = "efficiency"
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
    worthwhile: Share = MIN_WORTHWHILE_GAIN
    """Minimum mean gain from evaluations without noise, as a share of the gain of training, for the ranking to be worth its cost.
    Longer training must promise as much."""
    first: Count = 5
    """Number of repeats to run if the variation between seeds is unknown; fewer repeats cannot measure this variation."""
    constant: Share = 0.5
    """Minimum final learning rate, as a share of its peak, that counts as not decayed."""
    false_alarms: Share = 0.05
    """Maximum probability that chance alone raises a finding about a single trial."""

    def check(self, study: Study) -> Iterator[Finding]:
        best_trials = repeats.first_trial_per_setting(study.ranked())
        trials = (best_trials if len(best_trials) > 1 else study.ranked())[: self.best]
        if not trials:
            raise MissingData("no trial ended with a finite objective", needs="trials", at_least=1)
        halves = [(t, a) for t in trials if (a := noise.split_around_best(study.cost_curve(t).finite.values)) is not None]
        if not halves or halves[0][0] != trials[0] or len(halves) < min(2, len(trials)):
            reason = (
                f"the best trials have fewer than {noise.MIN_EVALUATIONS_FOR_NOISE} evaluations of {study.spec.objective.metric}; "
                "evaluate more often"
            )
            raise MissingData(reason, needs="evaluations", at_least=noise.MIN_EVALUATIONS_FOR_NOISE)
        if len(trials) == 1:
            yield from self._report_noisy_trial(study, *halves[0])
            return
        if len({float(study.costs[t.index]) for t, _ in halves}) == 1:
            raise MissingData(
                f"the {len(halves)} best trials all have the same best {study.spec.objective.metric}, so they cannot be ranked; "
                + _advice_for_ties(study)
            )
        ranking = _redraw_ranking(study, halves)
        if not (ranking.noise_sd > 0 and ranking.best_unchanged_share < self.keeps and ranking.reliability < self.reliable):
            return
        compared = [t for t, _ in halves]
        gain = _gain_of_training(study, compared)
        limit = self.worthwhile * gain
        equal = [half for half, loss in zip(halves, ranking.losses.mean(axis=0), strict=True) if loss <= limit]
        if float(ranking.losses.mean()) <= limit and len(equal) > 1:
            ranking = ranking if len(equal) == len(halves) else _redraw_ranking(study, equal)
            yield self._report_equal_settings(study, [t for t, _ in equal], ranking, gain)
        else:
            yield self._report_noisy_ranking(study, compared, ranking, gain)

    def _report_equal_settings(
        self, study: Study, trials: list[Trial], ranking: noise.RankingStability, gain: float
    ) -> Finding:
        """Report that noise decides the ranking, but hides no difference that is worth the cost of finding it."""
        metric, n, loss = study.spec.objective.metric, len(trials), float(ranking.losses.mean())
        share, keeps = Percent(loss / gain, 1), Percent(ranking.best_unchanged_share)
        text = "The {n} best settings are equally good within noise: with 95 % probability, their best values of {metric} "
        text += "differ by at most {bound}. Evaluations without noise would gain {loss} on average, {share} of training's gain."
        unknown = noise.noise_between_seeds(study)[0] == 0
        seeds = " Other seeds may change results more: no setting was repeated." if unknown else ""
        action = say("Take any of the {n} best settings, such as the cheapest one: they are equally good within noise.", n=n)
        why = "the best settings are equally good within the noise of their evaluations, but the variation between seeds is unknown"
        again = RepeatTrial(parameters=dict(trials[0].params), seeds=self.first, why=why)
        bound = Number(ranking.range_bound, 2)
        finding = self.finding(
            say(text + "{seeds}", n=n, metric=Name(metric), bound=bound, loss=Number(loss, 2), share=share, seeds=seeds),
            action=action,
            severity="note",
            confidence=float(np.mean(ranking.losses.mean(axis=1) <= self.worthwhile * gain)),
            subject=metric,
            trials=trials,
            evidence=(
                _noise_plot(study, trials),
                table(
                    ("compared settings, each by its best trial", n),
                    ("noise between evaluations", ranking.noise_sd),
                    ("noise of a trial's best value", ranking.best_cost_sd),
                    ("draws in which the best trial wins", say("{share} of 500", share=keeps), Percent(self.keeps)),
                    ("share of the variance between trials that is not noise", Percent(ranking.reliability), self.reliable),
                    ("expected gain of evaluations without noise, share of the gain of training", share, self.worthwhile),
                ),
            ),
            changes=(Advise(text=str(action)), *([again] if unknown and trials[0].params else [])),
        )
        return finding.model_copy(update={"goal": "exploitation"})

    def _report_noisy_ranking(self, study: Study, trials: list[Trial], ranking: noise.RankingStability, gain: float) -> Finding:
        costs, sd, keeps = study.costs[[t.index for t in trials]], ranking.best_cost_sd, Percent(ranking.best_unchanged_share)
        text = (
            "The {n} best settings differ by only {gap} in {metric}, and noise between evaluations changes the best value of "
            "a trial by {noise} (standard deviation). If the evaluations were drawn again, {best} would stay the best with a "
            "probability of {keeps}."
        )
        metric, gap = Name(study.spec.objective.metric), Number(float(costs[-1]) - float(costs[0]), 2)
        message = say(text, n=len(trials), metric=metric, noise=Number(sd, 2), gap=gap, best=Name(trials[0].name), keeps=keeps)
        heterogeneity = measure_heterogeneity(costs, np.full(len(costs), sd), self.false_alarms)
        least_text = say("{least}; it falls with the square root of the number of examples", least=heterogeneity.critical_range)
        figures = table(
            ("compared settings, each by its best trial", len(trials)),
            ("noise between evaluations (standard deviation)", ranking.noise_sd),
            ("standard deviation of a trial's best value", sd),
            ("draws in which the best trial wins", say("{share} of 500", share=keeps), Percent(self.keeps)),
            ("share of the variance between trials that is not noise", Percent(ranking.reliability), self.reliable),
            ("smallest detectable difference", least_text),
        )
        # If settings differ no more than repeats do, only more seeds can rank them; more precise evaluations cannot. If there are
        # fewer settings than hyperparameters, no ranking shows the effects of most hyperparameters.
        seeds_decide = noise.seed_noise_explains_differences(study, trials, self.false_alarms)
        has_few_settings = len({repeats.key(t) for t in study.ranked()}) < len(study.searched)
        severity: Severity = "note" if seeds_decide or has_few_settings else "warning"
        confidence = 1 - ranking.best_unchanged_share
        # More examples than either separate the observed values or leave only a negligible loss would be wasted.
        negligible = (float(ranking.losses.mean()) / (self.worthwhile * gain)) ** 2 if gain > 0 else math.inf
        examples = min(heterogeneity.examples_factor, negligible)
        return self._report_noise(study, trials, message, confidence, figures, severity, examples)

    def _report_noisy_trial(self, study: Study, trial: Trial, half: noise.HalfAroundBest) -> Iterator[Finding]:
        values = study.cost_curve(trial).finite.values
        fall = change_since(values, 0)
        gain = float(values[: int(np.argmin(values)) + 1].max()) - float(values.min())
        if fall is None or fall.fall_p_value > self.false_alarms or gain <= 0:
            reason = (
                "the only trial with a result does not end better, beyond its noise, than in its first tenth; the rule needs two "
                "trials or more"
            )
            raise MissingData(reason, needs="trials", at_least=2)
        probability = half.chance_noise_exceeds(self.blur * gain / _DETECTABLE_DIFFERENCE_SDS)
        if probability < 1 - self.false_alarms:
            return
        min_difference = _DETECTABLE_DIFFERENCE_SDS * half.noise_sd
        message = say(
            "In the only trial with a result, {trial}, {metric} jumps by {noise} (standard deviation) between evaluations. Trials "
            "must differ by {needed} to be distinguished, which is {share} of the gain from training.",
            trial=Name(trial.name),
            metric=Name(study.spec.objective.metric),
            noise=Number(half.noise_sd, 2),
            needed=Number(min_difference, 2),
            share=Percent(min_difference / gain),
        )
        share = say("{needed}, {share} of the gain", needed=min_difference, share=Percent(min_difference / gain, 1))
        probability_text = say("{sure} (required: {limit})", sure=Percent(probability, 1), limit=Percent(1 - self.false_alarms))
        figures = table(
            ("evaluations around the best step", len(half.smooth_curve)),
            ("noise between evaluations (standard deviation)", half.noise_sd),
            ("smallest detectable difference at 95 % confidence", share, Percent(self.blur)),
            ("probability that the noise exceeds the limit", probability_text),
        )
        examples = (min_difference / (self.blur * gain)) ** 2
        yield self._report_noise(study, [trial], message, probability, figures, "note", examples)

    def _report_noise(
        self,
        study: Study,
        trials: list[Trial],
        message: Message,
        confidence: float,
        figures: FigureEvidence,
        severity: Severity,
        examples: float,
    ) -> Finding:
        change, cause = find_noise_remedy(study, trials, constant=self.constant, examples=examples)
        return self.finding(
            message,
            action=change.text if isinstance(change, Advise) else "Decay the learning rate to zero over the training.",
            severity=severity,
            confidence=confidence,
            subject=study.spec.objective.metric,
            trials=trials,
            evidence=(_noise_plot(study, trials), FigureEvidence(rows=(*figures.rows, ("likely cause", cause)))),
            changes=(change,),
        )


def _redraw_ranking(study: Study, halves: Sequence[tuple[Trial, noise.HalfAroundBest]]) -> noise.RankingStability:
    curves = [study.cost_curve(t).finite for t, _ in halves]
    late_points = [schedules.evaluations_after_decay(study, t, c) for (t, _), c in zip(halves, curves, strict=True)]
    return noise.redraw_ranking(noise.split_ends([c.values for c in curves], late_points) or [half for _, half in halves])


def _noise_plot(study: Study, trials: list[Trial]) -> CurveEvidence:
    metric, best = study.spec.objective.metric, study.objective_value(float(study.costs[trials[0].index]))
    caption = say("Late evaluations of {metric} scatter.", metric=Name(metric))
    return curve_plot(metric, caption, trials, lines={"best value": best})


def _gain_of_training(study: Study, trials: Sequence[Trial]) -> float:
    """Return the median over the trials of the improvement up to the best step. Single high values do not count. The improvement
    of a maximised metric between 0 and 1, or of an accuracy in percent, counts from 0: the first evaluation often comes after
    most of the improvement."""
    gains = []
    is_percentage = math.isfinite(validation.distance_to_perfect_score(study))
    for trial in trials:
        values = study.cost_curve(trial).finite.values
        before = values[: max(int(np.argmin(values)) + 1, 3)]
        gain = float(np.median(np.lib.stride_tricks.sliding_window_view(before, 3), axis=1).max() - values.min())
        value = study.objective_value(float(values.min()))
        gains.append(max(gain, value) if not study.minimize and (0 < value <= 1 or is_percentage) else gain)
    return float(np.median(gains))


def _advice_for_ties(study: Study) -> str:
    if validation.perfect_trials(study):
        return "no result can be better, so evaluate on harder examples"
    if len({float(study.costs[t.index]) for t in study.ranked()}) > 1:
        return "log the metric with more digits, or evaluate on more examples"
    return "check that the training uses the hyperparameters, or log the metric with more digits"


def p_of_independent_jumps(first_curve: FloatArray, second_curve: FloatArray) -> float:
    """Return the one-sided p-value of the hypothesis that two curves (n,) jump independently; NaN if the curves are too short
    or constant."""
    if len(first_curve) < noise.MIN_EVALUATIONS_FOR_NOISE:
        return math.nan
    first, second = np.diff(first_curve, 2), np.diff(second_curve, 2)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(spearmanr(first, second, alternative="greater").pvalue)


def _p_of_unrelated_jumps(study: Study, trial: Trial) -> float:
    """Return the p-value of jumps at unrelated steps of the objective and a training metric; NaN if no training metric was
    logged."""
    objective = study.cost_curve(trial).finite
    for signal in _TRAINING_SIGNALS:
        training = study.curve(trial, signal).finite
        if signal == "train_objective" and not study.minimize:
            training = -training
        _, indices, training_indices = np.intersect1d(objective.steps, training.steps, return_indices=True)
        late = slice(len(indices) // 2, None)
        p = p_of_independent_jumps(objective.values[indices[late]], training.values[training_indices[late]])
        if not math.isnan(p):
            return p
    return math.nan


def find_noise_remedy(
    study: Study, trials: Sequence[Trial], *, constant: float, examples: float
) -> tuple[Advise | SetSchedule, str]:
    """Return (change that reduces the noise, cause of the noise).

    constant: minimum final learning rate, as a share of its peak, that counts as not decayed. examples: number of validation
    examples needed to separate the trials, as a multiple of the present number.
    """
    ends = [schedules.final_rate_share(study, t) for t in trials]
    if any(end > constant for end in ends):
        why = "The learning rate does not decay, and validation jumps between late evaluations."
        return SetSchedule(schedule={"kind": "cosine"}, why=why), "the learning rate does not decay"
    p_values = [p for t in trials if not math.isnan(p := _p_of_unrelated_jumps(study, t))]
    if p_values and np.median(p_values) <= _MAX_P_VALUE:
        text = "Average the weights of the last steps (Polyak averaging) and evaluate the average, or raise the batch size."
        return Advise(text=text), "the model: training metrics jump together with validation"
    if study.kind == "reinforcement-learning":
        return _advise_more_examples(examples, "episodes"), "too few episodes in each evaluation"
    if p_values:
        return _advise_more_examples(examples), "a small validation set: training metrics do not jump with validation"
    if all(map(math.isnan, ends)):
        text = "Make evaluations less noisy: decay the learning rate, or average the weights, or use more validation data."
        return Advise(text=text), "unknown: log the learning rate, and evaluate on training data as well"
    text = "Make evaluations less noisy: average the weights, or use more validation data."
    if all(end <= schedules.MAX_DECAYED_RATE_SHARE for end in ends):  # the decay has already averaged the weights
        text = "Repeat the best settings with several seeds, or use more validation data."
    return Advise(text=text), "unknown: the learning rate decays; evaluate on training data as well"


def _advise_more_examples(examples_factor: float, examples: str = "validation examples") -> Advise:
    if examples_factor > validation.MAX_VALIDATION_SET_GROWTH:
        remedy = "Repeat the best settings with several seeds, or compare them by a metric with less noise"
        return Advise(text=f"{remedy}: no realistic number of {examples} separates them.")
    factor = max(math.ceil(examples_factor), 2)
    text = f"Evaluate on about {factor} times as many {examples}, or compare the means of {factor} evaluations."
    return Advise(text=text, new_scores=True)
