from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.space import extension, failures
from advisor.computed.space.inside import trials_in_space
from advisor.computed.stability.loss_blowups import is_unstable as is_loss_unstable
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise, Change, SetRange
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.learning_rate import searched_learning_rates
from advisor.model.message import Message, Name, Objective, Percent, Probability, say
from advisor.model.space import round_significant
from advisor.model.study import Study, Trial
from advisor.model.usual_rates import HALF_DECADE, SGD_RATES
from advisor.model.words import setting
from advisor_rules.curves._chance_level import SkillOverGuessing, compute_skills, did_training_loss_fall, training_loss_curve


class CurveWorseThanChance(Rule):
    """No trial is clearly better than guessing, or than the untrained model.

    ## What it looks at
    The rule compares the objective of the trials with the score of guessing. Trials may log the score of guessing. If it was
    not logged, the score of guessing follows from the classes, their sizes and the metric's name: for an accuracy the share of
    the most frequent class, for a loss the entropy of the classes, for an AUC one half. If the classes are unknown too, but the
    lowest validation loss is near log K for an integer K (with more than ten classes, every loss is), guessing among K classes
    is the chance level of the accuracy. If the scores of several trials stay constant at a higher share of one class, that
    share is the chance level. If neither the score of guessing nor the classes are known, the chance level is the evaluation
    before training (or a later one if the training loss had not fallen by then). The best level of each trial, a median over a
    tenth of its evaluations, is compared with guessing. A trial is clearly better than guessing if it covers, beyond noise, 2 %
    of the distance from guessing to a perfect score. If the metric is a share of right answers, the trial must double the share
    that guessing gets right, or cover a tenth of the distance to a perfect score. The rule is quiet if one trial is clearly
    better than guessing.

    ## Why it matters
    If no trial learned anything, hyperparameters are not the reason. Part of the pipeline is broken, and tuning is useless
    until it is fixed. The apparent best trial won by chance.

    ## What to do
    If training runs smoothly but learns next to nothing, the learning rates may be far too low. The next study then searches
    from half a decade below the highest learning rate that was tried to a decade above it. If training is not smooth, or if
    higher learning rates do not help, train on one batch until its loss is near zero. If the loss on one batch stays high,
    check the loss, the gradients and the learning rates. If the loss of the best trial, or of half of the trials, blew up, the
    learning rates are probably too high, so the next study searches the two decades below the tried rates. If the loss on one
    batch falls to near zero, check the data: labels that belong to other examples, inputs that are all alike, validation data
    prepared differently. If the training loss already fell below half of its first value, the model fits its training data, so
    the data is the first suspect.

    ## How sure
    Confidence is the probability, given the noise and the number of validation examples, that the best trial's true gain is
    below twice the required gain; a confidence below one half raises no finding. If the best trial's gain over guessing is
    small but beyond noise, the finding is only a warning. In simulations (150 studies per design) with 1 to 12 trials whose
    losses fell by a tenth, the rule never fired if the noise was a tenth of the fall, and fired in 0 to 1 % if it was a third
    to a half. If 1 to 50 trials with 40 to 10,000 validation examples learned nothing, the rule fired in 97 to 100 % of
    simulated studies.
    """

    playbook = "Examining the training curves"
    goal = "pipeline"
    before_exploitation = "not-fired"
    explains = (
        Relation(
            rules="needs_learning",
            because="No trial learned anything, so their differences and the shapes of their curves are chance.",
            blinds=True,
        ),
        Relation(
            rules=("eval-size",),
            because="No trial learned anything, so their results say nothing about the size of the validation set.",
            blinds=True,
        ),
        Relation(
            rules=("curve-train-loss-rises",),
            shares="trials",
            because="The trial learned nothing because of the fault that affects all trials.",
        ),
        Relation(
            rules=("stability-early", "stability-mid", "stability-spikes"),
            because="No trial learned anything, not even the stable ones.",
            min_severity="critical",
        ),
        Relation(
            rules=("space-infeasible",),
            because="Trials fail everywhere in the space, and none of the other trials learned anything.",
            effect_at="everywhere",
        ),
    )

    trials: Count = 64
    """Maximum number of best trials to compare with guessing."""
    material: Share = 0.02
    """Minimum gain, as a share of the distance from guessing to a perfect score. Our choice."""
    answers: Share = 0.1
    """Minimum gain for a metric that is a share of right answers with a known chance level, as a share of the distance from
    guessing to a perfect score; the chance level itself if that is smaller. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which noise alone makes a trial that learned nothing better than guessing."""

    def check(self, study: Study) -> Iterator[Finding]:
        best_trials = study.ranked()[: self.trials]
        best_trials = trials_in_space(study.spec, best_trials) or best_trials
        if not best_trials:
            raise MissingData("no trial ended with a finite objective", needs="trials", at_least=1)
        skills = compute_skills(study, best_trials)
        alpha = self.false_alarms / len(best_trials)
        if any(s.gain_exceeds(self._required_gain(s), alpha) for s in skills):
            return
        metric = study.spec.objective.metric
        if len(skills) < len(best_trials):
            raise MissingData(
                f"the score of guessing on {metric} is unknown; log the number of classes, or an evaluation before the first step",
                needs="facts",
            )
        top = min(skills, key=lambda s: (s.best_cost, s.trial.index))
        confidence = top.probability_of_gain_below(2 * self._required_gain(top))
        if confidence < 0.5:
            raise MissingData(f"{metric} is too noisy to compare the best trial with guessing; evaluate on more examples")
        yield self._build_finding(study, top, len(best_trials), alpha, confidence)

    def _required_gain(self, skill: SkillOverGuessing) -> float:
        return self.answers if math.isfinite(skill.chance_level.right_answers) else self.material

    def _build_finding(self, study: Study, top: SkillOverGuessing, judged: int, alpha: float, confidence: float) -> Finding:
        metric, guessed = study.spec.objective.metric, study.objective_value(top.chance_level.cost)
        small_gain, unstable = top.gain_exceeds(0.0, alpha), _instability_text(study, top.trial)
        advice = "train on a single batch until its loss is near zero, then check labels, inputs and evaluation."
        if unstable:
            changes = _search_lower_learning_rates(study)
            advice = f"Search learning rates that are orders of magnitude lower. If lower rates do not help, {advice}"
        elif changes := _search_higher_learning_rates(study, top, hardly=small_gain):
            advice = f"Search higher learning rates. If no trial learns there either, {advice}"
        elif any(_fits_training_data(study, t) for t in study.ranked()[: self.trials]):
            advice = (
                "Fix the data before you tune: the training loss falls by more than half, so check that labels belong to their "
                "examples and that validation data is prepared like training data."
            )
        else:
            advice = f"Fix the pipeline before you tune: {advice}"
        caption = say("{metric} stays near {guessed}.", metric=Name(metric), guessed=Objective(guessed))
        lines = {"guessing" if top.chance_level.is_known else "first evaluation": guessed}
        levels = say("{best}, {guessed}", best=_best_level(study, top), guessed=Objective(guessed))
        gain = say("{gain} (required: {limit})", gain=Percent(top.gain_share, 2), limit=Percent(self._required_gain(top)))
        return self.finding(
            _message(study, top, judged, unstable),
            action=advice,
            severity="warning" if small_gain or (unstable and not changes) else "critical",
            confidence=confidence,
            subject=metric,
            trials=[top.trial],
            evidence=(
                curve_plot(metric, caption, study.ranked()[:5], lines=lines),
                table(
                    ("trials judged", judged),
                    ("best level, guessing", levels),
                    ("gain, as a share of the distance to a perfect score", gain),
                    ("standard error of the gain", float(top.error)),
                    ("p-value of the gain", Probability(top.p_value), alpha),
                ),
            ),
            changes=(Advise(text=advice), *changes),
        )


