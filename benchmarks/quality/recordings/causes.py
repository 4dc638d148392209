"""The recorded studies: the cause that is switched on in each, and the rules that should or should not fire.

Labels follow from the cause, never from the verdict of a rule. No rule of `QUIET` may fire on the `healthy` studies of the same
tasks. A rule about a fact, such as shuffling, may not fire on any study that leaves this fact unchanged (`_NOT_SWITCHED`). If a
cause shows only on a special task, as overfitting does, its study has a twin that differs only in the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from advisor.model.spec import Parameter
from recordings.training import Training


@dataclass(frozen=True)
class Label:
    """A rule that must, or must not, fire on a study."""

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
    """What was switched on, in a sentence."""
    training: Training
    space: Mapping[str, Parameter]
    labels: tuple[Label, ...]
    trials: int = 12
    fixed: tuple[Mapping[str, float | int | str], ...] = field(default=())
    """The trials' hyperparameters, if they are listed instead of drawn."""


def _log(low: float, high: float) -> Parameter:
    return Parameter(low=low, high=high, scale="log")


def _linear(low: float, high: float) -> Parameter:
    return Parameter(low=low, high=high, scale="linear")


# Arguments are packed into few lines, which the formatter would undo.
# fmt: off
SPACE = {"learning_rate": _log(0.01, 1.5), "momentum": _linear(0.6, 0.98), "weight_decay": _log(1e-6, 3e-3)}
"""The corner with the highest rates diverges: for causes that show nevertheless."""
TAME = {"learning_rate": _log(0.005, 0.5), "momentum": _linear(0.5, 0.9), "weight_decay": _log(1e-6, 3e-3)}
"""All settings train, and the best lies inside."""
ADAM = {"learning_rate": _log(3e-4, 0.05), "beta1": _linear(0.7, 0.95), "weight_decay": _log(1e-4, 0.1)}
MLP = Training()
CNN = Training(task="digits-cnn", learning_rate=0.1, norm="none")
WALK = Training(
    task="walk", optimizer="adam", learning_rate=3e-3, norm="pre", width=32, batch_size=32, n_train=1600, n_valid=200,
    objective="val/loss", dropout=0.0, max_train_steps=300,
)
TEXT = Training(
    task="text", optimizer="adam", learning_rate=3e-3, norm="pre", width=48, batch_size=32, n_train=6000, n_valid=300,
    objective="val/loss", dropout=0.0, max_train_steps=300,
)

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
"""Rules that may fire only if a setting of the study departs from the default; the functions tell whether it does not."""


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
    """Return all studies to record, each with negative labels for the facts that it leaves unchanged."""
    listed = [*_healthy(), *_space(), *_curves(), *_stability(), *_steps(), *_batch(), *_pipeline(), *_decision()]
    return [replace(study, labels=(*study.labels, *_unchanged(study))) for study in listed]


def _unchanged(study: RecordedStudy) -> tuple[Label, ...]:
    labelled = {label.rule for label in study.labels}
    return _off(*(rule for rule, holds in _NOT_SWITCHED.items() if rule not in labelled and holds(study)))


def _healthy() -> list[RecordedStudy]:
    nothing = "nothing was switched on"
    cnn = {"learning_rate": _log(0.002, 0.4), "dropout": _linear(0, 0.3), "weight_decay": _log(1e-6, 3e-3)}
    # The transformers' best learning rate is near the upper end of their range, so no label says that it lies inside.
    return [
        RecordedStudy("healthy-digits-mlp", nothing, MLP, TAME, _off(*QUIET, "space-boundary")),
        RecordedStudy("healthy-digits-cnn", nothing, CNN, cnn, _off(*QUIET, "space-boundary")),
        RecordedStudy("healthy-walk", nothing, WALK, ADAM, _off(*QUIET, "curve-overfitting"), trials=10),
        RecordedStudy("healthy-text", nothing, TEXT, ADAM, _off(*QUIET, "curve-overfitting"), trials=8),
        RecordedStudy(
            "healthy-digits-mlp-30", nothing, MLP, TAME | {"dropout": _linear(0, 0.4)}, _off(*QUIET, "space-boundary"),
            trials=30,
        ),
    ]


