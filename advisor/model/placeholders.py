"""The placeholders with which a command passes to the training what a study sets besides hyperparameters.

`{max_train_steps}` and `{evaluate_every}` are numbers. `{schedule}` is the kind of the learning-rate schedule, and
`{schedule.decay_steps}` one of its other numbers. `{seed}` differs from run to run.
"""

from __future__ import annotations

from advisor.model.space import counts_training
from advisor.model.spec import StudySpec

SCHEDULE = "schedule"


def values(spec: StudySpec) -> dict[str, str]:
    """Return the values of the placeholders that are the same for all runs of the study."""
    own = {"study": spec.study, "max_train_steps": spec.max_train_steps, "evaluate_every": spec.evaluate_every}
    schedule = dict(spec.schedule or {})
    parts = {f"{SCHEDULE}.{name}": value for name, value in schedule.items() if name != "kind"}
    found = {**own, SCHEDULE: schedule.get("kind"), **parts}
    return {name: str(value) for name, value in found.items() if value is not None}


def to_pass(spec: StudySpec) -> tuple[str, ...]:
    """Return the placeholders that the training needs so that it does what the study says; hyperparameters are not included.

    A hyperparameter that states the same number of steps stands for `max_train_steps`.
    """
    seed = ("seed",) if (spec.seeds or 1) > 1 else ()
    stated = any(p.value == spec.max_train_steps for n, p in spec.parameters.items() if counts_training(n))
    set_by_study = (
        n for n in values(spec) if n.partition(".")[0] == SCHEDULE or (n == "max_train_steps" and not stated)
    )
    return tuple(n for n in (*seed, *set_by_study) if n.removeprefix(f"{SCHEDULE}.") not in spec.parameters)


def option(name: str) -> str:
    """Return the usual command-line option with a placeholder: `--max-train-steps {max_train_steps}`."""
    return f"--{name.removeprefix(SCHEDULE + '.').replace('_', '-')} {{{name}}}"