def _fits_training_data(study: Study, trial: Trial) -> bool:
    loss = training_loss_curve(study, trial)
    return loss is not None and 0 <= float(np.median(loss[1].values[-3:])) < loss[1].values[0] / 2


def _best_level(study: Study, top: SkillOverGuessing) -> Objective:
    return Objective(study.objective_value(top.best_cost))


def _instability_text(study: Study, best: Trial) -> str:
    """Return the start of a sentence that the best trial's loss or most trials blew up; empty if training was stable."""
    if is_loss_unstable(study, best):
        return "Its loss"
    ended = [t for t in study.trials if study.ended[t.index]]
    diverged = failures.failure_masks(study).diverged
    bad = sum(bool(diverged[t.index]) or is_loss_unstable(study, t) for t in ended)
    return f"The loss of {bad} of {len(ended)} trials" if 2 * bad >= len(ended) else ""


def _message(study: Study, top: SkillOverGuessing, judged: int, unstable: str) -> Message:
    trial, loss, several = Name(top.trial.name), training_loss_curve(study, top.trial), judged > 1
    falls = "falls" if did_training_loss_fall(study, top.trial) else "hardly falls either"
    inside = "" if trials_in_space(study.spec, study.ranked()[:1]) else " in the searched ranges"
    way = say(", {share} of the way to a perfect score", share=Percent(top.gain_share, 1))
    has_way = top.gain_share > 0 and math.isfinite(top.chance_level.perfect_cost)
    return say(
        "{trials} {much} than {guessing}. The best level of {metric}{smoothed} is {best}{where}{way}.{training}{unstable}",
        trials=f"No trial{inside} is" if several else say("The only trial, {trial}, is not", trial=trial),
        much="much better" if top.gain_share > 0 else "better",
        guessing=top.chance_level.phrase,
        metric=Name(study.spec.objective.metric),
        smoothed=", smoothed," if top.best_cost > study.cost_curve(top.trial).finite.values.min() else "",
        best=_best_level(study, top),
        where=say(", in {trial}", trial=trial) if several else "",
        way=way if has_way else "",
        training=say(" The training loss, {loss}, {falls}.", loss=Name(loss[0]), falls=falls) if loss and not unstable else "",
        unstable=f" {unstable} blew up, so the learning rates are probably too high." if unstable else "",
    )


