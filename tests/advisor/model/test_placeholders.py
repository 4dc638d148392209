"""The placeholders for what a study sets besides hyperparameters."""

from advisor.model.placeholders import command_option, needed_placeholders, placeholder_values
from advisor.model.spec import Objective, Parameter, StudySpec

SPEC = StudySpec(
    study="s",
    objective=Objective(metric="loss", direction="minimize"),
    parameters={"lr": Parameter(low=1e-4, high=1e-1, scale="log")},
    max_train_steps=500,
    evaluate_every=50,
    schedule={"kind": "linear", "decay_steps": 100},
)


def test_values_are_those_of_the_study() -> None:
    assert placeholder_values(SPEC) == {
        "study": "s",
        "max_train_steps": "500",
        "evaluate_every": "50",
        "schedule": "linear",
        "schedule.decay_steps": "100",
    }


def test_the_training_needs_the_length_the_schedule_and_repeated_seeds() -> None:
    assert needed_placeholders(SPEC) == ("max_train_steps", "schedule", "schedule.decay_steps")
    assert needed_placeholders(SPEC.model_copy(update={"seeds": 3, "schedule": None})) == ("seed", "max_train_steps")
    steps = SPEC.with_parameter("max_steps", Parameter(role="fixed", value=500))
    assert "max_train_steps" not in needed_placeholders(steps)
    assert "max_train_steps" in needed_placeholders(steps.with_parameter("max_steps", Parameter(role="fixed", value=5)))
    kind = SPEC.with_parameter("lr_scheduler_type", Parameter(role="fixed", value="linear"))
    assert needed_placeholders(kind) == ("max_train_steps", "schedule.decay_steps")
    assert "schedule" in needed_placeholders(SPEC.with_parameter("lr_scheduler_type", Parameter(role="fixed", value="cosine")))
    assert command_option("schedule.decay_steps") == "--decay-steps {schedule.decay_steps}"
