"""The studies in a plain MLflow store, and the rules that should or should not fire on each study.

Labels follow from the training, as in `recordings.causes`: a policy's loss need not fall, a trial that Optuna pruned did not crash,
and a run that continues an earlier run is not a repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from recordings.finetuning.studies import TRIALS
from recordings.plain import blowups, diffusion, finetune, gan, letters, policy, preempted, pruning, simclr, tuned
from recordings.recorded_study import Label


@dataclass(frozen=True)
class PlainStudy:
    """A script that logs a study to a plain MLflow store."""

    name: str
    cause: str
    script: Callable[[], Mapping[str, str]]
    """Function that trains all trials and returns the true status by run id; runs that it omits are complete."""
    objective: str
    direction: str
    labels: tuple[Label, ...]
    trials: int
    """Number of trials in the study; a trial may have several runs."""


COURSE = (
    "stability-early stability-mid stability-spikes stability-edge curve-train-loss-rises curve-worse-than-chance curve-periodic"
).split()
"""Rules that could mistake the normal course of this study's curves for a fault."""
FACTS = (
    "clip-aggressive clip-insufficient space-tuned-steps space-tuned-batch unfair-comparison eval-regular ckpt-best-lost "
    "batch-norm multi-host"
).split()
"""Rules about facts that no script changes from their defaults."""
FAILURES = ("space-infeasible", "space-boundary-infeasible")


def _must_not_fire(*rules: str) -> tuple[Label, ...]:
    return tuple(Label(rule, fires=False) for rule in rules)


def _labels_where_rate_matters(parameter: str) -> Label:
    """Return a label that forbids calling a learning rate unimportant if it is searched over more than two decades."""
    return Label("space-insensitive", fires=False, subject=parameter)


def studies() -> list[PlainStudy]:
    """Return all studies."""
    healthy = _must_not_fire(*COURSE, *FACTS, *FAILURES)
    overfit = Label("curve-overfitting")
    no_overfit = Label("curve-overfitting", fires=False)
    diverged = Label("space-infeasible", subject="lr", accept=("space-boundary-infeasible", "stability-edge"))
    few, enough = finetune.few_examples, finetune.enough_examples
    accuracy, best = "val_accuracy", "maximize"
    return [
        *_fine_tuning_studies(),
        PlainStudy(
            "plain-median", "Optuna's median pruner ends trials behind the others", pruning.median, accuracy, best,
            (*healthy, _labels_where_rate_matters("lr")), pruning.TRIALS,
        ),
        PlainStudy(
            "plain-halving", "Optuna's successive halving ends most trials at a rung", pruning.halving, accuracy, best,
            (*healthy, _labels_where_rate_matters("lr")), pruning.TRIALS,
        ),
        PlainStudy(
            "plain-cart-pole", "a policy is trained: its losses need not fall", policy.ppo, "success_rate", best,
            (*healthy, no_overfit), policy.TRIALS,
        ),
        PlainStudy(
            "plain-views", "features are learned without labels", simclr.contrastive, "probe_accuracy", best,
            (*healthy, no_overfit), simclr.TRIALS,
        ),
        PlainStudy(
            "plain-adversarial", "two networks are trained against each other", gan.adversarial, "fid", "minimize",
            (*healthy, no_overfit), gan.TRIALS,
        ),
        PlainStudy(
            "plain-moons", "a network predicts noise", diffusion.moons, "val/loss", "minimize",
            (*healthy, no_overfit, _labels_where_rate_matters("learning_rate")), diffusion.TRIALS,
        ),
        PlainStudy(
            "plain-letters", "a language model", letters.characters, "val_loss", "minimize",
            (*healthy, no_overfit, _labels_where_rate_matters("lr")), letters.TRIALS,
        ),
        PlainStudy(
            "plain-finetune-few", "60 examples, a quarter of them with a wrong label, are seen 60 times", few, "eval_accuracy",
            best, (*_must_not_fire(*COURSE, *FACTS, *FAILURES), overfit), finetune.TRIALS,
        ),
        PlainStudy(
            "plain-finetune-enough", "500 examples are seen four times", enough, "eval_accuracy", best,
            (*healthy, no_overfit), finetune.TRIALS,
        ),
        PlainStudy(
            "plain-preempted", "half of the trials are interrupted and continued by a second run", preempted.preempted,
            accuracy, best, (*healthy, *_must_not_fire("seeds", "tuning-saturated"), _labels_where_rate_matters("lr")),
            preempted.TRIALS,
        ),
        PlainStudy(
            "plain-nan", "the training loss ends as NaN at high rates, and the accuracy stays finite", blowups.not_a_number,
            accuracy, best, (diverged, *_must_not_fire(*FACTS)), blowups.TRIALS,
        ),
        PlainStudy(
            "plain-collapse", "high rates end at chance with a finite loss", blowups.collapse, accuracy, best,
            (diverged, *_must_not_fire(*FACTS)), blowups.TRIALS,
        ),
    ]  # fmt: skip


def _fine_tuning_studies() -> list[PlainStudy]:
    return [
        PlainStudy(
            f"plain-{study.name}", study.cause, partial(tuned.log, study), study.objective, study.direction,
            (*map(Label, study.fires), *_must_not_fire(*study.quiet)), TRIALS,
        )
        for study in tuned.recorded()
    ]  # fmt: skip
