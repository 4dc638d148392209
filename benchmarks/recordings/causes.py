"""The recorded studies: what was switched on in each, and which rules that makes right or wrong to fire.

A label is what was switched, never what a rule said. Every cause stands beside `healthy` studies of the same task, on which no
rule of `QUIET` may fire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.spec import Parameter
from recordings.training import Training


@dataclass(frozen=True)
class Label:
    """A rule that must fire on a study, or must not."""

    rule: str
    fires: bool = True
    subject: str | None = None
    side: str | None = None
    accept: tuple[str, ...] = ()
    """Rules that may fire instead."""


@dataclass(frozen=True)
class RecordedStudy:
    """A study to record."""

    name: str
    cause: str
    """What was switched, in a sentence."""
    training: Training
    space: Mapping[str, Parameter]
    labels: tuple[Label, ...]
    trials: int = 12
    fixed: tuple[Mapping[str, float | int | str], ...] = field(default=())
    """The trials' hyperparameters where they are listed instead of drawn."""


def _log(low: float, high: float) -> Parameter:
    return Parameter(low=low, high=high, scale="log")


def _linear(low: float, high: float) -> Parameter:
    return Parameter(low=low, high=high, scale="linear")


RATE = _log(0.01, 1.5)
SPACE = {"learning_rate": RATE, "momentum": _linear(0.6, 0.98), "weight_decay": _log(1e-6, 3e-3)}
ADAM = {"learning_rate": _log(1e-3, 0.3), "beta1": _linear(0.7, 0.97), "weight_decay": _log(1e-4, 0.1)}
MLP = Training()
CNN = Training(task="digits-cnn", learning_rate=0.1, norm="none")
WALK = Training(
    task="walk",
    optimizer="adam",
    learning_rate=3e-3,
    norm="pre",
    width=32,
    batch_size=32,
    n_train=1600,
    objective="val/loss",
    dropout=0.0,
)
TEXT = Training(
    task="text",
    optimizer="adam",
    learning_rate=3e-3,
    norm="pre",
    width=48,
    batch_size=32,
    n_train=6000,
    objective="val/loss",
    dropout=0.0,
    max_train_steps=400,
)

QUIET = (
    "space-boundary space-boundary-infeasible space-infeasible curve-train-loss-rises curve-periodic curve-worse-than-chance "
    "stability-edge stability-early stability-mid stability-spikes clip-aggressive clip-insufficient residual-norm "
    "schedule-constant schedule-ad-hoc decay-too-low space-tuned-steps space-tuned-batch unfair-comparison input-bound "
    "grad-accumulation eval-regular eval-batch ckpt-best-lost seeds batch-norm multi-host"
).split()


def _on(*rules: Label | str) -> tuple[Label, ...]:
    return tuple(Label(rule) if isinstance(rule, str) else rule for rule in rules)


def _off(*rules: str) -> tuple[Label, ...]:
    return tuple(Label(rule, fires=False) for rule in rules)


def _grid(
    name: str, values: tuple[float | int | str, ...], **others: float | int | str
) -> tuple[Mapping[str, float | int | str], ...]:
    return tuple({name: value, **others} for value in values)


def _seeds(*settings: Mapping[str, float | int | str], times: int) -> tuple[Mapping[str, float | int | str], ...]:
    return tuple(setting for setting in settings for _ in range(times))


def studies() -> list[RecordedStudy]:
    """All studies to record."""
    return [*_healthy(), *_space(), *_curves(), *_stability(), *_steps(), *_batch(), *_pipeline(), *_decision()]


def _healthy() -> list[RecordedStudy]:
    nothing = "nothing was switched on"
    return [
        RecordedStudy("healthy-digits-mlp", nothing, MLP, SPACE, _off(*QUIET)),
        RecordedStudy("healthy-digits-cnn", nothing, CNN, SPACE, _off(*QUIET)),
        RecordedStudy("healthy-walk", nothing, WALK, ADAM, _off(*QUIET)),
        RecordedStudy("healthy-text", nothing, TEXT, ADAM, _off(*QUIET)),
        RecordedStudy(
            "healthy-digits-mlp-30", nothing, MLP, SPACE | {"dropout": _linear(0, 0.4)}, _off(*QUIET), trials=30
        ),
    ]


