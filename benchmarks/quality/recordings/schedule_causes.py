"""Studies whose study file asks for a learning-rate schedule, which their trainings follow or ignore.

They are not among the recordings, because their tables do not hold a study file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from advisor.model.space import HyperparameterValue
from advisor.model.spec import Parameter
from recordings.recorded_study import WALK, Label, RecordedStudy, log_range, must_fire, must_not_fire
from recordings.training import Schedule, Training

Asked = Mapping[str, HyperparameterValue]
"""Learning-rate schedule of a study file."""
RULE = "schedule-ignored"
_MLP = Training(max_train_steps=120, evaluate_every=12, keep="none")
_WALK = replace(WALK, depth=1, width=24, batch_size=16, max_train_steps=100, evaluate_every=10, keep="none")
_RATES = {"learning_rate": log_range(0.01, 0.3)}
_ADAM_RATES = {"learning_rate": log_range(1e-3, 0.02)}


def schedule_studies() -> list[RecordedStudy]:
    """Return the studies, each with a label for the rule `schedule-ignored`."""
    cosine: Asked = {"kind": "cosine", "warmup_steps": 20}
    linear, exponential, constant = ({"kind": kind} for kind in ("linear", "exponential", "constant"))
    walk: dict[str, Any] = {"training": _WALK, "space": _ADAM_RATES}
    return [
        _ignored("cosine", "a cosine decay is asked for, and the rate stays constant after a warmup", cosine, "constant"),
        _ignored("linear", "a linear decay is asked for, and the rate of a transformer is constant", linear, "constant", **walk),
        _ignored("exponential", "an exponential decay is asked for, and the rate is constant", exponential, "constant"),
        _ignored("constant", "a constant rate is asked for, and the rate decays by a cosine", constant, "cosine"),
        _ignored("constant-at-the-end", "the same with a decay in the last fifth only", constant, "cooldown"),
        _followed("cosine", "a cosine decay as asked for", cosine, "cosine"),
        _followed(
            "linear", "a linear decay to half of the peak as asked for", linear, "linear",
            training=replace(_WALK, final_rate=0.5), space=_ADAM_RATES,
        ),
        _followed("constant", "a constant rate as asked for, after a warmup", constant, "constant"),
        _followed("cosine-linearly", "a cosine decay is asked for, and the decay is linear", cosine, "linear"),
        _followed("cosine-early", "the same with a decay that ends early", cosine, "early-cosine"),
        _followed("cosine-late", "the same with a decay in the last fifth only", cosine, "cooldown"),
        _followed("cosine-with-restarts", "the same with restarts", cosine, "restarts"),
        _followed("cosine-on-plateaus", "the same, but the rate falls when the loss stands still", cosine, "plateau"),
        _followed(
            "exponential-in-stairs", "an exponential decay is asked for, and the rate falls by steps", exponential, "epoch-steps",
        ),
        _followed(
            "searched", "a cosine decay is asked for, and the study searches the schedule", cosine, "cosine",
            space={**_RATES, "schedule": Parameter(choices=("constant", "cosine", "linear"))},
        ),
    ]  # fmt: skip


def _ignored(name: str, cause: str, asked: Asked, schedule: Schedule, **more: Any) -> RecordedStudy:
    return _study(f"schedule-ignored-{name}", cause, asked, schedule, must_fire(RULE), **more)


def _followed(name: str, cause: str, asked: Asked, schedule: Schedule, **more: Any) -> RecordedStudy:
    return _study(f"schedule-{name}", cause, asked, schedule, must_not_fire(RULE), **more)


def _study(
    name: str,
    cause: str,
    asked: Asked,
    schedule: Schedule,
    labels: tuple[Label, ...],
    training: Training = _MLP,
    space: Mapping[str, Parameter] = _RATES,
) -> RecordedStudy:
    return RecordedStudy(name, cause, replace(training, schedule=schedule), space, labels, trials=3, asked=asked)
