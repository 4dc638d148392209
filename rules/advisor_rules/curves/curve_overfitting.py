from __future__ import annotations

import math
from collections.abc import Iterator

from advisor.computed.curves import overfit
from advisor.engine.rule import Relation, Rule, Share
from advisor.model.change import Change, change_training_length
from advisor.model.evidence import Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Name, Number, Objective, Percent, Probability, say
from advisor.model.space import round_up_steps
from advisor.model.study import Study, Trial
from advisor.model.usual_rates import is_fine_tuning
from advisor.stats.curve import MIN_POINTS
from advisor_rules.curves import _pooled_rise


class CurveOverfitting(Rule):
    """The validation metric gets worse after its best step while the training metric still improves.

    ## What it looks at
    The rule reads the validation curve of every feasible trial. The rule tests if the curve's final level (the median of the
    last tenth) lies above its lowest earlier level. The lowest of many noisy levels is partly low by chance, so the p-value is
    multiplied by the number of levels. The noise is estimated from the curve itself, over single points and over tenths of its
    length, so that slow drift does not count as a rise. A training metric (the objective on training data, or a loss) must fall
    over the same steps, and no training metric may rise: a trial whose training also gets worse is unstable and does not
    overfit. For each combination of values of the scientific hyperparameters, the best trial is tested first. If the objective
    is not a loss, the validation loss is tested second, because it often rises although the accuracy does not fall.

    With few evaluations, no single trial can show overfitting, but many trials together can. Overfitting is shown if most of
    the trials end worse than they were at a common earlier point of the training (sign test), while their training metric
    falls.

    ## Why it matters
    If trials overfit, the study prefers anything that hampers training, such as a tiny learning rate or a small model. Values
    of a scientific hyperparameter can be compared fairly only if each is regularised well. If the study compares strengths of a
    regulariser and only low strengths overfit, the rule is quiet, because this overfitting is expected.

    ## What to do
    Extend the range of one searched regulariser upwards. If no regulariser is searched, compare a few strengths of dropout or
    weight decay, including zero; change one regulariser at a time, so that its effect stays visible. Check the number of steps
    again afterwards, because regularised training usually needs more steps. Prefer regularisation to a smaller model.
    Fine-tuned models overfit within a few epochs, so first train them for fewer epochs.

    ## How sure
    Confidence is 1 minus the p-value, corrected for the number of trials (Benjamini-Hochberg). Confidence is multiplied by 0.6
    if no training metric was logged, because the trial may be unstable instead of overfitted. In simulated studies of 1 or 10
    trials whose curves fall and flatten, with a lag-1 autocorrelation of the noise up to 0.8, the rule fired in at most 1 % of
    studies. If a single trial rises by 10 or 20 times its noise, the rule found the rise in 28 and 85 % of simulated studies
    with 10 evaluations, in 93 and 100 % with 20, and always with 50.
    """

    playbook = "Examining the training curves"
    goal = "regularisation"
    needs_learning = True
    not_for = frozenset({"reinforcement-learning", "gan"})
    explains = (
        Relation(
            rules=("ckpt-best-lost",),
            shares="trials",
            because="The trial overfits after its best step, so its last step is worse than its best one.",
            waits=False,
        ),
        Relation(
            rules=("step-position",),
            shares="a trial",
            because="The trials overfit after their best step; once they are regularised, they may need more steps.",
            max_severity="note",
        ),
    )

    material: Share = 0.02
    """Minimum rise of a curve, as a share of the range of its own levels and of the range of the best trial's levels. Our
    choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which chance alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        trials, objective = study.ranked(), study.spec.objective.metric
        if not trials:
            raise MissingData("no trial ended with a finite objective", needs="trials", at_least=1)
        winners = _pooled_rise.best_trial_per_combination(study, trials)
        winner_indices = {t.index for t in winners}
        curves = overfit.validation_cost_functions(study)
        # The significance level is divided among the metrics and among three tests: of the best trial of each setting, of all
        # other trials, and of all trials together. With too few evaluations to test a single trial, only the test of all trials
        # together is made.
        was_tested = False
        for metric, costs in curves:
            overfits = overfit.measure_overfitting_of_trials(study, trials, metric, costs, material=self.material)
            was_tested = was_tested or bool(overfits)
            alpha = self.false_alarms / ((3 if overfits else 1) * len(curves))
            significant = overfit.significant_overfits([r for r in overfits if r.trial.index in winner_indices], alpha)
            significant += overfit.significant_overfits([r for r in overfits if r.trial.index not in winner_indices], alpha)
            # The curve of a trial that learned nothing has a small range, so its rise is also compared with the best trial's gain.
            gain = next((r.rise.gain for r in overfits if r.trial.index == trials[0].index), 0.0)
            significant = [h for h in significant if h.rise.height >= self.material * gain]
            if significant and not _pooled_rise.do_only_weak_settings_overfit(study, [h.trial for h in significant], trials):
                yield self._report_single_overfits(study, metric, costs, significant, winners)
                return
            pooled = _pooled_rise.measure_pooled_rise(study, trials, costs)
            was_tested = was_tested or (pooled is not None and pooled.lowest_possible_p <= alpha)
            if pooled is None or pooled.p_value > alpha or pooled.share < self.material or pooled.height < self.material * gain:
                continue
            if not _pooled_rise.do_only_weak_settings_overfit(study, pooled.rising_trials, trials):
                yield self._report_pooled_overfitting(study, metric, costs, pooled, winners)
                return
        if not was_tested:
            reason = (
                f"no trial has {MIN_POINTS} evaluations of {objective}, and too few trials have {overfit.MIN_EVALUATIONS_TO_POOL} "
                "evaluations; evaluate more often"
            )
            raise MissingData(reason, needs="evaluations", at_least=MIN_POINTS)

    def _report_pooled_overfitting(
        self, study: Study, metric: str, costs: overfit.CostCurveFunction, pooled: _pooled_rise.PooledRise, winners: list[Trial]
    ) -> Finding:
        trials, training, point = pooled.rising_trials, pooled.falling_training_metric, Percent(pooled.best_position)
        action, changes = _choose_remedy(study, costs, trials[0], pooled.best_position * study.planned_steps(trials[0]))
        caption = say("{metric} gets worse after {point} of the training.", metric=Name(metric), point=point)
        return self.finding(
            say(
                "{n} of {of} trials overfit: {metric} at their end is worse than after {point} of the training, by {height} in the "
                "median{training}.{caveats}",
                n=len(trials),
                of=pooled.judged_count,
                metric=Name(metric),
                point=point,
                height=Number(pooled.height, 2),
                training=say(", while {name} still improves", name=Name(training)) if training else "",
                caveats=_caveat_sentences(training, metric, study.spec.objective.metric),
            ),
            action=action,
            severity="warning" if trials[0] in winners and metric == study.spec.objective.metric else "note",
            confidence=(1 - pooled.p_value) * (1.0 if training else 0.6),
            subject=metric,
            trials=trials,
            evidence=(
                curve_plot([metric, training] if training else metric, caption, trials[:5]),
                table(
                    ("trials that end worse", say("{n} of {of}", n=len(trials), of=pooled.judged_count)),
                    ("median rise, as a share of the range of the curve", Percent(pooled.share, 1), self.material),
                    ("p-value of the sign test", Probability(pooled.p_value), self.false_alarms),
                ),
            ),
            changes=changes,
        )

    def _report_single_overfits(
        self, study: Study, metric: str, costs: overfit.CostCurveFunction, overfits: list[overfit.Overfit], winners: list[Trial]
    ) -> Finding:
        top, training, n, of = overfits[0], overfits[0].falling_training_metric, len(overfits), len(study.ranked())
        rise, shown_overfits = top.rise, overfits[:5]
        action, changes = _choose_remedy(study, costs, top.trial, top.best_step)
        caption = say("{metric} gets worse after {best}.", metric=Name(metric), best=study.at(top.best_step))
        marks = [Mark(trial=h.trial.id, step=h.best_step, label="best level") for h in shown_overfits]
        share_label = "rise, as a share of the range of levels (medians over a tenth of the curve)"
        text = "{rise}{trials}{caveats}"
        trials = say(" {n} of {of} trials with a result overfit.", n=n, of=of) if of > 1 else ""
        caveats = _caveat_sentences(training, metric, study.spec.objective.metric)
        return self.finding(
            say(text, rise=_overfitting_sentence(study, metric, top, winners), trials=trials, caveats=caveats),
            action=action,
            severity="warning" if top.trial in winners and metric == study.spec.objective.metric else "note",
            confidence=(1 - top.p_value) * (1.0 if training else 0.6),
            subject=metric,
            trials=[h.trial for h in overfits],
            evidence=(
                curve_plot([metric, training] if training else metric, caption, [h.trial for h in shown_overfits], marks=marks),
                table(
                    ("evaluations of the trial", len(top.curve)),
                    (share_label, Percent(rise.share, 1), self.material),
                    ("rise and its standard error", say("{rise}, {error}", rise=rise.height, error=rise.error)),
                    ("p-value, corrected for steps and trials", Probability(top.p_value), self.false_alarms),
                    ("trials with a result that overfit", say("{n} of {of}", n=n, of=of)),
                ),
            ),
            changes=changes,
        )


def _choose_remedy(
    study: Study, costs: overfit.CostCurveFunction, trial: Trial, best: float
) -> tuple[Message, tuple[Change, ...]]:
    """Return (action, changes). Fine-tuned models should train only up to `best`, the step at which the trial is best."""
    if not is_fine_tuning(study) or not best > 0:
        changes = tuple(overfit.regulariser_changes(study, costs))
        action = "Try {regularisers} before you choose a smaller model."
        return say(action, regularisers=overfit.regulariser_phrase(changes)), changes
    steps = round_up_steps(best)
    epoch = trial.fact("steps_per_epoch") if study.unit == "step" else math.nan
    length = say(" ({n} epochs)", n=Number(steps / epoch, 2)) if epoch > 0 else ""
    action = "Fine-tune for fewer epochs: {steps}{length}, and let the learning rate decay by then."
    why = "Results get worse after these steps; a fine-tuned model overfits within a few epochs"
    return say(action, steps=study.length(steps), length=length), (change_training_length(study, steps, why),)


def _overfitting_sentence(study: Study, metric: str, top: overfit.Overfit, winners: list[Trial]) -> Message:
    costs, training = (top.rise.best_level, top.rise.level), top.falling_training_metric
    best, end = costs if metric != study.spec.objective.metric else (study.objective_value(v) for v in costs)
    trial_text = "Trial {trial}"
    if top.trial in winners:
        trial_text = "The best trial, {trial}," if top.trial == winners[0] else "The best trial of its setting, {trial},"
    return say(
        f"{trial_text} overfits: {{metric}} gets worse, from about {{best}} at {{step}} to {{end}} at its end{{training}}.",
        trial=Name(top.trial.name),
        metric=Name(metric),
        best=Objective(best),
        step=study.at(top.best_step),
        end=Objective(end),
        training=say(", while {name} still improves", name=Name(training)) if training else "",
    )


def _caveat_sentences(training: str | None, metric: str, objective: str) -> Message:
    caveat = "" if training else " No training metric was logged, so the cause may be instability instead of overfitting."
    if metric == objective:
        return say("{note}", note=caveat)
    return say("{note} The objective, {name}, does not get worse beyond noise.", note=caveat, name=Name(objective))
