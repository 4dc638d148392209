"""Recorded studies on subjects that the playbook leaves open: float16, Adam, repeated data, attention logits."""

from __future__ import annotations

from dataclasses import replace

from recordings.recorded_study import TEXT, WALK, Label, RecordedStudy, linear_range, log_range, must_fire, must_not_fire
from recordings.training import Training

# Arguments are packed into few lines, which the formatter would undo.
# fmt: off

RULES = ("loss-scale", "adam-epsilon", "weight-decay-weak", "curve-staircase", "attention-logits")
"""The rules that these studies test."""
_HALF = Training(float16=True, growth_interval=50, max_train_steps=160, keep="none")
_WALK = replace(WALK, depth=1, width=24, batch_size=16, max_train_steps=100, evaluate_every=10, keep="none")
_TEXT = replace(
    TEXT, depth=1, width=32, batch_size=16, n_train=640, max_train_steps=160, evaluate_every=16, weight_decay=0.0, keep="none",
)
_NGRAMS = Training(
    task="ngrams", depth=6, momentum=0.0, batch_size=16, n_train=640, n_valid=200, objective="val/loss", max_train_steps=160,
    evaluate_every=16, weight_decay=0.0, schedule="linear", final_rate=0.2, keep="none",
)
_RATES = {"learning_rate": log_range(0.02, 0.2)}
_ADAM_RATES = {"learning_rate": log_range(3e-3, 0.03)}
_WIDE_RATES = {"learning_rate": log_range(5e-3, 0.5)}
"""With a quarter of these learning rates, on a log scale, the logits of plain attention explode."""
_LOW_RATES = {"learning_rate": log_range(2e-3, 0.04)}
_HOT = {"learning_rate": log_range(30.0, 100.0)}


def language_studies() -> list[RecordedStudy]:
    """Return the studies, each with a label for every rule in `RULES`."""
    return [_labelled_study(study) for study in (*_loss_scale_studies(), *_adam_studies(), *_memorising_studies(), *_attention())]


def _labelled_study(study: RecordedStudy) -> RecordedStudy:
    known = {label.rule for label in study.labels}
    return replace(study, labels=(*study.labels, *must_not_fire(*(rule for rule in RULES if rule not in known))))


def _loss_scale_studies() -> list[RecordedStudy]:
    fires = must_fire("loss-scale")
    return [
        RecordedStudy(
            "float16-batches-extreme", "one batch of ten has inputs a million times too large, which float16 cannot hold",
            replace(_HALF, outliers=0.1, outlier_scale=1e6), _RATES, fires, trials=2,
        ),
        RecordedStudy(
            "float16-inputs-unscaled", "inputs up to 60,000, so the first layer leaves the range of float16 during training",
            replace(_HALF, input_scale=6e4), {"learning_rate": log_range(0.1, 0.4)}, fires, trials=2,
        ),
        RecordedStudy("float16", "float16 with a loss scale that doubles every 50 steps", _HALF, _RATES, (), trials=2),
        RecordedStudy(
            "float16-loss-summed", "the same with the sum of the losses instead of their mean, so the scale is low and stays there",
            replace(_HALF, loss_factor=64.0), {"learning_rate": log_range(2e-4, 2e-3)}, (), trials=2,
        ),
        RecordedStudy(
            "float16-walk", "a transformer in float16",
            replace(_WALK, float16=True, growth_interval=50, weight_decay=0.0), _ADAM_RATES, (), trials=2,
        ),
    ]