def _space() -> list[RecordedStudy]:
    low = SPACE | {"learning_rate": _log(1e-4, 0.01)}
    high = Label("space-boundary", subject="learning_rate", side="high")
    return [
        RecordedStudy(
            "lr-range-low-mlp", "the learning rates end two orders of magnitude below the best", MLP, low, (high,)
        ),
        RecordedStudy("lr-range-low-cnn", "the learning rates end below the best", CNN, low, (high,)),
        RecordedStudy(
            "lr-range-low-walk",
            "the learning rates end below the best",
            WALK,
            ADAM | {"learning_rate": _log(1e-5, 5e-4)},
            (high,),
        ),
        RecordedStudy(
            "decay-range-high",
            "weight decays of which even the least is far too strong",
            MLP,
            SPACE | {"weight_decay": _log(0.02, 1.0)},
            (Label("space-boundary", subject="weight_decay", side="low"),),
        ),
        RecordedStudy(
            "lr-range-wild-mlp",
            "learning rates up to a thousand",
            MLP,
            SPACE | {"learning_rate": _log(0.01, 1e3)},
            _on(Label("space-infeasible", subject="learning_rate")),
        ),
        RecordedStudy(
            "lr-range-wild-walk",
            "learning rates up to one hundred with Adam",
            WALK,
            ADAM | {"learning_rate": _log(1e-3, 100.0)},
            _on(Label("space-infeasible", subject="learning_rate")),
        ),
        RecordedStudy(
            "lr-range-wide",
            "fourteen orders of magnitude of learning rates",
            MLP,
            SPACE | {"learning_rate": _log(1e-12, 3.0)},
            _on(Label("space-shrink", subject="learning_rate")),
            trials=24,
        ),
        RecordedStudy(
            "unused-parameter",
            "a hyperparameter that the training ignores",
            MLP,
            {"learning_rate": _log(1e-3, 1.0), "unused": _linear(0, 1)},
            (
                Label("space-insensitive", subject="unused"),
                Label("space-insensitive", fires=False, subject="learning_rate"),
            ),
            trials=24,
        ),
        RecordedStudy(
            "lr-times-momentum",
            "a plain rate and a momentum that make up for each other",
            MLP,
            {
                "learning_rate": _log(1e-3, 1.0),
                "momentum": Parameter(type="categorical", choices=(0.0, 0.5, 0.9, 0.99)),
            },
            _on("space-interaction"),
            trials=32,
        ),
        RecordedStudy(
            "lr-linear-scale",
            "learning rates drawn on a linear scale, though they act by their order of magnitude",
            MLP,
            SPACE | {"learning_rate": _linear(1e-4, 8.0)},
            _on(Label("space-scale", subject="learning_rate")),
            trials=24,
        ),
        RecordedStudy(
            "four-trials-four-dimensions",
            "four trials of four hyperparameters",
            MLP,
            SPACE | {"dropout": _linear(0, 0.5)},
            _on("space-undersampled"),
            trials=4,
        ),
        RecordedStudy(
            "steps-tuned",
            "the number of steps is one of the hyperparameters",
            MLP,
            SPACE | {"max_train_steps": Parameter(type="int", low=60, high=600, scale="log")},
            _on("space-tuned-steps"),
        ),
        RecordedStudy(
            "batch-tuned",
            "the batch size is one of the hyperparameters, the learning rate is not",
            MLP,
            {"batch_size": Parameter(type="int", low=8, high=512, scale="log")},
            _on("space-tuned-batch"),
        ),
        RecordedStudy(
            "optimizers-unequal",
            "two optimizers, one of them with learning rates that are all too low",
            MLP,
            {
                "optimizer": Parameter(role="scientific", type="categorical", choices=("sgd", "adam")),
                "learning_rate": _log(1e-5, 3e-3),
            },
            _on("unfair-comparison"),
            trials=24,
        ),
        RecordedStudy(
            "optimizers-equal",
            "two widths, tuned alike",
            MLP,
            {"width": Parameter(role="scientific", type="categorical", choices=(32, 64)), **SPACE},
            _off("unfair-comparison"),
            trials=24,
        ),
    ]


