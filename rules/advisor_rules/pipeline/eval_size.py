from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from advisor.computed.curves import noise
from advisor.computed.decision import repeats
from advisor.computed.pipeline import checkpoints, validation
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import FigureEvidence, table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.message import Message, Name, Number, Objective, Percent, Probability, list_message, say
from advisor.model.space import round_up_steps
from advisor.model.study import Study, Trial
from advisor.stats.heterogeneity import Heterogeneity, measure_heterogeneity

_EQUAL_TRIALS_ADVICE = (
    "Treat these trials as equal and choose one of them by cost or simplicity, or repeat them with several seeds: no "
    "realistic validation set separates them."
)
_MIN_VALIDATION_GROWTH_FACTOR = 2.0
"""Minimum factor by which the advice enlarges the validation set. With exactly the number of examples needed, half of all
validation sets would not show the difference."""
_SEED_NOISE_ADVICE = "Treat these trials as equal: repeats of one setting differ as much, so more examples would not rank them."
_CLASS_COUNTS_ADVICE = "Log the number of right answers for rare classes, and validate on more examples of these classes."
_KEPT_CHECKPOINTS_ADVICE = "The checkpoints that these trials kept can be evaluated on them without new training."


class EvalSize(Rule):
    """The validation set is too small to distinguish the best trials.

    ## What it looks at
    The rule estimates the standard error of the best trials' objective from the number of validation examples. For an accuracy
    or an error rate, the number of examples determines the standard error; for a loss or a score, the standard deviation over
    the examples must be logged. The rule compares the range of the best trials, one per setting, with the range that equally
    good trials would have. The rule fires if the range of the best trials is no wider than by chance, and if the detectable
    difference is a large part of the distance from the best to the median trial. The rule also fires if at least three settings
    reach a perfect score: an accuracy of 1 or 100, an error of 0. No search can improve a perfect score, so the finding about
    it comes before any other change.

    ## Why it matters
    The choice between indistinguishable trials depends on the examples that happen to be in the set. If a class has few
    examples, a single example can look like progress on that class.

    ## What to do
    Validate on more examples, or treat the best trials as equal and use another criterion. If repeats of one setting differ as
    much as the best trials, more validation examples would not rank the trials. For rare classes, compare numbers of right
    answers instead of shares.

    ## How sure
    Confidence is the probability that, on another validation set of the same size, the range of the best trials would again be
    no wider than by chance. In simulated studies of 2 to 100 trials and 200 or 1,000 examples, the rule fired in at most 3 % of
    studies if the best trials differed by 2.5 times the detectable difference, and in 9 % if they differed by twice the
    detectable difference. If all trials were equal, the rule fired in at least 93 % of studies, unless the detectable
    difference was a small part of the gain. Perfect scores of three settings need no statistical test. For noise between the
    evaluations of one trial, see `curve-step-variance`.
    """

    playbook = "Choosing a sample for periodic evaluation"
    goal = "efficiency"
    compares_results = True
    explains = Relation(
        rules=("curve-step-variance", "adopt"),
        because="With so few validation examples, different trials have similar results.",
    )

    best: Count = 5
    """Number of best trials to compare. Our choice."""
    agreement: Share = validation.ERROR_CORRELATION
    """Assumed correlation between the errors of two trials over the examples. Published disagreement rates between two training
    runs of one architecture imply a correlation of about one half."""
    blur: Share = 0.1
    """Maximum detectable difference without a finding, as a share of the distance from the best to the median trial. Our
    choice."""
    rare: Count = 20
    """Minimum number of validation examples of a class. With fewer than 20 examples, one example changes the accuracy of the
    class by more than 0.05, which is the playbook's example."""
    false_alarms: Share = 0.05
    """Maximum probability that trials of equal quality seem to differ."""

    def check(self, study: Study) -> Iterator[Finding]:
        settings = repeats.first_trial_per_setting(study.ranked())
        trials = settings[: self.best]
        if len(trials) < 2:
            raise MissingData("fewer than two settings ended with a finite objective", needs="trials", at_least=2)
        costs = study.costs[[t.index for t in trials]]
        if perfect := validation.perfect_trials(study):
            yield self._report_perfect_scores(study, perfect, len(settings))
            return
        try:
            errors = validation.standard_errors(study, trials)
        except MissingData:
            # The standard error of metrics such as F1 or AUC is unknown, but the rule can still examine rare classes.
            rare = tuple(self._report_rare_classes(study, trials[0]))
            if not rare:
                raise
            yield from rare
            return
        test = measure_heterogeneity(costs, errors * math.sqrt(1 - self.agreement), self.false_alarms)
        gain = float(np.median(study.costs[study.feasible]) - costs[0])
        if test.p_value > self.false_alarms and test.critical_range > self.blur * gain:
            yield self._report_small_validation_set(study, trials, test, gain)
        else:
            yield from self._report_rare_classes(study, trials[0])

    def _report_perfect_scores(self, study: Study, perfect: Sequence[Trial], settings: int) -> Finding:
        text = (
            "{k} of {settings} settings reach a best {metric} of {score}. No result can be better, so the metric no longer "
            "distinguishes the settings."
        )
        metric = Name(study.spec.objective.metric)
        score = Objective(study.objective_value(float(study.costs[perfect[0].index])))
        message = say(text, k=len(perfect), settings=settings, metric=metric, score=score)
        figures = table(("settings with a perfect score", say("{k} of {settings}", k=len(perfect), settings=settings)))
        advice = _harder_evaluation_advice(study, perfect)
        # A perfect score needs no test.
        finding = self._build_finding(study, message, advice, "critical", 0.95, perfect, figures)
        return finding.model_copy(update={"goal": "pipeline"})

    def _report_small_validation_set(self, study: Study, trials: Sequence[Trial], test: Heterogeneity, gain: float) -> Finding:
        n, factor = trials[0].fact("n_valid"), max(test.examples_factor, _MIN_VALIDATION_GROWTH_FACTOR)
        seeds_decide = noise.seed_noise_explains_differences(study, trials, self.false_alarms)
        is_tied = not test.observed_range > 0
        action: Message | str = _EQUAL_TRIALS_ADVICE
        if seeds_decide:
            action = _SEED_NOISE_ADVICE
        elif is_tied:
            max_gain = validation.distance_to_perfect_score(study)
            ratio = test.critical_range / max_gain if max_gain > 0 else 0.0
            examples = n * ratio * ratio  # a power would raise an error beyond the largest float
            action = _harder_evaluation_advice(study, trials, examples)
        elif factor <= validation.MAX_VALIDATION_SET_GROWTH:
            text = "Validate on about {n} examples, {factor} times as many, or treat these trials as equal."
            action = say(text, n=round_up_steps(n * factor), factor=Number(factor, 2))
        text = (
            "With {n} validation examples, only differences of {least} in {metric} can be detected. The {k} best trials differ "
            "by {spread}, so any of them may be the best."
        )
        least, metric = Number(test.critical_range, 2), Name(study.spec.objective.metric)
        message = say(text, n=round(n), least=least, metric=metric, k=len(trials), spread=Number(test.observed_range, 2))
        if is_tied:
            message = _tied_settings_message(study, trials, test.critical_range)
        severity: Severity = "warning" if test.critical_range > gain and not seeds_decide else "note"
        confidence, figures = test.chance_below_critical_range, self._evidence_table(trials, test, gain)
        return self._build_finding(study, message, action, severity, confidence, trials, figures)

    def _evidence_table(self, trials: Sequence[Trial], test: Heterogeneity, gain: float) -> FigureEvidence:
        text, exceed = "{least}; {exceed} of sets of equally good trials differ more", Percent(self.false_alarms)
        detectable = say(text, least=float(test.critical_range), exceed=exceed)
        counts = validation.validation_class_counts(trials[0])
        return table(
            ("validation examples", round(trials[0].fact("n_valid"))),
            ("standard error of one trial", float(test.error / math.sqrt(1 - self.agreement))),
            ("standard error of the difference of two trials", float(test.error)),
            ("assumed correlation of errors", self.agreement),
            (f"range of the {len(trials)} best trials", float(test.observed_range)),
            ("detectable range", detectable),
            ("p-value of the range if the trials are equal", Probability(test.p_value)),
            ("distance from the best to the median trial", gain),
            ("limit of the detectable range, as a share of this distance", Percent(self.blur)),
            *([("examples of the rarest class", min(counts))] if counts else []),
        )

    def _report_rare_classes(self, study: Study, trial: Trial) -> Iterator[Finding]:
        counts = sorted(validation.validation_class_counts(trial))
        rare_counts = [n for n in counts if n < self.rare]
        if rare_counts:
            text = (
                "{n} of {classes} classes have fewer than {limit} validation examples; the rarest class has {rarest}. One "
                "more right answer changes the accuracy of the rarest class by {step}."
            )
            change = Percent(1 / max(rare_counts[0], 1))
            message = say(text, n=len(rare_counts), classes=len(counts), limit=self.rare, rarest=rare_counts[0], step=change)
            figures = table(("examples of each class", list_message([f"{n:,}" for n in counts], 20)))
            yield self._build_finding(study, message, _CLASS_COUNTS_ADVICE, "note", 1.0, [trial], figures)

    def _build_finding(
        self,
        study: Study,
        message: Message,
        advice: Message | str,
        severity: Severity,
        confidence: float,
        trials: Sequence[Trial],
        figures: FigureEvidence,
    ) -> Finding:
        return self.finding(
            message,
            action=advice,
            severity=severity,
            confidence=confidence,
            subject=study.spec.objective.metric,
            trials=trials,
            evidence=figures,
            changes=(Advise(text=str(advice), new_scores=advice not in (_EQUAL_TRIALS_ADVICE, _SEED_NOISE_ADVICE)),),
        )