def _adam_studies() -> list[RecordedStudy]:
    tiny = replace(_WALK, loss_factor=1e-8)
    decays = {"learning_rate": log_range(3e-3, 0.03), "weight_decay": log_range(1e-5, 1e-2)}
    return [
        RecordedStudy(
            "adam-epsilon-large", "an epsilon of 0.1, ten times the typical gradient",
            replace(_WALK, epsilon=0.1, weight_decay=0.0), _ADAM_RATES, must_fire("adam-epsilon"), trials=2,
        ),
        RecordedStudy(
            "adam-loss-tiny", "a loss divided by 100 million, so the gradients are below the usual epsilon",
            replace(tiny, weight_decay=0.0), _ADAM_RATES, must_fire("adam-epsilon"), trials=2,
        ),
        RecordedStudy(
            "adam-loss-small", "a loss divided by a thousand, which Adam ignores",
            replace(tiny, loss_factor=1e-3, weight_decay=0.0), _ADAM_RATES, (), trials=2,
        ),
        RecordedStudy(
            "weight-decay-weak", "weight decays that shrink the weights by less than 3 % during the training", _WALK, decays,
            must_fire("weight-decay-weak"), trials=2,
        ),
        RecordedStudy(
            "weight-decay-acts", "the same with weight decays that act within the training", _WALK,
            {"learning_rate": log_range(3e-3, 0.03), "weight_decay": log_range(0.3, 3.0)}, (), trials=2,
        ),
        RecordedStudy(
            "weight-decay-steps-few", "a weight decay that acts within 10,000 steps, in a training of 100",
            replace(_WALK, weight_decay=0.01), _ADAM_RATES, must_fire("weight-decay-weak"), trials=2,
        ),
    ]


def _memorising_studies() -> list[RecordedStudy]:
    dropout = {"learning_rate": log_range(3e-3, 0.02), "dropout": linear_range(0.0, 0.2)}
    return [
        RecordedStudy(
            "epochs-memorised", "four epochs of a model with weights for each sequence of six characters", _NGRAMS, _HOT,
            must_fire(Label("curve-staircase")), trials=2,
        ),
        RecordedStudy(
            "epochs-memorised-in-part", "the same with sequences of four characters", replace(_NGRAMS, depth=4), _HOT,
            must_fire(Label("curve-staircase")), trials=2,
        ),
        RecordedStudy(
            "epochs-of-single-characters", "the same with single characters, which cannot remember examples",
            replace(_NGRAMS, depth=1), _HOT, (), trials=2,
        ),
        RecordedStudy(
            "epochs-of-a-transformer", "four epochs of a small transformer", _TEXT, dropout, (), trials=2,
        ),
        RecordedStudy(
            "epochs-with-steps-of-the-rate", "a model without memory whose learning rate falls at the start of each epoch",
            replace(_NGRAMS, depth=1, schedule="epoch-steps"), _HOT, (), trials=2,
        ),
    ]


def _attention() -> list[RecordedStudy]:
    text = replace(
        _TEXT, attention="plain", schedule="constant", n_valid=200, max_train_steps=120, evaluate_every=10,
    )
    walk = replace(_WALK, attention="plain", width=32, weight_decay=0.0, max_train_steps=120)
    fires = must_fire("attention-logits")
    return [
        RecordedStudy(
            "attention-logits-explode", "a transformer at a constant rate; at the highest rates, its attention logits explode",
            text, _WIDE_RATES, fires, trials=4,
        ),
        RecordedStudy(
            "attention-logits-explode-and-rate-decays", "the same on a synthetic language, with cosine decay", walk, _WIDE_RATES,
            fires, trials=4,
        ),
        RecordedStudy(
            "attention-normalised", "the same rates with normalised queries and keys", replace(text, attention="qk-norm"),
            _WIDE_RATES, (), trials=4,
        ),
        RecordedStudy(
            "attention-normalised-and-rate-decays", "the same on a synthetic language, with cosine decay",
            replace(walk, attention="qk-norm"), _WIDE_RATES, (), trials=4,
        ),
        RecordedStudy("attention-rates-low", "plain attention at lower rates", text, _LOW_RATES, (), trials=4),
        RecordedStudy(
            "attention-rates-low-and-decay", "the same on a synthetic language, with cosine decay", walk, _LOW_RATES, (), trials=4,
        ),
    ]
