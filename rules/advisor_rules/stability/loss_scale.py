"""Implements the rule `loss-scale`."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.engine.rule import Count, Factor, Grounds, Relation, Rule
from advisor.model.change import Advise
from advisor.model.evidence import Evidence, Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count as Counted, Name, Number, join_items, say
from advisor.model.study import Study
from advisor_rules.stability import _overflow

_BFLOAT16_ADVICE = (
    "Train in bfloat16. If the device does not support bfloat16, find the layer whose outputs exceed 65,504 (unscaled "
    "inputs, attention scores, a sum over many values) and compute it in float32."
)


class LossScale(Rule):
    """Steps in float16 are skipped again and again, and a lower loss scale does not help.

    ## What it looks at
    The rule reads the loss scale and the skipped steps of the gradient scaler, and the gradient norm, in all trials whose
    training loss did not end above its start. A gradient scaler halves the loss scale after each overflow. Halving the loss
    scale helps only if the scaled gradient was too large. The rule counts skipped steps in the second half of training at which
    even the largest gradient norm until then, times the loss scale, was 128 times below the largest float16, 65,504. Such an
    overflow does not come from the loss scale, but from the forward pass or from a batch with extreme values. Without a logged
    gradient norm, only steps skipped at a loss scale below 1 count.

    ## Why it matters
    Each overflow halves the loss scale, and doubling it again takes 2,000 steps without overflow. The loss scale therefore
    keeps falling, small gradients become zero in float16, and finally every step is skipped, without an error.

    ## What to do
    Train in bfloat16, which has the range of float32. Otherwise normalise the inputs, look at the batches whose steps were
    skipped, and compute the layer that overflows in float32. A lower limit for the loss scale only hides the problem.

    ## How sure
    A scaler that works keeps the scaled gradient near the largest float16 number, whatever the size of the loss. Skipped steps
    at the start of scaling, after a doubling, or because gradients grow therefore do not count. On recorded trainings with
    seeds not used in development (`python benchmarks/quality/lm_rules.py`), the rule fired in 20 of 20 studies with unscaled
    inputs or extreme batches and in none of 30 other float16 studies; in 150 simulated scalers with heavy-tailed gradients the
    rule never fired. Confidence is 0.9 if a majority of the trials is affected, else 0.7. Sources: the behaviour of PyTorch's
    `GradScaler`; fairseq and DeepSpeed stop a training whose scale reaches its minimum.
    """

    playbook = "How can optimization failures be debugged and mitigated?"
    grounds = Grounds(finding="mechanism", advice="mechanism", source="PyTorch's GradScaler")
    goal = "stability"
    explains = Relation(
        rules=("curve-worse-than-chance", "curve-saturated"), shares="trials", because="Skipped steps do not train the model."
    )

    room: Factor = 128.0
    """Minimum factor between the largest float16 number and the largest scaled gradient at which an overflow has another cause.
    This factor leaves seven doublings for gradients of single batches and of activations. Our choice."""
    fewest: Count = 3
    """Minimum number of steps in the second half of a training that were skipped although the scaled gradient was small; single
    extreme batches do no harm. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        read = [_overflow.read_overflows(study, trial, self.room) for trial in study.trials if study.ended[trial.index]]
        logged = [o for o in read if o is not None]
        if not logged:
            raise MissingData(
                "no trial logged its loss scale and skipped steps; training without a gradient scaler has none; with one, "
                "log them as train/loss_scale and train/skipped_steps (the advisor's training hook does)",
                needs="design",
            )
        judged = [o for o in logged if not o.has_loss_exploded]
        if not judged:
            raise MissingData("the training loss of each trial with a gradient scaler ended above its start", needs="design")
        affected = [o for o in judged if o.late_skips_in_vain >= self.fewest]
        if affected:
            yield self._build_finding(study, affected, len(judged))

    def _build_finding(self, study: Study, affected: list[_overflow.ScalerOverflows], judged: int) -> Finding:
        worst = max(affected, key=lambda o: o.late_skips_in_vain)
        most = 2 * len(affected) > judged
        return self.finding(
            say(
                "In {n} of {trials} in float16, overflows continue although the loss scale is low: {name} skipped {skipped} of "
                "{steps} steps, and its scale fell to {scale}.",
                n=len(affected),
                trials=Counted(judged, "trial"),
                name=Name(worst.trial.name),
                skipped=worst.skipped_steps,
                steps=worst.steps,
                scale=Number(worst.final_loss_scale),
            ),
            action=_BFLOAT16_ADVICE,
            severity="warning",
            confidence=0.9 if most else 0.7,
            subject=study.signals["loss_scale"],
            side="low",
            trials=[o.trial for o in affected],
            evidence=self._build_evidence(study, affected),
            changes=(Advise(text=_BFLOAT16_ADVICE),),
        )

    def _build_evidence(self, study: Study, affected: list[_overflow.ScalerOverflows]) -> tuple[Evidence, ...]:
        shown = affected[:5]
        return (
            curve_plot(
                study.signals["loss_scale"],
                "The loss scale keeps falling, because lowering it does not prevent the overflow.",
                [o.trial for o in shown],
                marks=tuple(
                    Mark(trial=o.trial.id, step=o.first_step_after_skip, label="skipped in vain", lasting=True) for o in shown
                ),
                lines={"scale 1": 1.0},
            ),
            table(
                ("steps skipped in vain in the second half, by trial", join_items(str(o.late_skips_in_vain) for o in shown)),
                ("minimum for a finding", self.fewest),
                ("largest gradient norm", join_items(Number(o.largest_gradient_norm) for o in shown)),
                ("65,504 / (scale × largest gradient) at the end", join_items(Number(o.room) for o in shown)),
            ),
        )
