"""Placeholders in the training command that pass settings of the study other than hyperparameters to the training.

`{max_train_steps}` and `{evaluate_every}` are numbers. `{schedule}` is the kind of the learning-rate schedule;
`{schedule.decay_steps}` is an example of the schedule's numbers. `{seed}` differs between runs.
"""

from __future__ import annotations

from advisor.model.space import counts_training, names_schedule
from advisor.model.spec import StudySpec

SCHEDULE = "schedule"
TRAINER_OUTPUT = "--output-dir trainer-output/{run_id}"
"""Option that gives each run of a Transformers trainer a separate folder for checkpoints; in the default folder, each run
overwrites the checkpoints of the run before.
"""


def values(spec: StudySpec) -> dict[str, str]:
    """Return the values of the placeholders that are the same for all runs of the study."""
    study_fields = {"study": spec.study, "max_train_steps": spec.max_train_steps, "evaluate_every": spec.evaluate_every}
    schedule = dict(spec.schedule or {})
    schedule_fields = {f"{SCHEDULE}.{name}": value for name, value in schedule.items() if name != "kind"}
    all_fields = {**study_fields, SCHEDULE: schedule.get("kind"), **schedule_fields}
    return {name: str(value) for name, value in all_fields.items() if value is not None}


def needed_placeholders(spec: StudySpec) -> tuple[str, ...]:
    """Return the placeholders that the command needs so that the training follows the study; hyperparameters are not included.

    `max_train_steps` is not needed if a hyperparameter sets the number of steps. `schedule` is not needed if a hyperparameter sets
    the kind of schedule.
    """
    seed = ("seed",) if (spec.seeds or 1) > 1 else ()
    kind = (spec.schedule or {}).get("kind")
    in_parameters = {
        placeholder
        for name, p in spec.parameters.items()
        for placeholder, value, sets in (
            ("max_train_steps", spec.max_train_steps, counts_training),
            (SCHEDULE, kind, names_schedule),
        )
        if p.value == value and sets(name)
    }
    set_by_study = (n for n in values(spec) if n.partition(".")[0] in (SCHEDULE, "max_train_steps"))
    named = spec.parameters.keys() | in_parameters
    return tuple(n for n in (*seed, *set_by_study) if n.removeprefix(f"{SCHEDULE}.") not in named)


def command_option(name: str) -> str:
    """Return the usual command-line option with a placeholder: `--max-train-steps {max_train_steps}`."""
    return f"--{name.removeprefix(SCHEDULE + '.').replace('_', '-')} {{{name}}}"
