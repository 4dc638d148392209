from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from advisor.engine.rule import Count, Factor, Grounds, Relation, Rule
from advisor.model.evidence import Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count as Counted, Name, Number, join_items, say
from advisor.model.study import Study, Trial

_LARGEST_FLOAT16 = 65504.0
_LOSSES_PER_END = 5


@dataclass(frozen=True, slots=True)
class _SkippedSteps:
    trial: Trial
    steps: int
    """Number of training steps, including skipped steps."""
    skipped: int
    late_in_vain: int
    """Number of steps skipped in vain in the second half of training."""
    first_step_after: int
    """First completed step after a step was skipped in vain in the second half of training."""
    final_scale: float
    largest_norm: float
    """Largest gradient norm of a completed step, before clipping; NaN if unknown."""

    @property
    def room(self) -> float:
        """Factor by which the largest known gradient norm, times the final loss scale, is below the largest float16 number."""
        return _LARGEST_FLOAT16 / (self.final_scale * self.largest_norm) if self.final_scale > 0 else math.inf


class LossScale(Rule):
    """Steps in float16 are skipped again and again, and a lower loss scale does not help.

    ## What it looks at
    The rule reads the loss scale and the skipped steps of the gradient scaler, and the gradient norm, in all trials whose
    training loss did not end above its start. A gradient scaler halves the loss scale after each overflow. Halving the loss
    scale helps only if the scaled gradient was too large. The rule counts skipped steps in the second half of training at which
    even the largest gradient norm until then, times the loss scale, was 128 times below the largest float16, 65,504. An
    overflow at a scaled gradient this small comes from the forward pass or from a batch with extreme values, not from the loss
    scale. Without a logged gradient norm, only steps skipped at a loss scale below 1 count.

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
        ended_trials = [t for t in study.trials if study.ended[t.index]]
        skips = [s for t in ended_trials if (s := _read_skipped_steps(study, t, self.room)) is not None]
        if not skips:
            raise MissingData(
                "no trial logged its loss scale and skipped steps; training without a gradient scaler has none; with one, "
                "log them as train/loss_scale and train/skipped_steps (the advisor's training hook does)",
                needs="design",
            )
        judged_skips = [s for s in skips if not _has_loss_exploded(study, s.trial)]
        if not judged_skips:
            raise MissingData("the training loss of each trial with a gradient scaler ended above its start", needs="design")
        reported = [s for s in judged_skips if s.late_in_vain >= self.fewest]
        if reported:
            yield self._build_finding(study, reported, len(judged_skips))

    def _build_finding(self, study: Study, reported: list[_SkippedSteps], judged: int) -> Finding:
        worst, shown, metric = max(reported, key=lambda s: s.late_in_vain), reported[:5], study.signals["loss_scale"]
        caption = "The loss scale keeps falling, because lowering it does not prevent the overflow."
        label = "skipped in vain"
        marks = [Mark(trial=s.trial.id, step=s.first_step_after, label=label, lasting=True) for s in shown]
        text = (
            "In {n} of {trials} in float16, overflows continue although the loss scale is low: {name} skipped {skipped} of "
            "{steps} steps, and its scale fell to {scale}."
        )
        trials, name, scale = Counted(judged, "trial"), Name(worst.trial.name), Number(worst.final_scale)
        return self.finding(
            say(text, n=len(reported), trials=trials, name=name, skipped=worst.skipped, steps=worst.steps, scale=scale),
            action="Train in bfloat16. If the device does not support bfloat16, find the layer whose outputs exceed 65,504 "
            "(unscaled inputs, attention scores, a sum over many values) and compute it in float32.",
            severity="warning",
            confidence=0.9 if 2 * len(reported) > judged else 0.7,
            subject=metric,
            side="low",
            trials=[s.trial for s in reported],
            evidence=(
                curve_plot(metric, caption, [s.trial for s in shown], marks=marks, lines={"scale 1": 1.0}),
                table(
                    ("steps skipped in vain in the second half, by trial", join_items(str(s.late_in_vain) for s in shown)),
                    ("minimum number of such steps for a finding", self.fewest),
                    ("largest gradient norm", join_items(Number(s.largest_norm) for s in shown)),
                    ("65,504 / (scale × largest gradient) at the end", join_items(Number(s.room) for s in shown)),
                ),
            ),
        )


def _read_skipped_steps(study: Study, trial: Trial, min_room: float) -> _SkippedSteps | None:
    """Return the skipped steps of a trial; None if it did not log both the loss scale and the skipped steps, or completed too
    few steps.

    A step was skipped in vain if the largest gradient norm so far, multiplied by the loss scale, was still `min_room` times
    below the largest float16 number. If gradient norms are unknown, a step was skipped in vain if the loss scale was below 1.
    """
    scales, skips = study.curve(trial, "loss_scale").finite, study.curve(trial, "skipped_steps").finite
    if len(scales) < 2 or len(scales) != len(skips):
        return None
    norms = study.peaks(trial, "grad_norm").finite
    limits = np.ones(1)
    if len(norms) and norms.values.max() > 0:
        indices = np.clip(np.searchsorted(norms.steps, scales.steps, side="right") - 1, 0, None)
        limits = _LARGEST_FLOAT16 / (min_room * np.maximum(np.maximum.accumulate(norms.values)[indices], 1e-300))
    counts = np.rint(skips.values * np.diff(skips.steps, prepend=skips.steps[0] - 1)).clip(min=0)
    unlogged_skips = max(float(np.nan_to_num(trial.fact("skipped_steps"))) - counts.sum(), 0.0)
    # The j-th skip before a logged row, counted backwards from the row, happened at 2^j times the row's scale. The j-th skip
    # after the last row happened at 2^(1 - j) times the scale of that row.
    halvings = np.floor(np.log2(limits / np.maximum(scales.values, 1e-300)))
    in_vain = np.clip(halvings, 0, counts)
    last_in_vain = max(unlogged_skips - max(-halvings[-1], 0.0), 0.0)
    attempts = skips.steps - skips.steps[0] + 1 + np.cumsum(counts)
    attempt_count = float(attempts[-1] + unlogged_skips)
    is_late = attempts > attempt_count / 2
    late_skips = np.flatnonzero(is_late & (in_vain > 0))
    late_share = min(max((attempt_count / 2 - float(attempts[-1])) / max(unlogged_skips, 1.0), 0.0), 1.0)
    return _SkippedSteps(
        trial=trial,
        steps=round(attempt_count),
        skipped=round(float(counts.sum() + unlogged_skips)),
        late_in_vain=round(float(in_vain[is_late].sum() + last_in_vain * (1 - late_share))),
        first_step_after=int(skips.steps[late_skips[0]] if len(late_skips) else skips.steps[-1]),
        final_scale=float(scales.values[-1] * 0.5 ** min(unlogged_skips, 1000.0)),
        largest_norm=float(norms.values.max()) if len(norms) else math.nan,
    )


def _has_loss_exploded(study: Study, trial: Trial) -> bool:
    losses = study.curve(trial, "train_loss").finite.values
    start, end = losses[:_LOSSES_PER_END], losses[-_LOSSES_PER_END:]
    return len(losses) > 2 * _LOSSES_PER_END and bool(np.median(end) > np.median(start))
