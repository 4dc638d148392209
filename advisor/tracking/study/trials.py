"""Determines the hyperparameters, the seed and the facts of each trial, from adapters or the run's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from advisor import contract
from advisor.model.parameter_kinds import is_batch_size
from advisor.model.space import IntArray, Value, words_of
from advisor.model.spec import StudySpec
from advisor.model.study import CurveBlock, Trial
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.study import axes, from_params, from_study_file, inference
from advisor.tracking.study.status import trial_status


@dataclass(frozen=True, slots=True)
class Trials:
    """The trials of a study."""

    trials: tuple[Trial, ...]
    spec: StudySpec | None
    """Study file that declares the search space of the trials; None if there is none."""
    unit: Literal["step", "epoch"]
    """Value for `Study.unit`."""
    warnings: tuple[str, ...]


def build_trials(
    experiment: Experiment,
    indices: IntArray,
    blocks: Mapping[str, CurveBlock],
    objective: str,
    spec: StudySpec | None,
) -> Trials:
    """Return the trials for the runs with these indices. spec: study file that the user passed."""
    runs = [experiment.runs[i] for i in indices]
    params = inference.parse_params([run.params for run in runs])
    spec = spec or from_study_file.find_spec(experiment, params)
    if spec is not None:
        params = [spec.completed(trial) for trial in params]
    last_steps = axes.last_steps(blocks)
    facts = [_facts(run) for run in runs]
    _add_stated_facts(facts, params, last_steps.tolist())
    twins = inference.twins(params, spec.parameters if spec is not None else ())
    trials = tuple(
        Trial(
            index=i,
            id=run.id,
            name=run.name or run.id,
            status=trial_status(run, blocks, objective, i),
            params={name: value for name, value in params[i].items() if name not in twins},
            seed=_seed(run),
            facts=facts[i],
            started=run.started,
            ended=run.ended,
        )
        for i, run in enumerate(runs)
    )
    by_epoch = all(fact.get("step_unit") == "epoch" for fact in facts) or axes.counts_epochs(last_steps, params)
    warnings = [f"{name} has the values of {other} in every trial, and is left out." for name, other in twins.items()]
    if by_epoch:
        warnings.append("Metrics were logged by epoch: every step in this report is an epoch.")
    return Trials(trials, spec, "epoch" if by_epoch else "step", tuple(warnings))


def _facts(run: Run) -> dict[str, str]:
    autologging = {"autologging": name} if (name := run.tags.get("mlflow.autologging")) else {}
    facts = {k.removeprefix(contract.TAG_PREFIX): v for k, v in run.tags.items() if k.startswith(contract.TAG_PREFIX)}
    return autologging | facts


def _add_stated_facts(
    facts: Sequence[dict[str, str]], params: Sequence[Mapping[str, Value]], last_steps: Sequence[int]
) -> None:
    """Add facts that only a trial's parameters state to its entry in `facts`, shape (trials,)."""
    for known, trial, steps in zip(facts, params, from_params.max_train_steps(params, last_steps), strict=True):
        if steps is not None:
            known.setdefault("max_train_steps", str(steps))
        names = (name for name in sorted(trial, key=len) if is_batch_size(name))
        sizes = (size for name in names if (size := from_params.count(trial[name])) >= 1)
        for micro_batch in islice(sizes, 1):
            known.setdefault("batch_size", f"{micro_batch * from_params.micro_batches(trial):.0f}")


def _seed(run: Run) -> int | None:
    text = run.tags.get(contract.TAG_SEED)
    if text is None:
        names = (name for name in sorted(run.params, key=len) if _is_seed(words_of(name)))
        text = next((run.params[name] for name in names), "")
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return None


def _is_seed(words: Sequence[str]) -> bool:
    """Return True if a parameter with these words in its name seeds the whole training (seed, random_state), unlike data_seed."""
    return words[-2:] == ["random", "state"] or (words[-1:] == ["seed"] and "data" not in words)
