from __future__ import annotations

from collections.abc import Iterator

from advisor.computed.stability import instability, loss_blowups
from advisor.engine.rule import Count, Share
from advisor.model.evidence import Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Probability, say
from advisor.model.study import Study, Trial
from advisor_rules.stability._unstable import RuleNearBestRate

_NORMALISATION_FAULTS = {
    "post-norm": "normalises after its residual additions, Norm(x + f(x))",
    "none": "has residual blocks without normalisation",
    "bare": "has neither residual connections nor normalisation",
}
_NORMALISATION_ADVICE = {
    "post-norm": "Normalise within the residual branch, x + f(Norm(x)) or x + Norm(f(x)), and initialise the branches at zero.",
    "none": "Normalise within the residual branches, x + f(Norm(x)) or x + Norm(f(x)), or initialise the branches at zero.",
    "bare": "Add residual connections with normalisation within their branches, x + f(Norm(x)).",
}


class ResidualNorm(RuleNearBestRate):
    """Training is unstable, and the model normalises after its residual additions or not at all.

    ## What it looks at
    First, the rule tests for instability: losses that rise or diverge early or jump later, by the tests of `stability-early`
    and `stability-mid`, in trials whose learning rate is at most ten times that of the best trial. Second, the rule examines
    the models of the unstable trials, as recorded by the training hook: the position of normalisation in residual blocks, and
    the presence of residual blocks and normalisation layers. The models of stable trials are not judged.

    ## Why it matters
    Norm(x + f(x)) makes deep networks hard to train, because each layer rescales the gradient on the residual path. Warmup and
    clipping then treat only a symptom of the architecture.

    ## What to do
    Normalise before the addition: x + f(Norm(x)), or x + Norm(f(x)). Residual branches that are initialised at zero help too,
    and another optimizer may help. Then search higher learning rates again, because training is more stable.

    ## How sure
    Confidence is one minus the p-value of the instability, times 0.8, because instability often has another cause. If trials
    whose models normalise after the addition or not at all were stable, the rule fired in at most 1 % of simulated studies.
    """

    playbook = "Potential fixes for common instability patterns"
    goal = "stability"
    probes = frozenset({"learning-rate", "early-instability"})

    lasting: Count = 10
    """Minimum number of steps for which an early rise of the loss must last; the same limit as in `stability-early`."""
    material: Share = 0.1
    """Minimum rise or jump of the loss, as a share of the loss's fall during training; the same limits as in `stability-early`
    and `stability-mid`."""
    false_alarms: Share = 0.05
    """Maximum probability, per study, that noise alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        near_best = instability.trials_near_best_rate(study, self.reach)
        limits = {"material": self.material, "false_alarms": self.false_alarms}
        result = loss_blowups.study_instability(study, near_best.trials[: self.trials], lasting=self.lasting, **limits)
        if not result.judged_count:
            reason = "no trial logged enough losses to show instability; log the training loss at every step"
            raise MissingData(reason, needs="train_loss")
        if not result.unstable:
            return
        known_orders = [(b, kind) for b in result.unstable if (kind := _normalisation_order(b.trial)) is not None]
        if not known_orders:
            raise MissingData(
                "training is unstable, but no unstable trial recorded where its model normalises; pass the loss to the advisor's "
                "training hook, which then detects the position",
                needs="facts",
            )
        faulty_models = [(b, kind) for b, kind in known_orders if kind in _NORMALISATION_FAULTS]
        if 2 * len(faulty_models) > len(known_orders):
            yield self._build_finding(near_best, result, faulty_models, len(known_orders))

    def _build_finding(
        self,
        near: instability.JudgedTrials,
        result: loss_blowups.StudyInstability,
        faulty: list[tuple[loss_blowups.TrialInstability, str]],
        known_count: int,
    ) -> Finding:
        worst, kind = faulty[0]
        trials = [b.trial for b, _ in faulty]
        statement, unstable_count = worst.sentence(near.rate_text(worst.trial)), len(result.unstable)
        marks = [Mark(trial=b.trial.id, step=b.step, label="unstable") for b, _ in faulty[:5]]
        return self.finding(
            say("{what}, and the model {fault}.", what=statement, fault=_NORMALISATION_FAULTS[kind]),
            action=_NORMALISATION_ADVICE[kind],
            severity="warning",
            confidence=0.8 * (1 - result.p_value),
            subject=worst.trial.facts.get("model"),
            trials=trials,
            evidence=(
                curve_plot(worst.metric, say("{what}.", what=statement), trials[:5], marks=marks),
                table(
                    ("trials judged", say("{n} ({unstable} unstable)", n=result.judged_count, unstable=unstable_count)),
                    ("unstable trials with such a model", say("{n} of {known}", n=len(faulty), known=known_count)),
                    ("p-value of the instability", Probability(result.p_value), self.false_alarms),
                ),
            ),
        )


def _normalisation_order(trial: Trial) -> str | None:
    """Return where the model normalises, as logged; "bare" for neither residual blocks nor normalisation; None if unknown."""
    order = trial.facts.get("norm_order")
    return "bare" if order == "no-residuals" and trial.facts.get("norm_layers") == "{}" else order