def _tied_settings_message(study: Study, trials: Sequence[Trial], detectable: float) -> Message:
    n, least = round(trials[0].fact("n_valid")), Number(detectable, 2)
    max_gain = validation.distance_to_perfect_score(study)
    limit = say("{n} validation examples show only differences of {least}.", n=n, least=least)
    if max_gain < detectable:
        text = (
            "A perfect score would be better by only {room}, which is less than the {least} that {n} validation examples can "
            "show, so no setting can be shown to be better."
        )
        limit = say(text, room=Number(max_gain, 2), least=least, n=n)
    metric, value = Name(study.spec.objective.metric), Objective(study.objective_value(float(study.costs[trials[0].index])))
    text = "The {k} best settings have the same best {metric}, {value}. {limit}"
    return say(text, k=len(trials), metric=metric, value=value, limit=limit)


def _harder_evaluation_advice(study: Study, trials: Sequence[Trial], examples: float = 0.0) -> str:
    """Return the advice to evaluate on harder or more examples. `examples`: number needed to distinguish a perfect score from
    the best result, or 0 if unknown."""
    unit = "episodes" if study.kind == "reinforcement-learning" else "examples"
    n, loss = trials[0].fact("n_valid"), _finer_evaluation_metric(study, trials)
    is_realistic = n < examples <= n * validation.MAX_VALIDATION_SET_GROWTH
    amount = f"at least {round_up_steps(examples):,} harder" if is_realistic else "more or harder"
    use_late = loss is None and any(len(study.cost_curve(t)) > 1 for t in trials)
    instead = (loss or "by a finer metric") + (", and judge trials by the mean of their late evaluations" if use_late else "")
    advice = f"Evaluate on {amount} {unit}, or {instead}."
    return f"{advice} {_KEPT_CHECKPOINTS_ADVICE}" if all(map(checkpoints.checkpoint_paths, trials)) else advice


def _finer_evaluation_metric(study: Study, trials: Sequence[Trial]) -> str | None:
    """Return the advice to compare the validation loss if it can replace the objective; else None. The loss of preference
    training depends on beta."""
    loss = study.signals.get("valid_loss")
    if loss is None or loss == study.spec.objective.metric or study.kind == "reinforcement-learning":
        return None
    by_preferences = study.has("train_chosen_logp") or study.has("valid_chosen_logp")
    if not by_preferences or "beta" not in study.searched:
        return f"compare {loss}"
    betas = [trial.params.get("beta") for trial in trials]
    if len(set(betas)) < len(betas):
        return f"compare {loss} among trials with the same beta"
    return f"fix beta and compare {loss}, which depends on beta"