def _curves() -> list[RecordedStudy]:
    small = Training(
        n_train=150,
        n_valid=800,
        dropout=0.0,
        width=128,
        max_train_steps=600,
        objective="val/loss",
        schedule="constant",
        weight_decay=0.0,
    )
    memorised = Training(
        task="walk",
        optimizer="adam",
        norm="pre",
        width=48,
        batch_size=32,
        n_train=150,
        dropout=0.0,
        objective="val/loss",
        max_train_steps=600,
        weight_decay=0.0,
    )
    rates = {"learning_rate": _log(0.02, 0.5)}
    tiny = Training(n_valid=40, schedule="constant", learning_rate=0.3, evaluate_every=10, max_train_steps=400)
    return [
        RecordedStudy(
            "no-regulariser-mlp", "150 examples, no regulariser, trained long", small, rates, _on("curve-overfitting")
        ),
        RecordedStudy(
            "no-regulariser-walk",
            "150 windows of text, no regulariser, trained long",
            memorised,
            {"learning_rate": _log(1e-3, 0.01)},
            _on("curve-overfitting"),
        ),
        RecordedStudy(
            "crippled-winner",
            "so small a data set that the smallest learning rate regularises best",
            memorised,
            {"learning_rate": _log(1e-4, 0.01)},
            _on(Label("curve-best-is-regularised-by-accident", accept=("curve-overfitting",))),
        ),
        RecordedStudy(
            "validation-tiny",
            "forty examples to validate on, and a constant high rate",
            tiny,
            rates,
            _on(
                Label("eval-size", accept=("curve-step-variance",)), Label("curve-step-variance", accept=("eval-size",))
            ),
        ),
        RecordedStudy(
            "steps-few-mlp",
            "an eighth of the steps it takes, at a constant rate",
            Training(max_train_steps=50, evaluate_every=2, schedule="constant", objective="val/loss"),
            {"learning_rate": _log(0.003, 0.03)},
            _on("curve-still-improving", "step-position"),
        ),
        RecordedStudy(
            "steps-few-walk",
            "a fifth of the steps it takes, at a constant rate",
            Training(
                task="walk",
                optimizer="adam",
                norm="pre",
                width=32,
                batch_size=32,
                n_train=1600,
                objective="val/loss",
                dropout=0.0,
                schedule="constant",
                max_train_steps=120,
                evaluate_every=4,
            ),
            {"learning_rate": _log(3e-4, 3e-3)},
            _on("curve-still-improving", "step-position"),
        ),
        RecordedStudy(
            "steps-many-cnn",
            "six times the steps it takes",
            Training(
                task="digits-cnn", norm="none", dropout=0.3, max_train_steps=1500, evaluate_every=25, weight_decay=1e-3
            ),
            {"learning_rate": _log(0.05, 0.3)},
            _on("curve-saturated"),
        ),
        RecordedStudy(
            "labels-drift",
            "ever more wrong labels in the batches, as from a broken loader",
            Training(drifting_labels=True),
            SPACE,
            _on("curve-train-loss-rises"),
        ),
        RecordedStudy(
            "shuffle-off",
            "the loader gives the examples sorted by class",
            Training(
                shuffle=False, evaluate_every=2, schedule="constant", max_train_steps=300, norm="none", dropout=0.0
            ),
            {"learning_rate": _log(0.01, 0.1)},
            _on("curve-periodic"),
        ),
        RecordedStudy(
            "labels-shuffled-mlp",
            "labels that belong to other examples",
            Training(random_labels=True),
            SPACE,
            _on("curve-worse-than-chance"),
        ),
        RecordedStudy(
            "labels-shuffled-cnn",
            "labels that belong to other examples",
            Training(task="digits-cnn", random_labels=True, norm="none"),
            SPACE,
            _on("curve-worse-than-chance"),
        ),
    ]