def _search_lower_learning_rates(study: Study) -> tuple[Change, ...]:
    rates = searched_learning_rates(study)
    old = study.spec.parameters[rates[0]] if rates is not None else None
    if rates is None or old is None or old.low is None or old.low <= max(old.declared_limits[0], 0.0):
        return ()
    low = max(round_significant(old.low / 100), old.declared_limits[0])
    why = f"No trial learned, and the loss blew up: the rates are too high. We search the two decades below {setting(old.low)}"
    return (SetRange(parameter=rates[0], low=low, high=old.low, scale="log", why=why),)


def _search_higher_learning_rates(study: Study, top: SkillOverGuessing, *, hardly: bool) -> tuple[Change, ...]:
    """Return the change to search higher learning rates, if no trial failed, the loss hardly changed in training, and the rates do
    not yet reach the usual rates of every optimizer, which are high enough to learn."""
    rates, failed = searched_learning_rates(study), failures.failure_masks(study)
    hardly_changes = hardly or did_training_loss_fall(study, top.trial) is False
    if rates is None or not hardly_changes or (failed.diverged | failed.crashed).any():
        return ()
    name, domain = rates[0], study.spec.parameters[rates[0]]
    usual = extension.usual_rates(study, name) or SGD_RATES
    extended = extension.extend_range(study, name, "high", math.inf) if domain.numeric else None
    if extended is None or (domain.high is not None and domain.high >= usual.high):
        return ()
    (low, high), _ = extended
    # Keep the highest tried rates in the range, because longer training or other hyperparameters may learn at these rates.
    low = max(low, round_significant((domain.high or low) / HALF_DECADE, 2))
    why = (
        f"No trial learned and none failed, so learning rates may be far too low. We search {setting(low)} to {setting(high)}."
    )
    return (SetRange(parameter=name, low=low, high=high, scale=domain.scale, why=why),)