def _space() -> list[RecordedStudy]:
    low = SPACE | {"learning_rate": _log(1e-4, 0.01)}
    high = Label("space-boundary", subject="learning_rate", side="high")
    return [
        RecordedStudy(
            "lr-range-low-mlp", "the learning rates end an order of magnitude below the best", MLP, low, (high,),
        ),
        RecordedStudy("lr-range-low-cnn", "the learning rates end below the best", CNN, low, (high,)),
        RecordedStudy(
            "lr-range-low-walk", "the learning rates end below the best",
            replace(WALK, max_train_steps=150, evaluate_every=10), ADAM | {"learning_rate": _log(1e-5, 5e-4)}, (high,),
        ),
        RecordedStudy(
            "lr-range-high-mlp", "even the lowest learning rate is far above the best", MLP,
            TAME | {"learning_rate": _log(0.8, 8.0)},
            (
                Label(
                    "space-boundary", subject="learning_rate", side="low",
                    accept=("space-boundary-infeasible", "stability-edge", "space-infeasible"),
                ),
            ),
        ),
        RecordedStudy(
            "decay-range-high", "even the lowest weight decay is far too strong", replace(MLP, objective="val/loss"),
            {"learning_rate": _log(0.05, 0.3), "weight_decay": _log(0.02, 0.5)},
            (Label("space-boundary", subject="weight_decay", side="low"),),
        ),
        RecordedStudy(
            "lr-range-wild-mlp", "learning rates up to a thousand", MLP, SPACE | {"learning_rate": _log(0.01, 1e3)},
            _on(Label("space-infeasible", subject="learning_rate")),
        ),
        RecordedStudy(
            "lr-range-wild-walk", "learning rates up to one hundred with Adam",
            replace(WALK, max_train_steps=100, evaluate_every=10), ADAM | {"learning_rate": _log(1e-3, 100.0)},
            _on(Label("space-infeasible", subject="learning_rate")), trials=10,
        ),
        RecordedStudy(
            "lr-range-wide", "twelve orders of magnitude of learning rates", MLP,
            SPACE | {"learning_rate": _log(1e-12, 3.0)}, _on(Label("space-shrink", subject="learning_rate")), trials=24,
        ),
        RecordedStudy(
            "unused-parameter", "a hyperparameter that the training ignores", MLP,
            {"learning_rate": _log(1e-3, 1.0), "unused": _linear(0, 1)},
            (
                Label("space-insensitive", subject="unused"),
                Label("space-insensitive", fires=False, subject="learning_rate"),
            ),
            trials=24,
        ),
        RecordedStudy(
            "lr-times-momentum", "a learning rate and a momentum that compensate each other", MLP,
            {
                "learning_rate": _log(1e-3, 1.0),
                "momentum": Parameter(type="categorical", choices=(0.0, 0.5, 0.9, 0.99)),
            },
            _on("space-interaction"), trials=32,
        ),
        RecordedStudy(
            "six-trials-four-dimensions", "six trials of four hyperparameters with extremely wide ranges",
            replace(MLP, objective="val/loss"),
            {
                "learning_rate": _log(1e-5, 10.0), "momentum": _linear(0.5, 0.99), "weight_decay": _log(1e-6, 1.0),
                "dropout": _linear(0, 0.8),
            },
            _on("space-undersampled"), trials=6,
        ),
        RecordedStudy(
            "steps-tuned", "the number of steps is one of the hyperparameters", MLP,
            SPACE | {"max_train_steps": Parameter(type="int", low=60, high=600, scale="log")}, _on("space-tuned-steps"),
        ),
        RecordedStudy(
            "batch-tuned", "the batch size is one of the hyperparameters, the learning rate is not", MLP,
            {"batch_size": Parameter(type="int", low=8, high=512, scale="log")}, _on("space-tuned-batch"),
        ),
        RecordedStudy(
            "optimizers-unequal", "two optimizers; all learning rates are too low for one of them", MLP,
            {
                "optimizer": Parameter(role="scientific", type="categorical", choices=("sgd", "adam")),
                "learning_rate": _log(1e-5, 3e-3),
            },
            _on("unfair-comparison"), trials=24,
        ),
        RecordedStudy(
            "widths-unequal", "two widths; one was tried only with learning rates that are too low", MLP,
            {
                "width": Parameter(role="scientific", type="categorical", choices=(32, 64)),
                "learning_rate": _log(5e-4, 0.3),
            },
            _on("unfair-comparison"),
            fixed=(
                *_grid("learning_rate", (0.003, 0.006, 0.012, 0.025, 0.05, 0.1, 0.2, 0.3), width=64),
                *_grid("learning_rate", (5e-4, 7e-4, 0.001, 0.0014, 0.002, 0.0028, 0.004, 0.005), width=32),
            ),
        ),
        RecordedStudy(
            "widths-equal", "two widths, tuned equally well", MLP,
            {"width": Parameter(role="scientific", type="categorical", choices=(32, 64)), **TAME},
            _off("unfair-comparison"), trials=24,
        ),
    ]


