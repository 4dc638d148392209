from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from advisor.computed.curves.noise import HalfAroundBest, split_around_best
from advisor.computed.decision import repeats
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise, Change, RepeatTrial
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count as CountOf, Message, Name, Number, Objective, Probability, list_message, say
from advisor.model.study import Study, Trial
from advisor.model.words import setting as value_words
from advisor.stats import difference
from advisor.stats.curve import smooth_savgol
from advisor_rules.decision._repeats import chance_of_replication, widest_cost_gap


class Adopt(Rule):
    """The best setting is not shown to be better than the next best one, or its result does not repeat with other seeds.

    ## What it looks at
    The rule compares the setting of the best trial with the setting that has the best mean among the others, each with its
    repeats (other seeds). First, the rule checks if the repeats of the best setting agree, or if some fail or are worse than
    the next setting. Second, the rule tests if the lead of the best setting's mean exceeds the variation between seeds and is
    large enough to matter. Runs whose result decided which setting to repeat are left out; runs with the same seed do not count
    as repeats. Without repeats, the rule checks if the best trial leads only because its evaluations vary most, since the best
    of many noisy values is good by chance.

    ## Why it matters
    A change adopted because of one lucky seed is no improvement, and later results are compared with a value that cannot be
    reached again.

    ## What to do
    Repeat the best trial and the next setting with enough other seeds to detect their difference with 80 % probability. If a
    setting would need more than 20 repeats, treat the two settings as equally good. If repeats fail, find the cause before any
    further comparison. `advisor compare` decides between two trials, settings or studies and weighs added complexity.

    ## How sure
    The lead is tested by Welch's t-test, or by a permutation test if the settings have at least 3 and 4 repeats. If either
    setting ran only once, the variance comes from all repeated settings. Repeats that disagree are found by the widest gap
    between their results, compared with simulated normal repeats. Confidence is the probability that a repetition of the
    comparison would again show no lead. In simulations (200 studies per design), equal settings showed a lead in 0 to 6 % of
    studies. With 4 or more repeats, the rule doubted a true lead of 4 standard deviations in 0 to 4 % of simulated studies, and
    a true lead of 3 standard deviations in 0 to 13 %. With 2 or 3 repeats, hardly any lead can be shown. Without repeats,
    confidence is the probability, given the noise between evaluations, that the other trial is at least as good. In 76 such
    findings on simulated studies, confidence was 0.69 on average, and the other trial was in fact as good in 95 %.
    """

    playbook = "Determining whether to adopt a training pipeline change or hyperparameter configuration"
    goal = "exploitation"
    needs_order = True
    needs_learning = True
    unmeasured = frozenset({"evaluations", "seed"})

    false_alarms: Share = 0.05
    """Maximum p-value at which a lead, or a disagreement of repeats, is significant."""
    power: Share = 0.8
    """Probability with which the recommended number of repeats detects a lead of the measured size."""
    most: Count = 20
    """Maximum number of repeats of a setting that is worth its cost; a lead that needs more repeats is too small to matter."""
    first: Count = 5
    """Number of repeats to run if the variation between seeds is unknown; fewer repeats cannot measure this variation."""
    material: Share = repeats.MIN_RELATIVE_DIFFERENCE
    """Minimum lead that matters, as a share of the result; for results between 0.5 and 1, as a share of the distance from 1."""

    def check(self, study: Study) -> Iterator[Finding]:
        all_settings = repeats.full_length_settings(study)
        best_first = study.ranked()
        trial_variance = repeats.variance_between_seeds(all_settings)
        if trial_variance is None or not best_first:
            if (lucky_lead := find_lucky_lead(study)) is not None:
                yield self._report_lucky_lead(study, lucky_lead)
                return
            reason = (
                "no setting was run with two seeds or folds, so the variation between seeds is unknown; repeat the best trial "
                f"{self.first} times"
            )
            raise MissingData(reason, needs="repeats", at_least=self.first)
        best_key = repeats.key(best_first[0])
        best = next((s for s in all_settings if repeats.key(s.trials[0]) == best_key), None)
        if best is None:
            raise MissingData("no complete trial has the setting of the best trial", needs="full_length")
        other_settings = sorted((s for s in all_settings if s is not best), key=lambda s: s.mean)
        rival = other_settings[0] if other_settings else None
        if rival is not None and rival.mean > best.mean:  # Prefer repeats: the best of many single runs is probably lucky.
            rival = next((s for s in other_settings if len(s.costs_after_selection) > 1), rival)
        bad_repeats = self._indices_of_bad_repeats(best, rival)
        if bad_repeats or best.failed:
            yield self._report_disagreeing_repeats(study, best, bad_repeats)
        elif rival is None:
            raise MissingData("only one setting has a result, so no setting leads another", needs="trials", at_least=2)
        else:
            lead = difference.difference(best.costs_after_selection, rival.costs_after_selection, trial_variance)
            min_lead = repeats.min_relevant_difference(study.objective_value(rival.mean), self.material)
            if not (lead.gain > min_lead and lead.p_value <= self.false_alarms):
                yield self._report_insignificant_lead(study, best, rival, lead, min_lead)

    def _report_lucky_lead(self, study: Study, luck: LuckyLead) -> Finding:
        best_name, rival_name = Name(luck.best.name), Name(luck.rival.name)
        text = "Compare {one} with {other} by the average of several evaluations, not by the best one."
        advice = Advise(text=str(say(text, one=best_name, other=rival_name)))
        why = "the lead of the best setting may be luck, and the variation between seeds is unknown"
        action = "Repeat {one} {first} times, and compare it with {other} by the average of several evaluations."
        return self.finding(
            say(
                "The best trial, {one}, leads {other}, the best one with steadier evaluations, by {lead}, but its own "
                "evaluations of {metric} vary more: their standard deviation is {noise} instead of {less}. {part} of its lead "
                "may be luck, because noise alone explains an expected lead of {luck}.",
                one=best_name,
                other=rival_name,
                lead=luck.observed_lead,
                metric=Name(study.spec.objective.metric),
                noise=Number(luck.best_noise_sd, 2),
                less=Number(luck.rival_noise_sd, 2),
                luck=Number(luck.expected_lead, 2),
                part="All" if luck.observed_lead <= luck.expected_lead else "Part",
            ),
            action=say(action, one=best_name, other=rival_name, first=self.first),
            severity="note",
            confidence=luck.rival_as_good_probability,
            subject="evaluations",
            trials=[luck.best, luck.rival],
            evidence=table(
                ("lead", luck.observed_lead),
                ("expected lead from noise alone", luck.expected_lead),
                ("probability that the other trial is as good", Probability(luck.rival_as_good_probability)),
            ),
            changes=(advice, RepeatTrial(parameters=dict(luck.best.params), seeds=self.first, why=why)),
        )

    def _report_disagreeing_repeats(self, study: Study, best: repeats.Setting, bad_repeats: list[int]) -> Finding:
        results = [Objective(study.objective_value(float(c))) for c in sorted(best.costs)]
        n_runs, n_bad = CountOf(len(best.trials) + len(best.failed), "run"), len(bad_repeats) + len(best.failed)
        text = "{count} ended far behind, the worst at {worst}"
        bad = [say(text, count=len(bad_repeats), worst=results[-1])] if bad_repeats else []
        bad += [say("{count} failed", count=len(best.failed))] if best.failed else []
        text = "The best setting does not repeat. Of its {runs}, the best reached {best}, but {bad}."
        action = "Find out why {bad} of the best setting's {runs} went wrong before you adopt it."
        return self.finding(
            say(text, runs=n_runs, best=results[0], bad=list_message(bad)),
            action=say(action, bad=n_bad, runs=n_runs),
            severity="warning",
            confidence=0.95 if best.failed else 1 - self.false_alarms,
            subject="seed",
            trials=[*(best.trials[i] for i in bad_repeats), *best.failed],
            evidence=table(("results of its runs", list_message(results, limit=len(results))), ("failed", n_bad)),
            changes=(
                Advise(
                    text="Compare the curves of failed and successful runs (initialization, early instability, "
                    "data order), and judge the setting by its typical run instead of its best run."
                ),
            ),
        )

    def _report_insignificant_lead(
        self, study: Study, best: repeats.Setting, rival: repeats.Setting, lead: difference.Difference, min_lead: float
    ) -> Finding:
        noun = repeats.noun(repeats.full_length_settings(study))
        action, changes = self._advise_without_clear_winner(study, best, rival, lead, noun)
        names = (f"runs of {Name(s.trials[0].name)}" for s in (best, rival))
        results = ([Objective(study.objective_value(float(c))) for c in s.costs] for s in (best, rival))
        low, high = lead.interval()
        return self.finding(
            _message(study, best, rival, lead, noun),
            action=action,
            severity="note",
            confidence=1 - (0.0 if lead.gain <= min_lead else chance_of_replication(lead, self.false_alarms)),
            trials=[best.trials[0], rival.trials[0]],
            evidence=table(
                *((name, list_message(values, limit=len(values))) for name, values in zip(names, results, strict=True)),
                ("lead", say("{lead} (90 % interval {low} to {high})", lead=lead.gain, low=low, high=high)),
                ("minimum lead that matters", Number(min_lead, 2)),
                (f"standard deviation between {noun}s", lead.repeat_sd),
                ("probability of a lead this large by chance", Probability(lead.p_value), self.false_alarms),
            ),
            changes=changes,
        )

    def _indices_of_bad_repeats(self, best: repeats.Setting, rival: repeats.Setting | None) -> list[int]:
        gap = widest_cost_gap(best.costs)
        if gap is None or gap.p_value > self.false_alarms:
            return []
        worse = [i for i in range(len(best.costs)) if (i in gap.smaller_group) == gap.is_smaller_group_worse]
        return [i for i in worse if rival is None or best.costs[i] > rival.mean]

    def _advise_without_clear_winner(
        self, study: Study, best: repeats.Setting, rival: repeats.Setting, lead: difference.Difference, noun: str
    ) -> tuple[Message, tuple[Change, ...] | None]:
        one = _differing_value_text(study, best, rival) or Name(best.trials[0].name)
        other = _differing_value_text(study, rival, best) or Name(rival.trials[0].name)
        needed = difference.repeats_needed(
            lead.gain, lead.repeat_sd, level=self.false_alarms, power=self.power, max_repeats=self.most
        )
        needed = max(needed, self.first)
        equal = "Treat {one} and {other} as equally good"
        if lead.p_value <= self.false_alarms and lead.gain > 0:
            action = say(f"{equal}: the lead is too small to matter.", one=one, other=other)
            return action, None
        if needed > self.most:
            action = say(f"{equal}: not even {self.most} {noun}s each would separate them.", one=one, other=other)
            return action, None
        advice = say(f"{equal} until one of them shows a lead that matters.", one=one, other=other)
        gap, sd = Number(abs(lead.gain)), Number(lead.repeat_sd)
        why = f"The difference of {gap} is within the variation between {noun}s (standard deviation {sd})"
        repeat = RepeatTrial(parameters=dict(best.params), rivals=(dict(rival.params),), seeds=needed, why=why)
        action = say("Run {one} and {other} {needed} times each before you adopt either.", one=one, other=other, needed=needed)
        return action, (Advise(text=str(advice)), repeat)


