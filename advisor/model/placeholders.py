"""Defines placeholders in the training command that pass settings of the study, other than hyperparameters, to the training
script.

The placeholders `{max_train_steps}` and `{evaluate_every}` are numbers. `{schedule}` is the kind of the learning-rate schedule,
and `{schedule.decay_steps}` is one of its numbers. `{seed}` differs between runs of the study.
"""

from __future__ import annotations

from advisor.model.space import counts_training, is_transformers_schedule_name
from advisor.model.spec import StudySpec

SCHEDULE = "schedule"
TRAINER_OUTPUT_OPTION = "--output-dir trainer-output/{run_id}"
"""Option that gives each run of a Transformers trainer its own folder for checkpoints; in the default folder, each run would
overwrite the checkpoints of the preceding run."""


def values(spec: StudySpec) -> dict[str, str]:
    """Return the values of the placeholders that are equal for all runs of the study."""
    study_fields = {"study": spec.study, "max_train_steps": spec.max_train_steps, "evaluate_every": spec.evaluate_every}
    schedule = dict(spec.schedule or {})
    schedule_fields = {f"{SCHEDULE}.{name}": value for name, value in schedule.items() if name != "kind"}
    all_fields = {**study_fields, SCHEDULE: schedule.get("kind"), **schedule_fields}
    return {name: str(value) for name, value in all_fields.items() if value is not None}


def needed_placeholders(spec: StudySpec) -> tuple[str, ...]:
    """Return the placeholders, except hyperparameters, that the command needs so that the training script follows the study.

    `max_train_steps` is not needed if a hyperparameter sets the number of steps. `schedule` is not needed if a hyperparameter
    sets the kind of schedule.
    """
    seed = ("seed",) if (spec.seeds or 1) > 1 else ()
    kind = (spec.schedule or {}).get("kind")
    in_parameters = {
        placeholder
        for name, p in spec.parameters.items()
        for placeholder, value, sets in (
            ("max_train_steps", spec.max_train_steps, counts_training),
            (SCHEDULE, kind, is_transformers_schedule_name),
        )
        if p.value == value and sets(name)
    }
    set_by_study = (n for n in values(spec) if n.partition(".")[0] in (SCHEDULE, "max_train_steps"))
    named = spec.parameters.keys() | in_parameters
    return tuple(n for n in (*seed, *set_by_study) if n.removeprefix(f"{SCHEDULE}.") not in named)


def command_option(name: str) -> str:
    """Return the usual command-line option with its placeholder, such as `--max-train-steps {max_train_steps}`."""
    return f"--{name.removeprefix(SCHEDULE + '.').replace('_', '-')} {{{name}}}"
