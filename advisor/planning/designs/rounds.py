"""The design `rounds`: tune in short runs, then train a few of the best settings for the final number of steps.

Playbook: "Deciding how long to train when training is compute-bound".

*When.* The best trials still improve at their end, also on training data, and the study states the final number of steps
(`final_train_steps`). The design is also used if nothing is left to change in a study of short runs.

*What.* Round 1 trains for about 10 % of the final length, which answers most questions. Round 2 trains the two or three best
settings for the final length. The ranking of settings may change with the training length. The long runs together take at most
as many steps as the previous round, unless a single one takes more. A linear decay keeps its number of steps and starts after a
longer constant part, so that long runs do not end with many tiny updates. A cosine schedule is stretched to the final length.
If the schedule is unknown or constant, the rate decays linearly over as many steps as a short run."""

from __future__ import annotations

from advisor.computed.space import settings
from advisor.computed.steps import schedules
from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, RunPlan
from advisor.model.space import HyperparameterValue, as_number
from advisor.model.spec import Parameter, Sampler, StudySpec
from advisor.model.study import Study
from advisor.planning.base import best_trial_setting, parameter_with_formula

SHORT_RUN_LENGTH_SHARE = 0.1
"""Training length of the short runs, as a share of the final training length."""
MAX_LONG_RUNS = 3
MAX_EQUAL_VALUE_DISTANCE = 0.02
"""Maximum distance between two values that count as equal, as a share of the range on its scale. Our choice."""
FINAL_LENGTH_ADVICE = (
    "Set final_train_steps in the study file to the length of the final training, so that the long runs can be planned."
)


def design(_request: RunPlan, study: Study, base: StudySpec) -> StudySpec | tuple[Change, ...]:
    """Return the study of long runs; if `base` does not state the final number of steps, return the advice to state it."""
    final_steps, short_steps = base.final_train_steps, study.spec.max_train_steps
    setting = best_trial_setting(study, base)
    if final_steps is None:
        return (Advise(text=FINAL_LENGTH_ADVICE),)
    if short_steps is None or not setting or final_steps <= short_steps:
        return ()
    steps_of_last_round = (study.spec.trials or base.trials or 1) * (study.spec.seeds or 1) * short_steps
    best_settings = _best_settings(study, base, setting, max(min(MAX_LONG_RUNS, steps_of_last_round // final_steps), 1))
    parameters = _long_run_parameters(best_settings, base)
    schedule, schedule_note = _long_schedule(base, study, final_steps)
    cost_note = (
        f"This run takes {final_steps:,} steps, more than the whole last round ({steps_of_last_round:,} steps). Decide whether the "
        "result is worth this cost."
    )
    varied_names = [n for n, p in parameters.items() if p.searched]
    settings_text = f"each of the {len(best_settings)} best settings" if varied_names else "the best setting"
    return base.model_copy(
        update={
            "goal": f"Lengthen training: {final_steps:,} steps for {settings_text}",
            "parameters": parameters,
            "forbidden": (),
            "settings": tuple({n: s[n] for n in varied_names if n in s} for s in best_settings) if varied_names else (),
            "trials": len(best_settings) if varied_names else 1,
            "sampler": Sampler(),
            "seeds": None,
            "max_train_steps": final_steps,
            "evaluate_every": base.evaluate_every and max(round(base.evaluate_every * final_steps / short_steps), 1),
            "schedule": schedule,
            "final_train_steps": None,
            "notes": (
                *base.notes,
                *([cost_note] if final_steps > steps_of_last_round else []),
                schedule_note,
                "Keep the best checkpoint of each run and choose among them on validation data.",
            ),
        }
    )


def _best_settings(
    study: Study, base: StudySpec, first: dict[str, HyperparameterValue], number: int
) -> list[dict[str, HyperparameterValue]]:
    best_settings = [first]
    for trials in settings.read_settings(study).trials:
        values = {n: v for n, v in base.with_computed_values(dict(trials[0].params)).items() if n in base.parameters}
        if study.comparable[trials[0].index] and values.keys() == first.keys():
            best_settings += [values] if all(_settings_differ(study, values, other) for other in best_settings) else []
        if len(best_settings) == number:
            break
    return best_settings


def _long_schedule(base: StudySpec, study: Study, final_steps: int) -> tuple[dict[str, HyperparameterValue], str]:
    schedule = dict(base.schedule or {})
    kind = str(schedule.get("kind") or schedules.read_schedule(study, study.ranked()[0]).logged_kind or "")
    short_steps = study.spec.max_train_steps or final_steps
    if kind and kind != "constant" and "linear" not in kind:
        stretch_text = "Stretch the cosine" if "cosine" in kind else f"Stretch the {kind} schedule"
        return schedule | {"kind": kind}, f"{stretch_text} over all {final_steps:,} steps, with the same base learning rate."
    warmup_steps = int(as_number(schedule.get("warmup_steps", 0)))
    decay_steps = int(as_number(schedule.get("decay_steps", short_steps - warmup_steps)))
    same_decay_text = ", as in the short runs" if "linear" in kind else ""
    schedule |= {"kind": kind if same_decay_text else "linear", "decay_steps": decay_steps}
    schedule |= {"constant_steps": max(final_steps - warmup_steps - decay_steps, 0)}
    return schedule, f"Keep the base learning rate, then decay it over the last {decay_steps:,} steps{same_decay_text}."


def _long_run_parameters(best: list[dict[str, HyperparameterValue]], base: StudySpec) -> dict[str, Parameter]:
    """Return the hyperparameters for the long runs: fixed if the settings agree, else a list of the settings' values."""
    parameters = {}
    for name, value in best[0].items():
        values = tuple(dict.fromkeys(s[name] for s in best))
        old = base.parameters[name]
        if (derived := parameter_with_formula(name, best[0], base)) is not None:
            parameters[name] = derived
        elif len(values) == 1:
            why = f"as in the best of the short runs{_transfer_likelihood_text(name)}"
            parameters[name] = base.fix_value(name, value, why=why)
        else:
            why = "of the best short runs"
            parameters[name] = Parameter(role="scientific", choices=values, equals=old.equals, when=old.when, why=why)
    return parameters


def _transfer_likelihood_text(name: str) -> str:
    """Return the playbook's clause about how likely the best value stays the best in longer runs."""
    if "warmup" in name.lower() or "init" in name.lower():
        return ": warmup and initialisation are very likely to transfer"
    if parameter_kinds.is_regulariser(name) or parameter_kinds.belongs_to_optimizer(name):
        return ": the optimizer and regularisation might transfer"
    return ": the architecture is likely to transfer" if parameter_kinds.is_architecture_size(name) else ""


def _settings_differ(study: Study, one: dict[str, HyperparameterValue], other: dict[str, HyperparameterValue]) -> bool:
    for name in study.searched.keys() & one.keys() & other.keys():
        here, there = study.searched[name].to_positions([one[name], other[name]])
        if one[name] != other[name] and not abs(here - there) <= MAX_EQUAL_VALUE_DISTANCE:
            return True
    return False