NOISY = Training(
    n_train=300, n_valid=800, wrong_labels=0.2, width=128, dropout=0.0, objective="val/loss", weight_decay=0.0,
)
"""A task that overfits without a regulariser."""
NOISY_RATES = {"learning_rate": _log(0.005, 0.05)}


def _curves() -> list[RecordedStudy]:
    memorised = replace(WALK, n_train=150, max_train_steps=200, evaluate_every=10, weight_decay=0.0)
    rates = {"learning_rate": _log(0.02, 0.5)}
    tiny = Training(n_valid=40, schedule="constant", learning_rate=0.3, evaluate_every=10, max_train_steps=400)
    return [
        RecordedStudy(
            "no-regulariser-mlp", "300 examples, a fifth of the labels wrong, and no regulariser", NOISY, NOISY_RATES,
            _on("curve-overfitting"),
        ),
        RecordedStudy(
            "regulariser-mlp", "the same with dropout and weight decay", replace(NOISY, dropout=0.5, weight_decay=0.03),
            NOISY_RATES, _off("curve-overfitting", "curve-best-is-regularised-by-accident"),
        ),
        RecordedStudy(
            "no-regulariser-walk", "150 windows of text, no regulariser, trained long", memorised,
            {"learning_rate": _log(3e-3, 0.03)}, _on("curve-overfitting"), trials=6,
        ),
        RecordedStudy(
            "crippled-winner", "a network that memorises 300 examples unless the learning rate is far too low",
            replace(NOISY, max_train_steps=300), {"learning_rate": _log(5e-4, 0.3)},
            _on(Label("curve-best-is-regularised-by-accident", accept=("curve-overfitting",))),
        ),
        RecordedStudy(
            "validation-tiny", "forty validation examples and a constant high learning rate", tiny, rates,
            _on(
                Label("eval-size", accept=("curve-step-variance",)),
                Label("curve-step-variance", accept=("eval-size",)),
            ),
        ),
        RecordedStudy(
            "steps-few-mlp", "an eighth of the necessary steps, at a constant learning rate",
            Training(max_train_steps=50, evaluate_every=2, schedule="constant", objective="val/loss"),
            {"learning_rate": _log(0.003, 0.03)}, _on("curve-still-improving", "step-position"),
        ),
        RecordedStudy(
            "steps-few-walk", "a fifth of the necessary steps, at a constant learning rate",
            Training(
                task="walk", optimizer="adam", norm="pre", width=32, batch_size=32, n_train=1600, n_valid=200,
                objective="val/loss", dropout=0.0, schedule="constant", max_train_steps=80, evaluate_every=4,
            ),
            {"learning_rate": _log(3e-4, 3e-3)}, _on("curve-still-improving", "step-position"), trials=8,
        ),
        RecordedStudy(
            "steps-many-mlp", "ten times the necessary steps, at a constant learning rate",
            Training(
                schedule="constant", max_train_steps=1500, evaluate_every=30, n_valid=597, width=32, dropout=0.0,
                weight_decay=3e-3, objective="val/loss",
            ),
            {"learning_rate": _log(0.04, 0.08)}, _on("curve-saturated"), trials=5,
        ),
        RecordedStudy(
            "labels-drift", "the share of wrong labels in the batches grows, as with a broken loader",
            Training(drifting_labels=True), SPACE, _on("curve-train-loss-rises"),
        ),
        RecordedStudy(
            "shuffle-off", "the loader returns the examples sorted by class",
            Training(
                shuffle=False, sorted_by_class=True, evaluate_every=2, schedule="constant", max_train_steps=240,
                norm="none", dropout=0.0, momentum=0.5,
            ),
            {"learning_rate": _log(0.015, 0.06)}, _on("curve-periodic"), trials=8,
        ),
        RecordedStudy(
            "train-test-overlap", "the validation examples are also trained on, at the start of each epoch",
            Training(
                shuffle=False, overlap=True, wrong_labels=0.5, n_valid=100, n_train=600, batch_size=32, depth=1,
                width=256, dropout=0.0, momentum=0.5, schedule="constant", evaluate_every=2, max_train_steps=240,
                objective="val/loss",
            ),
            {"learning_rate": _log(0.05, 0.5)}, _on("curve-periodic"), trials=8,
        ),
        RecordedStudy(
            "labels-shuffled-mlp", "labels that belong to other examples", Training(random_labels=True), SPACE,
            _on("curve-worse-than-chance"),
        ),
        RecordedStudy(
            "labels-shuffled-cnn", "labels that belong to other examples",
            Training(task="digits-cnn", random_labels=True, norm="none"), SPACE, _on("curve-worse-than-chance"),
        ),
    ]


