"""The rule `curve-worse-than-chance`; its page is the docstring of the class."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from advisor.computed.space import failures
from advisor.computed.stability import instability
from advisor.computed.stability.loss_blowups import unstable as unstable_loss
from advisor.engine.rule import Count, Relation, Rule, Settled, Share
from advisor.model.change import Advise, Change, SetRange
from advisor.model.evidence import CurveEvidence, FigureEvidence, Line
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study
from advisor.stats import boundaries
from advisor_rules.curves._chance_level import Skill, learned, skills, training


class CurveWorseThanChance(Rule):
    """No trial is clearly better than guessing, or than the model was before training.

    ## What it looks at
    What guessing scores on the objective: as noted by the training, or from the classes, their sizes and the metric's name (the
    most frequent class for an accuracy, the entropy of the classes for a loss, one half for an AUC). Where none of this is known,
    the share at which several trials stand still all along, as if giving one answer to everything; else the evaluation before
    training (or one that came later, if the training loss had not fallen either). Against it stands the best level of each trial,
    a median over a tenth of its evaluations. A trial is clearly better if it went, beyond noise, 2 % of the way from guessing to a
    perfect score. Of right answers it takes twice as many as chance gets, or a tenth of the way: a model that tells classes apart
    but not which is which still gets one or the other right as a whole. One such trial is enough for the rule to be quiet.

    ## Why it matters
    Hyperparameters do not explain that nothing was learned anywhere in a space: something in the pipeline is broken, and nothing
    else is worth tuning before. What looks like the best trial won by luck.

    ## What to do
    Train on one batch until its loss is near zero. Where that fails, look at the loss, the gradients and the learning rates: a
    range that is far too high ends like this, and where the best trial's loss blew up the finding says so and is but a warning.
    Where it works, look at the data: labels that belong to other examples, inputs that are all alike, validation data prepared
    differently. Where training runs smoothly and the training loss hardly falls, or validation gains next to nothing, the learning
    rates may be far too low: the next study searches two decades above them, too.

    ## How sure
    Confidence is the probability, from the noise and the number of validation examples, that the best trial's true gain is below
    twice what is asked for; where that is less than one half the rule cannot tell. Of trials that gained a little beyond noise it
    warns; only without any is the finding critical. Simulated, 150 studies each of 1 to 12 trials: of losses that fell by a
    tenth, with noise of a tenth of that, none was called chance, with noise of a third to a half of it 0 to 1 % (most could not
    be told); of accuracies of 1 to 50 trials that learned nothing, on 40 to 10,000 examples, 97 to 100 % fired.

    Example: "No trial does clearly better than guessing, which scores 0.9: the best level of val/error is 0.892 in trial-3, 0.9% of
    the way to a perfect score, though train/loss falls."
    """

    playbook: ClassVar[str] = "Examining the training curves"
    goal: ClassVar[Goal] = "pipeline"
    before_exploitation: ClassVar[Settled | None] = "not-fired"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "space-boundary",
                "space-insensitive",
                "space-interaction",
                "space-undersampled",
                "space-shrink",
                "space-scale",
                "unfair-comparison",
                "curve-overfitting",
                "curve-saturated",
                "curve-still-improving",
                "curve-step-variance",
                "step-position",
                "steps-compute-bound",
                "schedule-constant",
                "decay-too-low",
                "ckpt-best-lost",
                "eval-size",
                "adopt",
                "tuning-saturated",
            ),
            shares="study",
            because="No trial learned anything to speak of, so how trials differ, and how their curves run, is chance.",
        ),
        Relation(
            rules=("curve-train-loss-rises",),
            shares="trials",
            because="The trial learned nothing, and this is part of the same fault.",
        ),
        Relation(
            rules=(
                "stability-early",
                "stability-mid",
            ),
            shares="study",
            because="No trial learned anything to speak of, the stable ones neither.",
            min_severity="critical",
        ),
        Relation(
            rules=("space-infeasible",),
            shares="study",
            because="Trials fail wherever in the space they lie, and none of the others learned anything to speak of.",
            effect_at="everywhere",
        ),
    )

    trials: Count = 64
    """How many of the best trials to look at, at most."""
    material: Share = 0.02
    """Smallest gain that counts, as a share of the way to a perfect score. Our choice."""
    answers: Share = 0.1
    """The same for shares of right answers where chance is known, or as many as chance gets right if that is less. Our choice."""
    false_alarms: Share = 0.05
    """How often, per study, noise may lift a trial that learned nothing over guessing; a rarer gain counts as learned."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding."""
        ranked = study.ranked()[: self.trials]
        if not ranked:
            raise MissingData("no trial ended with a finite objective, so none can be compared with guessing")
        read = skills(study, ranked)
        alpha = self.false_alarms / len(ranked)
        if any(s.above(self._least(s), alpha) for s in read):
            return
        metric = study.spec.objective.metric
        if len(read) < len(ranked):
            raise MissingData(
                f"nothing says what guessing scores on {metric}; log the number of classes, or an evaluation before the first step"
            )
        top = min(read, key=lambda s: (s.best, s.trial.index))
        if top.chance_below(2 * self._least(top)) < 0.5:
            raise MissingData(f"{metric} is too noisy to tell the best trial from guessing; evaluate on more examples")
        yield self._report(study, top, len(ranked), alpha)

    def _least(self, skill: Skill) -> float:
        return self.answers if skill.counts_answers else self.material

    def _report(self, study: Study, top: Skill, judged: int, alpha: float) -> Finding:
        metric = study.spec.objective.metric
        best, guessed = study.objective_value(top.best), study.objective_value(top.guess.cost)
        hardly = top.above(0.0, alpha)
        who = "No trial does" if judged > 1 else f"{top.trial.name} does not do"
        message = f"{who} {'much' if hardly else 'clearly'} better than {top.guess.said}: "
        message += f"the best level of {metric} is {best:.4g}" + (f" in {top.trial.name}" if judged > 1 else "")
        message += f", {top.share:.1%} of the way to a perfect score" if top.share > 0 and top.knows_perfect else ""
        loss, unstable = training(study, top.trial), unstable_loss(study, top.trial)
        if loss is not None:
            message += (
                f", though {loss[0]} falls" if learned(study, top.trial) else f", and {loss[0]} hardly falls either"
            )
        message += "; its loss blew up, which may explain it" if unstable else ""
        advice = "Before tuning, train on a single batch until its loss is near zero; then check labels, inputs and evaluation."
        first = "Try learning rates that are orders of magnitude lower first. " if unstable else ""
        return self.finding(
            message + ".",
            action=first + advice,
            severity="warning" if hardly or unstable else "critical",
            confidence=top.chance_below(2 * self._least(top)),
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
                            f"{top.share:.2%} (learned from {self._least(top):.0%})",
                        ),
                        ("standard error of the gain", f"{top.error:.2g}"),
                        ("p-value of the gain", f"{top.p:.2g} (learned up to {alpha:.2g})"),
                    )
                ),
            ),
            changes=(Advise(text=first + advice), *(() if unstable else self._higher_rates(study, top, hardly))),
        )

    def _higher_rates(self, study: Study, top: Skill, hardly: bool) -> tuple[Change, ...]:
        """Higher learning rates as well, where no trial failed and training is as good as at rest."""
        rates, lost = instability.learning_rates(study), failures.failures(study)
        at_rest = hardly or (training(study, top.trial) is not None and not learned(study, top.trial))
        if rates is None or not at_rest or (lost.diverged | lost.crashed).any():
            return ()
        name, domain = rates[0], study.spec.parameters[rates[0]]
        new = boundaries.widen(name, domain, "high", math.inf) if domain.numeric else None
        if new is None:
            return ()
        why = f"No trial learned and none failed, so the rates may be far too low: the range goes on to {new[1]:g}"
        return (SetRange(parameter=name, low=new[0], high=new[1], scale=domain.scale, why=why),)
