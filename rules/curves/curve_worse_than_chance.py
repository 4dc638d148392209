"""The rule `curve-worse-than-chance`; its page is the docstring of the class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from advisor.finding import Advise, CurveEvidence, FigureEvidence, Finding, Goal, Line, MissingData
from advisor.readings.blowups import unstable as unstable_loss
from advisor.readings.guessing import Skill, learned, skills, training
from advisor.rule import Count, Rule, Share
from advisor.study import Study


class CurveWorseThanChance(Rule):
    """No trial is clearly better than guessing, or than the model was before training.

    ## What it looks at
    What guessing scores on the objective: as noted by the training, or from the classes, their sizes and the metric's name (the
    most frequent class for an accuracy, the entropy of the classes for a loss, one half for an AUC). Where none of this is known,
    the share at which several trials stand still all along, as if giving one answer to everything; else the evaluation before
    training (or one that came later, if the training loss had not fallen either). Against it stands the best level of each trial,
    a median over a tenth of its evaluations. A trial is clearly better if it is so beyond noise and by more than a small share of
    the way from guessing to a perfect score; one such trial is enough for the rule to be quiet.

    ## Why it matters
    Hyperparameters do not explain that nothing was learned anywhere in a space: something in the pipeline is broken, and nothing
    else is worth tuning before. What looks like the best trial won by luck.

    ## What to do
    Train on one batch until its loss is near zero. Where that fails, look at the loss, the gradients and the learning rates: a
    range that is far too high ends like this, and where the best trial's loss blew up the finding says so and is but a warning.
    Where it works, look at the data: labels that belong to other examples, inputs that are all alike, validation data prepared
    differently.

    ## How sure
    Confidence is the probability, from the noise and the number of validation examples, that the best trial's true gain is below a
    twentieth of the way from guessing to perfect; where that is less than one half the rule cannot tell. A finding is only as good as
    the level of guessing: against the first evaluation alone it is a warning where the gain is small but beyond noise.
    Simulated, 300 studies each of 1 to 12 trials: of trials that gained a tenth of the way or more, with noise up to a tenth of
    that, none was called chance; of studies that learned nothing, with 5 to 100 evaluations and known chance, 98 to 100 % fired.

    Example: "No trial does clearly better than guessing, which scores 0.9: the best level of val/error is 0.892 in trial-3, 0.9% of
    the way to a perfect score, though train/loss falls."
    """

    playbook: ClassVar[str] = "Examining the training curves"
    goal: ClassVar[Goal] = "pipeline"

    trials: Count = 64
    """How many of the best trials to look at, at most."""
    material: Share = 0.02
    """Smallest gain over guessing that counts, as a share of the way to a perfect score. Our choice."""
    false_alarms: Share = 0.05
    """How often, per study, noise may lift a trial that learned nothing over guessing; a rarer gain counts as learned."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding."""
        ranked = study.ranked()[: self.trials]
        if not ranked:
            raise MissingData("no trial ended with a finite objective, so none can be compared with guessing")
        read = skills(study, ranked)
        if any(s.clear(self.material, self.false_alarms / len(ranked)) for s in read):
            return
        metric = study.spec.objective.metric
        if len(read) < len(ranked):
            raise MissingData(
                f"nothing says what guessing scores on {metric}; log the number of classes, or an evaluation before the first step"
            )
        top = min(read, key=lambda s: (s.best, s.trial.index))
        if top.sure < 0.5:
            raise MissingData(f"{metric} is too noisy to tell the best trial from guessing; evaluate on more examples")
        yield self._report(study, top, len(ranked))

    def _report(self, study: Study, top: Skill, judged: int) -> Finding:
        metric = study.spec.objective.metric
        best, guessed = study.objective_value(top.best), study.objective_value(top.guess.cost)
        message = f"{'No trial does' if judged > 1 else f'{top.trial.name} does not do'} clearly better than {top.guess.said}: "
        message += f"the best level of {metric} is {best:.4g}" + (f" in {top.trial.name}" if judged > 1 else "")
        message += f", {top.share:.1%} of the way to a perfect score" if top.share > 0 and top.knows_perfect else ""
        loss, unstable = training(study, top.trial), unstable_loss(study, top.trial)
        if loss is not None:
            message += (
                f", though {loss[0]} falls" if learned(study, top.trial) else f", and {loss[0]} hardly falls either"
            )
        message += "; its loss blew up, which may explain it" if unstable else ""
        hardly = not top.guess.known and top.p <= self.false_alarms / judged
        advice = "Before tuning, train on a single batch until its loss is near zero; then check labels, inputs and evaluation."
        first = "Try learning rates that are orders of magnitude lower first. " if unstable else ""
        return self.finding(
            message + ".",
            action=first + advice,
            severity="warning" if hardly or unstable else "critical",
            confidence=top.sure,
            subject=metric,
            trials=[top.trial],
            evidence=(
                CurveEvidence(
                    metrics=(metric,),
                    caption=f"{metric} stays near {guessed:.4g}.",
                    trials=tuple(t.id for t in study.ranked()[:5]),
                    lines=(Line(value=guessed, label="guessing" if top.guess.known else "first evaluation"),),
                ),
                FigureEvidence(
                    rows=(
                        ("trials judged", str(judged)),
                        ("best level, guessing", f"{best:.4g}, {guessed:.4g}"),
                        (
                            "gain, as a share of the way to perfect",
                            f"{top.share:.2%} (learned from {self.material:.0%})",
                        ),
                        ("standard error of the gain", f"{top.error:.2g}"),
                        ("p-value of the gain", f"{top.p:.2g} (learned up to {self.false_alarms:g} / {judged})"),
                    )
                ),
            ),
            changes=(Advise(text=first + advice),),
        )