def _differing_value_text(study: Study, own: repeats.Setting, other: repeats.Setting) -> Message | None:
    different_names = [n for n in study.searched if own.params.get(n) != other.params.get(n)]
    if len(different_names) != 1 or different_names[0] not in own.params:
        return None
    return say("{name} {value}", name=Name(different_names[0]), value=value_words(own.params[different_names[0]]))


def _message(study: Study, best: repeats.Setting, rival: repeats.Setting, lead: difference.Difference, noun: str) -> Message:
    if abs(lead.gain) <= 0.01 * lead.repeat_sd:
        name = say("that of {name}", name=Name(rival.trials[0].name))
        lead_text = say("is as good as {rival}", rival=_differing_value_text(study, rival, best) or name)
    elif lead.gain > 0:
        lead_text = say("leads by {gain}", gain=lead.gain)
    else:
        lead_text = say("has the best run but is {gain} behind on average", gain=-lead.gain)
    chance = say("The probability of such a difference by chance is {p}.", p=Probability(lead.p_value))
    return say(
        "{who} {ahead}: a mean of {own} over {runs}, compared with {other} over {repeats}{fresh}. "
        f"The standard deviation between {noun}s is {{sd}}. {{chance}}",
        who=_differing_value_text(study, best, rival) or say("The setting of trial {name}", name=Name(best.trials[0].name)),
        ahead=lead_text,
        own=Objective(study.objective_value(best.mean)),
        other=Objective(study.objective_value(rival.mean)),
        runs=CountOf(len(best.costs_after_selection), noun),
        repeats=CountOf(len(rival.costs_after_selection), noun),
        fresh=" after the selection" if best.selection_size or rival.selection_size else "",
        sd=Number(lead.repeat_sd, 2),
        chance="There are too few repeats for a test." if math.isnan(lead.p_value) else chance,
    )