def _stability() -> list[RecordedStudy]:
    post = Training(
        task="walk",
        optimizer="adam",
        norm="post",
        depth=6,
        width=48,
        batch_size=32,
        n_train=1600,
        objective="val/loss",
        dropout=0.0,
        warmup_steps=0,
        schedule="constant",
        max_train_steps=300,
        evaluate_every=10,
    )
    jump = Training(schedule="late-jump", objective="val/loss", norm="none", dropout=0.0)
    bad = Training(outliers=0.01, norm="none", objective="val/loss", schedule="cosine", dropout=0.0)
    return [
        RecordedStudy(
            "post-norm-no-warmup",
            "six blocks that normalise after their branches, and no warmup",
            post,
            {"learning_rate": _log(3e-4, 0.03)},
            _on(
                Label("stability-early", accept=("stability-edge", "space-boundary-infeasible")),
                Label("residual-norm", accept=("stability-early", "stability-edge")),
            ),
        ),
        RecordedStudy(
            "lr-jumps-late",
            "the learning rate jumps to thirty times its value at 60 % of the training",
            jump,
            {"learning_rate": _log(0.02, 0.1)},
            _on(Label("stability-mid", accept=("stability-spikes",))),
        ),
        RecordedStudy(
            "bad-batches",
            "one batch of a hundred has inputs a hundred times too large",
            bad,
            {"learning_rate": _log(0.003, 0.03)},
            _on(Label("stability-spikes", accept=("stability-mid",))),
        ),
        RecordedStudy(
            "clip-too-low",
            "clipping at a thousandth of the usual gradient",
            Training(grad_clip_norm=0.003),
            SPACE,
            _on("clip-aggressive"),
        ),
        RecordedStudy(
            "clip-moderate",
            "clipping that few gradients reach",
            Training(grad_clip_norm=5.0),
            SPACE,
            _off("clip-aggressive", "clip-insufficient"),
        ),
        RecordedStudy(
            "clip-too-high",
            "clipping far above gradients that spike all the same",
            Training(outliers=0.02, norm="none", objective="val/loss", grad_clip_norm=200.0, dropout=0.0),
            {"learning_rate": _log(0.003, 0.05)},
            _on(Label("clip-insufficient", accept=("stability-spikes", "stability-mid"))),
        ),
    ]


def _steps() -> list[RecordedStudy]:
    peak = Training(
        n_train=120,
        n_valid=800,
        dropout=0.0,
        width=256,
        max_train_steps=1500,
        evaluate_every=15,
        objective="val/loss",
        schedule="constant",
        weight_decay=0.0,
    )
    return [
        RecordedStudy(
            "best-step-early",
            "so few examples that the best step comes in the first tenth",
            peak,
            {"learning_rate": _log(0.05, 0.3)},
            _on(Label("step-position", accept=("curve-overfitting",))),
        ),
        RecordedStudy(
            "schedule-none", "a constant learning rate", Training(schedule="constant"), SPACE, _on("schedule-constant")
        ),
        RecordedStudy(
            "schedule-plateau",
            "a schedule that reacts to the validation loss",
            Training(schedule="plateau", max_train_steps=600),
            SPACE,
            _on("schedule-ad-hoc"),
        ),
        RecordedStudy(
            "decay-ends-early",
            "a decay that ends after a fifth of the training",
            Training(schedule="early-cosine", max_train_steps=600),
            SPACE,
            _on("decay-too-low"),
        ),
    ]