def _stability() -> list[RecordedStudy]:
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
            {"learning_rate": _log(0.02, 1.0)},
            _on(Label("stability-early", accept=edge), Label("residual-norm", accept=("stability-early", *edge))),
            trials=10,
        ),
        RecordedStudy(
            "pre-norm", "the same with normalisation before the residual branch, a warmup and lower learning rates",
            replace(post, norm="pre", warmup_steps=20), {"learning_rate": _log(0.003, 0.05)},
            _off("stability-early", "stability-edge", "stability-mid", "residual-norm"), trials=10,
        ),
        RecordedStudy(
            "no-warmup", "a network of four layers that starts at its full learning rate", cold,
            {"learning_rate": _log(0.03, 1.0)}, _on(Label("stability-early", accept=edge)),
        ),
        RecordedStudy(
            "warmup", "the same with a warmup over a tenth of the training and lower learning rates",
            replace(cold, warmup_steps=40), {"learning_rate": _log(0.01, 0.15)},
            _off("stability-early", "stability-edge", "stability-mid"),
        ),
        RecordedStudy(
            "lr-jumps-late", "the learning rate jumps to thirty times its value at 60 % of the training", jump,
            {"learning_rate": _log(0.02, 0.1)},
            _on(Label("stability-mid", accept=("stability-spikes", "curve-train-loss-rises"))),
        ),
        RecordedStudy(
            "bad-batches", "one batch of fifty has inputs thirty times too large", bad,
            {"learning_rate": _log(0.003, 0.02)}, _on(Label("stability-spikes", accept=("stability-mid",))),
        ),
        RecordedStudy(
            "clip-too-low", "clipping at a thousandth of the typical gradient norm", Training(grad_clip_norm=0.003),
            SPACE, _on("clip-aggressive"),
        ),
        RecordedStudy(
            "clip-moderate", "clipping at a norm that few gradients reach", Training(grad_clip_norm=5.0), SPACE,
            _off("clip-aggressive", "clip-insufficient"),
        ),
        RecordedStudy(
            "clip-too-high", "clipping at a norm far above the gradients, which spike",
            replace(bad, grad_clip_norm=1000.0), {"learning_rate": _log(0.003, 0.02)},
            _on(Label("clip-insufficient", accept=("stability-spikes", "stability-mid"))),
        ),
    ]


def _steps() -> list[RecordedStudy]:
    peak = Training(
        n_train=120, n_valid=800, dropout=0.0, width=256, max_train_steps=1500, evaluate_every=15, objective="val/loss",
        schedule="constant", weight_decay=0.0,
    )
    return [
        RecordedStudy(
            "best-step-early", "so few examples that the best step lies in the first tenth", peak,
            {"learning_rate": _log(0.05, 0.3)}, _on(Label("step-position", accept=("curve-overfitting",))),
        ),
        RecordedStudy(
            "schedule-none", "a constant learning rate", Training(schedule="constant"), SPACE, _on("schedule-constant"),
        ),
        RecordedStudy(
            "schedule-plateau", "a schedule that reacts to the validation loss",
            Training(schedule="plateau", max_train_steps=600), SPACE, _on("schedule-ad-hoc"),
        ),
        RecordedStudy(
            "decay-ends-early",
            "a decay that ends after a fifth of the training: most steps have a learning rate that is too low",
            Training(schedule="early-cosine", max_train_steps=600), SPACE,
            _on("decay-too-low", Label("curve-saturated", accept=("decay-too-low",))),
        ),
    ]


