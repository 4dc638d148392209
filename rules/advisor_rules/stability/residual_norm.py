"""The rule `residual-norm`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from advisor.computed.stability import instability, loss_blowups
from advisor.engine.rule import Count, Factor, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import CurveEvidence, FigureEvidence, Mark
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study, Trial

_FAULTS = {
    "post-norm": "normalises after its residual additions, Norm(x + f(x))",
    "none": "has residual blocks without normalisation",
    "bare": "has neither residual connections nor normalisation",
}
_TIPS = {
    "post-norm": "Normalise within the branch, x + f(Norm(x)) or x + Norm(f(x)), and let residual branches start at zero.",
    "none": "Normalise within the branches, x + f(Norm(x)) or x + Norm(f(x)), or let residual branches start at zero.",
    "bare": "Add residual connections with normalisation within their branches, x + f(Norm(x)).",
}


class ResidualNorm(Rule):
    """Training is unstable, and the model normalises after its residual additions or not at all.

    ## What it looks at
    First, instability: losses that rise or diverge at the start or jump up later, by the tests of `stability-early` and
    `stability-mid`, in trials with learning rates up to ten times the best trial's. Only then, how the unstable trials' models are
    built, as the hook saw it in the computation: where residual blocks normalise, whether there are residual blocks and
    normalisation layers at all. In a stable training the order is a matter of taste.

    ## Why it matters
    Norm(x + f(x)) is known to make deep networks hard to train: each layer rescales the path that the gradient has to come back
    by. Warmup and clipping treat what the architecture causes.

    ## What to do
    Normalise before the addition: x + f(Norm(x)), or x + Norm(f(x)). Starting residual branches at zero helps as well; so can
    another optimizer. Then search higher learning rates again.

    ## How sure
    Instability is tested at the promised level; confidence is one minus its p-value, times 0.8, as it may have another cause than
    the order. Of 100 simulated studies each of 1 to 6 stable trials with post-norm models, 0 to 1 % fired.

    *Example:* "Training is unstable, the loss of trial-3 rose from 2.31 to 7.9 at step 40 instead of falling, and the model
    normalises after its residual additions, Norm(x + f(x))."
    """

    playbook: ClassVar[str] = "Potential fixes for common instability patterns"
    goal: ClassVar[Goal] = "stability"
    probes: ClassVar[frozenset[str]] = frozenset({"learning-rate", "early-instability"})

    reach: Factor = 10.0
    """Times the best trial's learning rate up to which trials are judged: the playbook looks at 5 and 10 times."""
    trials: Count = 64
    """How many trials to judge at most, those with learning rates nearest to the best first."""
    lasting: Count = 10
    """Steps for which a loss must stay high at the start; as in `stability-early`."""
    material: Share = 0.1
    """Smallest rise or jump, as a share of what training gained; as in `stability-early` and `stability-mid`."""
    false_alarms: Share = 0.05
    """How often, per study, noise alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the model."""
        near = instability.within_reach(study, self.reach)
        unrest = loss_blowups.unrest(
            study,
            near.trials[: self.trials],
            lasting=self.lasting,
            material=self.material,
            false_alarms=self.false_alarms,
        )
        if not unrest.seen:
            raise MissingData("no trial logged enough losses to show instability; log the training loss at every step")
        if not unrest.unstable:
            return
        built = [(b, kind) for b in unrest.unstable if (kind := _built(b.trial)) is not None]
        if not built:
            raise MissingData(
                "training is unstable, but no unstable trial says where its model normalises; the advisor's training hook sees it "
                "when it is given the loss"
            )
        faulty = [(b, kind) for b, kind in built if kind in _FAULTS]
        if 2 * len(faulty) <= len(built):
            return
        worst, kind = faulty[0]
        which = [b.trial for b, _ in faulty]
        happened = f"the {worst.subject} of {worst.trial.name}{near.rate(worst.trial)} {worst.said}"
        yield self.finding(
            f"Training is unstable, {happened}, and the model {_FAULTS[kind]}.",
            action=_TIPS[kind],
            severity="warning",
            confidence=0.8 * (1 - unrest.p),
            subject=worst.trial.facts.get("model"),
            trials=which,
            evidence=(
                CurveEvidence(
                    metrics=(worst.metric,),
                    caption=f"{happened[0].upper()}{happened[1:]}.",
                    trials=tuple(t.id for t in which[:5]),
                    marks=tuple(Mark(trial=b.trial.id, step=b.step, label="unstable") for b, _ in faulty[:5]),
                ),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{unrest.seen}, of which {len(unrest.unstable)} unstable"),
                        ("unstable trials so built", f"{len(faulty)} of {len(built)} whose model is known"),
                        ("p-value of the instability", f"{unrest.p:.2g}, limit {self.false_alarms:g}"),
                    )
                ),
            ),
            changes=(Advise(text=_TIPS[kind]),),
        )


def _built(trial: Trial) -> str | None:
    """Where the trial's model normalises, as TAG_NORM_ORDER of the contract; "bare" without blocks and layers; None if unknown."""
    order = trial.facts.get("norm_order")
    return "bare" if order == "no-residuals" and trial.facts.get("norm_layers") == "{}" else order