def _batch() -> list[RecordedStudy]:
    sizes = _grid("batch_size", (8, 16, 32, 64, 128, 256))
    sized = {"batch_size": Parameter(type="int", low=8, high=256, scale="log")}
    return [
        RecordedStudy(
            "batch-sizes-cpu",
            "batch sizes in powers of two",
            Training(max_train_steps=150),
            sized,
            _on("batch-throughput"),
            fixed=sizes,
            trials=6,
        ),
        RecordedStudy(
            "loader-slow",
            "a loader that takes 8 ms a batch",
            Training(wait_s=0.008, max_train_steps=150),
            SPACE,
            _on("input-bound"),
            trials=6,
        ),
        RecordedStudy(
            "loader-fast",
            "a loader that never waits",
            Training(task="digits-cnn", norm="none", batch_size=256, n_train=1200, max_train_steps=120),
            SPACE,
            _off("input-bound"),
            trials=6,
        ),
        RecordedStudy(
            "accumulation",
            "gradients accumulated over four batches of sixteen that would fit at once",
            Training(micro_batches=4, batch_size=16, max_train_steps=200),
            SPACE,
            _on("grad-accumulation"),
            trials=6,
        ),
    ]


def _pipeline() -> list[RecordedStudy]:
    return [
        RecordedStudy(
            "evaluations-irregular",
            "evaluations at random gaps, as by the clock",
            Training(evaluate_irregularly=True),
            SPACE,
            _on("eval-regular"),
            trials=6,
        ),
        RecordedStudy(
            "evaluation-batch-small",
            "evaluations in batches of eight",
            Training(eval_batch_size=8, max_train_steps=200, evaluate_every=50),
            SPACE,
            _on("eval-batch"),
            trials=6,
        ),
        RecordedStudy(
            "last-checkpoint",
            "only the last checkpoint is kept of trainings that overfit",
            Training(
                n_train=150,
                n_valid=800,
                dropout=0.0,
                width=128,
                max_train_steps=600,
                objective="val/loss",
                schedule="constant",
                weight_decay=0.0,
                keep="last",
            ),
            {"learning_rate": _log(0.02, 0.5)},
            _on("ckpt-best-lost"),
        ),
        RecordedStudy("seeds-fixed", "all trials have the same seed", Training(seed=7), SPACE, _on("seeds"), trials=8),
        RecordedStudy(
            "batch-norm-small",
            "batch normalisation over batches of four",
            Training(task="digits-cnn", norm="batch", batch_size=4),
            SPACE,
            _on("batch-norm"),
            trials=6,
        ),
        RecordedStudy(
            "batch-norm-large",
            "batch normalisation over batches of 128",
            Training(task="digits-cnn", norm="batch", batch_size=128, max_train_steps=200),
            SPACE,
            _off("batch-norm"),
            trials=6,
        ),
    ]


def _decision() -> list[RecordedStudy]:
    same = _seeds({"learning_rate": 0.2, "momentum": 0.9}, {"learning_rate": 0.21, "momentum": 0.9}, times=6)
    apart = _seeds({"learning_rate": 0.2, "momentum": 0.9}, {"learning_rate": 0.002, "momentum": 0.5}, times=6)
    few = {"learning_rate": _log(0.001, 0.3), "momentum": _linear(0.5, 0.9)}
    return [
        RecordedStudy(
            "configurations-alike",
            "two settings that hardly differ, six seeds each",
            Training(max_train_steps=200),
            few,
            _on("adopt"),
            fixed=same,
        ),
        RecordedStudy(
            "configurations-apart",
            "a good and a bad setting, six seeds each",
            Training(max_train_steps=200),
            few,
            _off("adopt"),
            fixed=apart,
        ),
        RecordedStudy(
            "tuning-done",
            "forty trials in a space where nearly all are as good",
            Training(max_train_steps=300),
            {"learning_rate": _log(0.1, 0.3), "weight_decay": _log(1e-6, 1e-4)},
            _on("tuning-saturated"),
            trials=40,
        ),
    ]
