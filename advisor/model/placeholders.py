"""Defines the placeholders through which a training command receives settings of the study that are no hyperparameters.

`{max_train_steps}` and `{evaluate_every}` are numbers of steps, `{schedule}` is the kind of learning-rate schedule, and
`{schedule.decay_steps}` is a number of this schedule. `{seed}` differs in each run of the study.
"""

from __future__ import annotations

from advisor.model.space import is_training_length, is_transformers_schedule_name
from advisor.model.spec import StudySpec

SCHEDULE = "schedule"
TRAINER_OUTPUT_OPTION = "--output-dir trainer-output/{run_id}"
"""Option that gives each run of a Transformers trainer its own checkpoint folder, so that runs do not overwrite checkpoints."""


def placeholder_values(spec: StudySpec) -> dict[str, str]:
    study_fields = {"study": spec.study, "max_train_steps": spec.max_train_steps, "evaluate_every": spec.evaluate_every}
    schedule = dict(spec.schedule or {})
    schedule_fields = {f"{SCHEDULE}.{name}": value for name, value in schedule.items() if name != "kind"}
    all_fields = {**study_fields, SCHEDULE: schedule.get("kind"), **schedule_fields}
    return {name: str(value) for name, value in all_fields.items() if value is not None}


def needed_placeholders(spec: StudySpec) -> tuple[str, ...]:
    """Return the placeholders that the command needs so that the script follows the study, except hyperparameters and what
    hyperparameters set: the number of steps and the kind of schedule."""
    seed = ("seed",) if (spec.seeds or 1) > 1 else ()
    kind = (spec.schedule or {}).get("kind")
    fields = (("max_train_steps", spec.max_train_steps, is_training_length), (SCHEDULE, kind, is_transformers_schedule_name))
    parameters = spec.parameters.items()
    in_parameters = {field for name, p in parameters for field, value, sets in fields if p.value == value and sets(name)}
    set_by_study = (n for n in placeholder_values(spec) if n.partition(".")[0] in (SCHEDULE, "max_train_steps"))
    known_names = spec.parameters.keys() | in_parameters
    return tuple(n for n in (*seed, *set_by_study) if n.removeprefix(f"{SCHEDULE}.") not in known_names)


def command_option(name: str) -> str:
    """Return the usual option for a placeholder, such as `--max-train-steps {max_train_steps}`."""
    return f"--{name.removeprefix(SCHEDULE + '.').replace('_', '-')} {{{name}}}"