MIN_EVALUATION_NOISE_RATIO = 2.0
"""Minimum ratio of the best trial's noise between evaluations to the noise of the trial with which it is compared."""
_MAX_LUCK_PROBABILITY = 0.05
"""Maximum probability that the other trial is at least as good, for the best trial's lead to count as more than luck."""
_MAX_RIVAL_TRIALS = 10
"""Maximum number of trials after the best one, in the order of results, that are searched for a trial with less noise."""
_N_NOISE_DRAWS = 500
_LUCKY_LEAD_VARIANCE = 0.94
"""Variance of a lead due to chance, in units of the noise variance of one evaluation: 0.66 from the estimate of the smooth
curve and 0.28 from the best of 20 evaluations."""


@dataclass(frozen=True)
class LuckyLead:
    """The best trial, the best one among the trials with less noisy evaluations, and the lead between the two that noise alone
    explains: the lowest of many noisy costs is low by chance."""

    best: Trial
    rival: Trial
    observed_lead: float
    expected_lead: float
    """Expected lead if the smooth curves of both trials had equal minima."""
    best_noise_sd: float
    rival_noise_sd: float
    rival_as_good_probability: float
    """Probability that the other trial is at least as good; 0.5 if the lead equals the lead that is expected by chance."""


def find_lucky_lead(study: Study) -> LuckyLead | None:
    """Return the lead that noise explains; None if noise does not explain the best trial's lead over a trial with less noisy
    evaluations."""
    best_first = study.ranked()
    halves = (split_around_best(study.cost_curve(t).finite.values) for t in best_first)
    if (best_half := next(halves, None)) is None:
        return None
    best, best_sd = best_first[0], _evaluation_noise_sd(best_half)
    for rival, half in zip(best_first[1 : _MAX_RIVAL_TRIALS + 1], halves, strict=False):
        if half is None or not 0 < MIN_EVALUATION_NOISE_RATIO * (sd := _evaluation_noise_sd(half)) <= best_sd:
            continue
        observed_lead = float(study.costs[rival.index] - study.costs[best.index])
        expected_lead = _expected_noise_gain(best_half) - _expected_noise_gain(half)
        error = math.sqrt(_LUCKY_LEAD_VARIANCE) * math.hypot(best_sd, sd)
        # The normal distribution function, with a flat prior on the difference between the minima of the two smooth curves.
        probability = math.erfc((observed_lead - expected_lead) / (error * math.sqrt(2))) / 2
        lucky_lead = LuckyLead(best, rival, observed_lead, expected_lead, best_sd, sd, probability)
        return lucky_lead if observed_lead > 0 and probability > _MAX_LUCK_PROBABILITY else None
    return None


def _evaluation_noise_sd(half: HalfAroundBest) -> float:
    """Return the standard deviation of one evaluation's noise; `noise_sd` is the lowest of several estimates, so too low."""
    return max(half.noise_sd, float(np.std(half.residuals)))


def _expected_noise_gain(half: HalfAroundBest) -> float:
    """Return the expected difference between the minimum of the true smooth curve and the lowest evaluation."""
    points = half.smooth_curve + half.residuals
    # A single parabola, because local parabolas follow the noise and would pass close to the lowest evaluation.
    smooth_curve = smooth_savgol(points, len(points) - 1 + len(points) % 2)
    noise = _evaluation_noise_sd(half) * np.random.default_rng(0).standard_normal((_N_NOISE_DRAWS, len(smooth_curve)))
    return float(smooth_curve.min() - (smooth_curve + noise).min(axis=1).mean())
