from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from advisor.computed.curves.good_trials import good_trials
from advisor.computed.stability import clipping
from advisor.engine.rule import Factor, Grounds, Relation, RuleOnGoodTrials
from advisor.model.change import FixParameter
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count as Counted, Percent, say
from advisor.model.study import Study, Trial
from advisor_rules.optimizer import _adam

_MIN_GRADIENT_NORMS = 20
_EPSILON_TO_GRADIENT_RATIO = 1e-3
"""Suggested epsilon of Adam, as a share of the typical gradient of one parameter."""


class AdamEpsilon(RuleOnGoodTrials):
    """Adam's epsilon is as large as the gradients, so Adam hardly adapts its step sizes to the gradients.

    ## What it looks at
    Adam divides each update by the root mean square of a parameter's gradients, plus epsilon. The rule compares epsilon with
    the typical gradient of a parameter: the median over the training of the clipped gradient norm, divided by the square root
    of the number of trainable parameters. The rule examines the five best trials that achieved at least half of the best
    trial's improvement during training. The rule fires if epsilon is at least as large as the typical gradient in most of these
    trials. The rule does not fire if the study searches epsilon, because the study then compares values of epsilon itself.

    ## Why it matters
    If epsilon is as large as the gradient, updates are less than half as large as without epsilon, and much smaller for
    parameters with small gradients. Adam then behaves like SGD with the learning rate divided by epsilon. The best learning
    rate then depends on the size of the gradient, which depends on the size of the model, the batch, clipping, and factors of
    the loss.

    ## What to do
    Lower epsilon to a thousandth of the typical gradient or less, and search the learning rate again, because updates become
    larger. If the gradients are tiny because the loss is divided by a large number, do not divide the loss. If the large
    epsilon is intended, search it together with the learning rate.

    ## How sure
    The formula of Adam determines by how much epsilon shrinks an update. The rule understates the effect, because most
    parameters have gradients below the root mean square. According to arXiv 2309.14322, the default epsilon becomes too large
    for the gradients of large transformers. In four pairs of trainings of small language models, an epsilon of 1.3 to 1.8 times
    the gradient raised the validation loss by 0.14 to 0.22 at an unchanged learning rate. After the learning rate was tuned
    again, the two losses of each pair differed by at most 0.03; in two of the four pairs, the best rate was ten times higher.
    The finding is therefore a note, and its confidence is 0.6 times the share of the examined trials whose epsilon is too
    large. On recorded trainings with seeds not used in development (`python benchmarks/quality/lm_rules.py`), the rule fired in
    20 of 20 studies with a large epsilon or a loss multiplied by a tiny factor, and in none of 120 other studies.
    """

    playbook = "Identifying scientific, nuisance, and fixed hyperparameters"
    grounds = Grounds(finding="mechanism", advice="mechanism", source="arXiv 2309.14322")
    goal = "stability"
    needs_learning = True
    explains = Relation(
        rules=("space-boundary", "curve-still-improving"),
        because="A large epsilon makes all updates smaller, as a lower learning rate would.",
        waits=False,
    )

    share: Factor = 1.0
    """Minimum epsilon as a multiple of the typical gradient. At a multiple of 1, updates are at most half as large as without
    epsilon."""

    def check(self, study: Study) -> Iterator[Finding]:
        good = [t for t in good_trials(study, self.reach) if _adam.is_adam(t)][: self.best]
        if not good:
            raise MissingData("no good trial is known to use Adam", needs="design")
        measured = [e for t in good if (e := _epsilon_and_gradient(study, t)) is not None]
        if not measured:
            raise MissingData(
                "the size of a parameter's gradient, or epsilon, is unknown; log the gradient norm at every step, epsilon and the "
                "number of parameters (the advisor's training hook does)",
                needs="grad_norm",
            )
        large_epsilons = [e for e in measured if e.epsilon >= self.share * e.gradient]
        if _adam.adam_epsilon_parameter(study) not in study.searched and 2 * len(large_epsilons) > len(measured):
            yield self._build_finding(study, large_epsilons, len(measured))

    def _build_finding(self, study: Study, large_epsilons: list[_EpsilonAndGradient], judged: int) -> Finding:
        gradient, epsilon = (float(np.median([getattr(e, key) for e in large_epsilons])) for key in ("gradient", "epsilon"))
        new_epsilon = 10.0 ** math.floor(math.log10(_EPSILON_TO_GRADIENT_RATIO * gradient))
        trials, parameters = [e.trial for e in large_epsilons], large_epsilons[0].parameter_count
        judged_text, share = Counted(judged, "good trial"), Percent(gradient / (gradient + epsilon))
        text = "Adam's epsilon, {epsilon}, is larger than the typical gradient of a parameter, {gradient}, in {n} of {judged},"
        text += " so updates are about {share} of Adam's."
        message = say(text, epsilon=epsilon, gradient=gradient, n=len(large_epsilons), judged=judged_text, share=share)
        action = say("Set epsilon to {smaller} or less, and search the learning rate again.", smaller=new_epsilon)
        name = _adam.adam_epsilon_parameter(study)
        lines = {"epsilon × √parameters": epsilon * math.sqrt(parameters)}
        caption = "Below the line, epsilon is larger than the typical gradient of a parameter."
        return self.finding(
            message,
            action=action,
            severity="note",
            confidence=0.6 * len(large_epsilons) / judged,
            subject=name,
            side="high",
            trials=trials,
            evidence=(
                curve_plot(study.signals["grad_norm"], caption, trials, lines=lines),
                table(
                    ("epsilon", epsilon),
                    ("median of gradient norm / √(number of parameters)", gradient),
                    ("trainable parameters", parameters),
                    ("minimum ratio of epsilon to this gradient", self.share),
                ),
            ),
            changes=None if name is None else (FixParameter(parameter=name, value=new_epsilon, why=str(message)),),
        )


class _EpsilonAndGradient(NamedTuple):
    trial: Trial
    epsilon: float
    gradient: float
    """Median over the training of the root mean square of the clipped gradient over the parameters."""
    parameter_count: float


def _epsilon_and_gradient(study: Study, trial: Trial) -> _EpsilonAndGradient | None:
    norms, parameters = study.curve(trial, "grad_norm").finite.values, trial.fact("model_parameters")
    epsilon, limit = _adam.epsilon_of_adam(trial), clipping.clipping_threshold(trial)
    if len(norms) < _MIN_GRADIENT_NORMS or not parameters > 0 or not epsilon > 0:
        return None
    norms = np.minimum(norms, limit) if math.isfinite(limit) else norms
    gradient = float(np.median(norms)) / math.sqrt(parameters)
    return _EpsilonAndGradient(trial, epsilon, gradient, parameters) if gradient > 0 else None
