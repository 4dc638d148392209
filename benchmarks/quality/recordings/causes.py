"""The recorded studies: for each study, the cause that is switched on, and the rules that should or should not fire.

The labels of a study follow from its cause, never from the verdict of a rule. No rule in `QUIET` may fire on the `healthy` studies
of the same tasks. A rule about a fact, such as shuffling, may not fire on a study that keeps the default of this fact
(`_NOT_SWITCHED`). If a cause, such as overfitting, shows only on a special task, the study has a twin that lacks this cause and is
otherwise equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from advisor.model.spec import Parameter
from recordings.lm_causes import language_studies
from recordings.recorded_study import (
    ADAM,
    CNN,
    MLP,
    SPACE,
    TAME,
    TEXT,
    WALK,
    Label,
    RecordedStudy,
    grid,
    linear_range,
    log_range,
    must_fire,
    must_not_fire,
)
from recordings.search_causes import decision_studies, space_studies
from recordings.training import Training

# Arguments are packed into few lines, which the formatter would undo.
# fmt: off


QUIET = (
    "space-boundary-infeasible space-infeasible curve-train-loss-rises curve-periodic curve-worse-than-chance "
    "stability-edge stability-early stability-mid stability-spikes clip-aggressive clip-insufficient residual-norm "
    "schedule-constant schedule-ad-hoc decay-too-low space-tuned-steps space-tuned-batch unfair-comparison input-bound "
    "grad-accumulation eval-regular eval-batch ckpt-best-lost seeds batch-norm multi-host"
).split()


_NOT_SWITCHED: Mapping[str, Callable[[RecordedStudy], bool]] = {
    "seeds": lambda s: s.training.seed is None,
    "eval-regular": lambda s: not s.training.evaluate_irregularly,
    "eval-batch": lambda s: s.training.eval_batch_size >= s.training.batch_size and "batch_size" not in s.space,
    "batch-norm": lambda s: s.training.norm != "batch",
    "grad-accumulation": lambda s: s.training.micro_batches == 1,
    "clip-aggressive": lambda s: s.training.grad_clip_norm is None,
    "clip-insufficient": lambda s: s.training.grad_clip_norm is None,
    "schedule-constant": lambda s: s.training.schedule != "constant",
    "schedule-ad-hoc": lambda s: s.training.schedule != "plateau",
    "decay-too-low": lambda s: s.training.schedule != "early-cosine",
    "space-tuned-steps": lambda s: "max_train_steps" not in s.space,
    "space-tuned-batch": lambda s: "batch_size" not in s.space,
    "curve-periodic": lambda s: s.training.shuffle,
    "ckpt-best-lost": lambda s: s.training.keep == "best",
    "multi-host": lambda _: True,
}
"""Rules that may fire only if a study changes a certain setting; a rule's function returns True if the study leaves that setting
unchanged."""


def studies() -> list[RecordedStudy]:
    """Return all studies to record; each has negative labels for the facts that it leaves unchanged."""
    listed = [
        *_healthy_studies(), *space_studies(), *_curve_studies(), *_stability_studies(), *_length_studies(), *_batch_studies(),
        *_pipeline_studies(), *decision_studies(), *language_studies(),
    ]
    return [replace(study, labels=(*study.labels, *_labels_of_unchanged_facts(study))) for study in listed]


def _labels_of_unchanged_facts(study: RecordedStudy) -> tuple[Label, ...]:
    labelled = {label.rule for label in study.labels}
    return must_not_fire(*(rule for rule, holds in _NOT_SWITCHED.items() if rule not in labelled and holds(study)))


def _healthy_studies() -> list[RecordedStudy]:
    nothing = "nothing was switched on"
    cnn = {"learning_rate": log_range(0.002, 0.4), "dropout": linear_range(0, 0.3), "weight_decay": log_range(1e-6, 3e-3)}
    # For the transformers, the best learning rate is near the upper end of the range, so no label says that it lies inside.
    return [
        RecordedStudy("healthy-digits-mlp", nothing, MLP, TAME, must_not_fire(*QUIET, "space-boundary")),
        RecordedStudy("healthy-digits-cnn", nothing, CNN, cnn, must_not_fire(*QUIET, "space-boundary")),
        RecordedStudy("healthy-walk", nothing, WALK, ADAM, must_not_fire(*QUIET, "curve-overfitting"), trials=10),
        RecordedStudy("healthy-text", nothing, TEXT, ADAM, must_not_fire(*QUIET, "curve-overfitting"), trials=8),
        RecordedStudy(
            "healthy-digits-mlp-30", nothing, MLP, TAME | {"dropout": linear_range(0, 0.4)},
            must_not_fire(*QUIET, "space-boundary"), trials=30,
        ),
    ]


NOISY = Training(
    n_train=300, n_valid=800, wrong_labels=0.2, width=128, dropout=0.0, objective="val/loss", weight_decay=0.0,
)
"""A training that overfits without a regulariser."""
NOISY_RATES = {"learning_rate": log_range(0.005, 0.05)}


def _curve_studies() -> list[RecordedStudy]:
    memorised = replace(WALK, n_train=150, max_train_steps=200, evaluate_every=10, weight_decay=0.0)
    rates = {"learning_rate": log_range(0.02, 0.5)}
    tiny = Training(n_valid=40, schedule="constant", learning_rate=0.3, evaluate_every=10, max_train_steps=400)
    return [
        RecordedStudy(
            "no-regulariser-mlp", "300 examples, a fifth of the labels wrong, and no regulariser", NOISY, NOISY_RATES,
            must_fire("curve-overfitting"),
        ),
        RecordedStudy(
            "regulariser-mlp", "the same with dropout and weight decay", replace(NOISY, dropout=0.5, weight_decay=0.03),
            NOISY_RATES, must_not_fire("curve-overfitting", "curve-best-is-regularised-by-accident"),
        ),
        RecordedStudy(
            "no-regulariser-walk", "150 windows of text, no regulariser, trained long", memorised,
            {"learning_rate": log_range(3e-3, 0.03)}, must_fire("curve-overfitting"), trials=6,
        ),
        RecordedStudy(
            "crippled-winner", "a network that memorises 300 examples unless the learning rate is far too low",
            replace(NOISY, max_train_steps=300), {"learning_rate": log_range(5e-4, 0.3)},
            must_fire(Label("curve-best-is-regularised-by-accident", accept=("curve-overfitting",))),
        ),
        RecordedStudy(
            "validation-tiny", "forty validation examples and a constant high learning rate", tiny, rates,
            must_fire(
                Label("eval-size", accept=("curve-step-variance",)),
                Label("curve-step-variance", accept=("eval-size",)),
            ),
        ),
        RecordedStudy(
            "steps-few-mlp", "an eighth of the necessary steps, at a constant learning rate",
            Training(max_train_steps=50, evaluate_every=2, schedule="constant", objective="val/loss"),
            {"learning_rate": log_range(0.003, 0.03)}, must_fire("curve-still-improving", "step-position"),
        ),
        RecordedStudy(
            "steps-few-walk", "a fifth of the necessary steps, at a constant learning rate",
            Training(
                task="walk", optimizer="adam", norm="pre", width=32, batch_size=32, n_train=1600, n_valid=200,
                objective="val/loss", dropout=0.0, schedule="constant", max_train_steps=80, evaluate_every=4,
            ),
            {"learning_rate": log_range(3e-4, 3e-3)}, must_fire("curve-still-improving", "step-position"), trials=8,
        ),
        RecordedStudy(
            "steps-many-mlp", "ten times the necessary steps, at a constant learning rate",
            Training(
                schedule="constant", max_train_steps=1500, evaluate_every=30, n_valid=597, width=32, dropout=0.0,
                weight_decay=3e-3, objective="val/loss",
            ),
            {"learning_rate": log_range(0.04, 0.08)}, must_fire("curve-saturated"), trials=5,
        ),
        RecordedStudy(
            "labels-drift", "the share of wrong labels in the batches grows, as with a broken loader",
            Training(drifting_labels=True), SPACE, must_fire("curve-train-loss-rises"),
        ),
        RecordedStudy(
            "shuffle-off", "the loader returns the examples sorted by class",
            Training(
                shuffle=False, sorted_by_class=True, evaluate_every=2, schedule="constant", max_train_steps=240,
                norm="none", dropout=0.0, momentum=0.5,
            ),
            {"learning_rate": log_range(0.015, 0.06)}, must_fire("curve-periodic"), trials=8,
        ),
        RecordedStudy(
            "train-test-overlap", "the validation examples are also trained on, at the start of each epoch",
            Training(
                shuffle=False, overlap=True, wrong_labels=0.5, n_valid=100, n_train=600, batch_size=32, depth=1,
                width=256, dropout=0.0, momentum=0.5, schedule="constant", evaluate_every=2, max_train_steps=240,
                objective="val/loss",
            ),
            {"learning_rate": log_range(0.05, 0.5)}, must_fire("curve-periodic"), trials=8,
        ),
        RecordedStudy(
            "labels-shuffled-mlp", "labels that belong to other examples", Training(random_labels=True), SPACE,
            must_fire("curve-worse-than-chance"),
        ),
        RecordedStudy(
            "labels-shuffled-cnn", "labels that belong to other examples",
            Training(task="digits-cnn", random_labels=True, norm="none"), SPACE, must_fire("curve-worse-than-chance"),
        ),
    ]


def _stability_studies() -> list[RecordedStudy]:
    post = Training(
        task="digits-residual", norm="post", depth=8, width=32, warmup_steps=0, objective="val/loss",
        max_train_steps=200, evaluate_every=10,
    )
    cold = Training(depth=4, warmup_steps=0, objective="val/loss", dropout=0.0)
    jump = Training(schedule="late-jump", objective="val/loss", norm="none", dropout=0.0)
    bad = Training(outliers=0.02, outlier_scale=30.0, norm="none", objective="val/loss", dropout=0.0)
    edge = ("stability-edge", "space-boundary-infeasible")
    return [
        RecordedStudy(
            "post-norm", "eight blocks with normalisation after the residual branch, and no warmup", post,
            {"learning_rate": log_range(0.02, 1.0)},
            must_fire(Label("stability-early", accept=edge), Label("residual-norm", accept=("stability-early", *edge))),
            trials=10,
        ),
        RecordedStudy(
            "pre-norm", "the same with normalisation before the residual branch, a warmup and lower learning rates",
            replace(post, norm="pre", warmup_steps=20), {"learning_rate": log_range(0.003, 0.05)},
            must_not_fire("stability-early", "stability-edge", "stability-mid", "residual-norm"), trials=10,
        ),
        RecordedStudy(
            "no-warmup", "a network of four layers that starts at its full learning rate", cold,
            {"learning_rate": log_range(0.03, 1.0)}, must_fire(Label("stability-early", accept=edge)),
        ),
        RecordedStudy(
            "warmup", "the same with a warmup over a tenth of the training and lower learning rates",
            replace(cold, warmup_steps=40), {"learning_rate": log_range(0.01, 0.15)},
            must_not_fire("stability-early", "stability-edge", "stability-mid"),
        ),
        RecordedStudy(
            "lr-jumps-late", "the learning rate jumps to thirty times its value at 60 % of the training", jump,
            {"learning_rate": log_range(0.02, 0.1)},
            must_fire(Label("stability-mid", accept=("stability-spikes", "curve-train-loss-rises"))),
        ),
        RecordedStudy(
            "bad-batches", "one batch of fifty has inputs thirty times too large", bad,
            {"learning_rate": log_range(0.003, 0.02)}, must_fire(Label("stability-spikes", accept=("stability-mid",))),
        ),
        RecordedStudy(
            "clip-too-low", "clipping at a thousandth of the typical gradient norm", Training(grad_clip_norm=0.003),
            SPACE, must_fire("clip-aggressive"),
        ),
        RecordedStudy(
            "clip-moderate", "clipping at a norm that few gradients reach", Training(grad_clip_norm=5.0), SPACE,
            must_not_fire("clip-aggressive", "clip-insufficient"),
        ),
        RecordedStudy(
            "clip-too-high", "clipping at a norm far above the gradients, which spike",
            replace(bad, grad_clip_norm=1000.0), {"learning_rate": log_range(0.003, 0.02)},
            must_fire(Label("clip-insufficient", accept=("stability-spikes", "stability-mid"))),
        ),
    ]


def _length_studies() -> list[RecordedStudy]:
    peak = Training(
        n_train=120, n_valid=800, dropout=0.0, width=256, max_train_steps=1500, evaluate_every=15, objective="val/loss",
        schedule="constant", weight_decay=0.0,
    )
    return [
        RecordedStudy(
            "best-step-early", "so few examples that the best step lies in the first tenth", peak,
            {"learning_rate": log_range(0.05, 0.3)}, must_fire(Label("step-position", accept=("curve-overfitting",))),
        ),
        RecordedStudy(
            "schedule-none", "a constant learning rate", Training(schedule="constant"), SPACE, must_fire("schedule-constant"),
        ),
        RecordedStudy(
            "schedule-plateau", "a schedule that reacts to the validation loss",
            Training(schedule="plateau", max_train_steps=600), SPACE, must_fire("schedule-ad-hoc"),
        ),
        RecordedStudy(
            "decay-ends-early",
            "a decay that ends after a fifth of the training: most steps have a learning rate that is too low",
            Training(schedule="early-cosine", max_train_steps=600), SPACE,
            must_fire("decay-too-low", Label("curve-saturated", accept=("decay-too-low",))),
        ),
    ]


def _batch_studies() -> list[RecordedStudy]:
    sizes = grid("batch_size", (8, 16, 32, 64, 128, 256))
    sized = {"batch_size": Parameter(type="int", low=8, high=256, scale="log")}
    return [
        RecordedStudy(
            "batch-sizes-starved",
            "batch sizes in powers of two, with a loader that takes half a millisecond an example",
            Training(max_train_steps=60, wait_per_example_s=5e-4), sized, must_fire("batch-throughput"), fixed=sizes,
        ),
        RecordedStudy(
            "loader-slow", "a loader that takes 8 ms a batch", Training(wait_s=0.008, max_train_steps=150), SPACE,
            must_fire("input-bound"), trials=6,
        ),
        RecordedStudy(
            "loader-fast", "a loader that never waits",
            Training(task="digits-cnn", norm="none", batch_size=256, n_train=1200, max_train_steps=120), SPACE,
            must_not_fire("input-bound"), trials=6,
        ),
        RecordedStudy(
            "accumulation",
            "gradients accumulated over four batches of sixteen, which would fit into memory as one batch",
            Training(micro_batches=4, batch_size=16, max_train_steps=200), SPACE, must_fire("grad-accumulation"), trials=6,
        ),
    ]


def _pipeline_studies() -> list[RecordedStudy]:
    return [
        RecordedStudy(
            "evaluations-irregular", "evaluations at random intervals, as when they are timed by the clock",
            Training(evaluate_irregularly=True), SPACE, must_fire("eval-regular"), trials=6,
        ),
        RecordedStudy(
            "evaluation-batch-small", "evaluations in batches of eight",
            Training(eval_batch_size=8, max_train_steps=200, evaluate_every=50), SPACE, must_fire("eval-batch"), trials=6,
        ),
        RecordedStudy(
            "last-checkpoint", "trainings overfit, and only the last checkpoint is kept", replace(NOISY, keep="last"),
            NOISY_RATES, must_fire("ckpt-best-lost"),
        ),
        RecordedStudy("seeds-fixed", "all trials have the same seed", Training(seed=7), SPACE, must_fire("seeds"), trials=8),
        RecordedStudy(
            "batch-norm-small", "batch normalisation over batches of four",
            Training(task="digits-cnn", norm="batch", batch_size=4), SPACE, must_fire("batch-norm"), trials=6,
        ),
        RecordedStudy(
            "batch-norm-large", "batch normalisation over batches of 128",
            Training(task="digits-cnn", norm="batch", batch_size=128, max_train_steps=200), SPACE, must_not_fire("batch-norm"),
            trials=6,
        ),
    ]