def _batch() -> list[RecordedStudy]:
    sizes = _grid("batch_size", (8, 16, 32, 64, 128, 256))
    sized = {"batch_size": Parameter(type="int", low=8, high=256, scale="log")}
    return [
        RecordedStudy(
            "batch-sizes-starved",
            "batch sizes in powers of two, with a loader that takes half a millisecond an example",
            Training(max_train_steps=60, wait_per_example_s=5e-4), sized, _on("batch-throughput"), fixed=sizes,
        ),
        RecordedStudy(
            "loader-slow", "a loader that takes 8 ms a batch", Training(wait_s=0.008, max_train_steps=150), SPACE,
            _on("input-bound"), trials=6,
        ),
        RecordedStudy(
            "loader-fast", "a loader that never waits",
            Training(task="digits-cnn", norm="none", batch_size=256, n_train=1200, max_train_steps=120), SPACE,
            _off("input-bound"), trials=6,
        ),
        RecordedStudy(
            "accumulation",
            "gradients accumulated over four batches of sixteen, which would fit into memory as one batch",
            Training(micro_batches=4, batch_size=16, max_train_steps=200), SPACE, _on("grad-accumulation"), trials=6,
        ),
    ]


def _pipeline() -> list[RecordedStudy]:
    return [
        RecordedStudy(
            "evaluations-irregular", "evaluations at random intervals, as when they are timed by the clock",
            Training(evaluate_irregularly=True), SPACE, _on("eval-regular"), trials=6,
        ),
        RecordedStudy(
            "evaluation-batch-small", "evaluations in batches of eight",
            Training(eval_batch_size=8, max_train_steps=200, evaluate_every=50), SPACE, _on("eval-batch"), trials=6,
        ),
        RecordedStudy(
            "last-checkpoint", "trainings overfit, and only the last checkpoint is kept", replace(NOISY, keep="last"),
            NOISY_RATES, _on("ckpt-best-lost"),
        ),
        RecordedStudy("seeds-fixed", "all trials have the same seed", Training(seed=7), SPACE, _on("seeds"), trials=8),
        RecordedStudy(
            "batch-norm-small", "batch normalisation over batches of four",
            Training(task="digits-cnn", norm="batch", batch_size=4), SPACE, _on("batch-norm"), trials=6,
        ),
        RecordedStudy(
            "batch-norm-large", "batch normalisation over batches of 128",
            Training(task="digits-cnn", norm="batch", batch_size=128, max_train_steps=200), SPACE, _off("batch-norm"),
            trials=6,
        ),
    ]


def _decision() -> list[RecordedStudy]:
    same = _seeds({"learning_rate": 0.2, "momentum": 0.9}, {"learning_rate": 0.21, "momentum": 0.9}, times=6)
    apart = _seeds({"learning_rate": 0.2, "momentum": 0.9}, {"learning_rate": 0.002, "momentum": 0.5}, times=6)
    decays, rates = (1e-6, 5e-6, 2e-5, 1e-4), (0.06, 0.08, 0.1, 0.14, 0.2, 0.3)
    few = {"learning_rate": _log(0.001, 0.3), "momentum": _linear(0.5, 0.9)}
    return [
        RecordedStudy(
            "configurations-alike", "two nearly equal settings, six seeds each", Training(max_train_steps=200), few,
            _on("adopt"), fixed=same,
        ),
        RecordedStudy(
            "configurations-apart", "a good and a bad setting, six seeds each", Training(max_train_steps=200), few,
            _off("adopt"), fixed=apart,
        ),
        RecordedStudy(
            "tuning-done", "24 equally good settings, one of them run five times", Training(max_train_steps=200),
            {"learning_rate": _log(0.06, 0.3), "weight_decay": _log(1e-6, 1e-4)}, _on("tuning-saturated"),
            fixed=(
                *({"learning_rate": rate, "weight_decay": decay} for decay in decays for rate in rates),
                *_seeds({"learning_rate": 0.14, "weight_decay": 5e-6}, times=4),
            ),
        ),
        RecordedStudy(
            "tuning-begun",
            "six settings over three orders of magnitude, each better than the one before, and three repeats of the last",
            Training(max_train_steps=150), {"learning_rate": _log(1e-4, 0.1), "weight_decay": _log(1e-6, 1e-4)},
            _off("tuning-saturated"),
            fixed=(
                *_grid("learning_rate", (1e-4, 3e-4, 0.001, 0.003, 0.01, 0.03), weight_decay=1e-5),
                *_seeds({"learning_rate": 0.03, "weight_decay": 1e-5}, times=3),
            ),
        ),
    ]
