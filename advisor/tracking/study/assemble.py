"""Makes a `Study` of an experiment as its tracker holds it. Pure: data in, data out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor import contract
from advisor.computed.space.kinds import is_batch_size
from advisor.model.errors import AdvisorError, NothingToJudge
from advisor.model.space import BoolArray, FloatArray, IntArray, Value, words_of
from advisor.model.spec import MAX_NAME, Direction, Objective, StudySpec
from advisor.model.study import CurveBlock, Status, Study, Trial
from advisor.stats.curve import HUGE
from advisor.system import spill
from advisor.tracking.points.collect import ascending
from advisor.tracking.runs import Experiment, Points, Run
from advisor.tracking.study import axes, from_params, from_study_file, inference, metric_names
from advisor.tracking.study.probes import without_probes

_PARENT_TAG = "mlflow.parentRunId"
_FARTHEST = 2**53
"""Steps beyond, such as times in nanoseconds, are not told apart by a 64-bit floating-point number."""


def assemble(
    experiment: Experiment,
    *,
    spec: StudySpec | None = None,
    objective: str | None = None,
    direction: Direction | None = None,
) -> Study:
    """The study that the experiment's runs are.

    The objective, its direction and the space come from the arguments, else from `spec`, else from what adapters noted, else they
    are inferred and `Study.inferred` says so. Raises AdvisorError where there is nothing to analyse or the arguments contradict
    the data.
    """
    if not experiment.runs:
        raise NothingToJudge(f"experiment {experiment.name!r} has no runs; log some trials first")
    experiment = without_probes(experiment)
    inferred: dict[str, str] = {}
    aim = _objective(experiment, spec, objective, direction, inferred)
    keep, held = _trial_runs(experiment, aim.metric)
    blocks, stepless = _blocks(experiment, keep)
    blocks, by_epoch = axes.align(blocks)
    trials, doubled = _trials(experiment, keep, blocks, aim.metric, spec)
    if not any(len(blocks[aim.metric].curve(t.index)) for t in trials):
        raise AdvisorError(f"no run of experiment {experiment.name!r} logged the objective {aim.metric!r}")
    if all(t.status in ("running", "no_data") for t in trials):
        running = sum(t.status == "running" for t in trials)
        raise NothingToJudge(
            f"no trial of experiment {experiment.name!r} has ended yet ({running} are running); come back later"
        )
    points = {m: len(b.steps) for m, b in blocks.items()}
    summaries = {m for m, b in blocks.items() if (np.diff(b.offsets) <= 1).all()}
    signals = metric_names.find_signals(blocks, aim.metric, points, summaries)
    space, outside = _space(experiment, spec, aim, trials, blocks, inferred)
    return Study(
        spec=space,
        trials=trials,
        metrics=blocks,
        signals=signals,
        inferred=inferred,
        warnings=(*experiment.warnings, *_of_test_data(aim), *held, *stepless, *by_epoch, *doubled, *outside),
        unit="epoch" if axes.BY_EPOCH in doubled else "step",
    )


# --- objective ------------------------------------------------------------------------------------------------------------------


def _objective(
    experiment: Experiment,
    spec: StudySpec | None,
    metric: str | None,
    direction: Direction | None,
    inferred: dict[str, str],
) -> Objective:
    if all(metric_names.is_companion(m) for m in experiment.points):
        raise NothingToJudge(
            f"no run of experiment {experiment.name!r} logged a metric; log the one by which trials are to be judged"
        )
    if spec is not None and metric is not None and spec.objective.metric != metric:
        raise AdvisorError(
            f"the study file's objective is {spec.objective.metric!r}, but --objective says {metric!r}; drop one of them"
        )
    if spec is not None:
        metric = spec.objective.metric
        direction = direction or spec.objective.direction
    metric = metric or _noted(experiment, contract.TAG_OBJECTIVE)
    params = [run.params for run in experiment.runs]
    if metric is None and (metric := from_params.objective(params, experiment.points)) is not None:
        inferred["objective"] = "inferred from the parameter by which the runs choose their best model"
        direction = direction or from_params.direction(params)
    if metric is None:
        metric = metric_names.guess_objective(_trials_per_metric(experiment))
        inferred["objective"] = "inferred from the metrics' names"
        if metric is not None and metric_names.split_of(metric) is None:
            inferred["objective"] += ", of which none says that it is of validation data"
    if metric is None:
        raise AdvisorError(f"cannot tell which metric is the objective; pass --objective, one of: {_known(experiment)}")
    if metric not in experiment.points:
        raise AdvisorError(f"no run logged the objective {metric!r}; metrics that were logged: {_known(experiment)}")
    if direction is None and metric == _noted(experiment, contract.TAG_OBJECTIVE):
        noted = _noted(experiment, contract.TAG_DIRECTION)
        direction = "maximize" if noted == "maximize" else "minimize" if noted == "minimize" else None
    if direction is None:
        direction = metric_names.direction_of(metric)
        inferred["direction"] = "inferred from the metric's name"
    if direction is None:
        raise AdvisorError(
            f"cannot tell whether {metric!r} is better low or high; pass --direction minimize or maximize"
        )
    return Objective(metric=metric, direction=direction)


def _noted(experiment: Experiment, tag: str) -> str | None:
    """The value of a tag on the experiment, else the one that most runs have."""
    if tag in experiment.tags:
        return experiment.tags[tag]
    values = [run.tags[tag] for run in experiment.runs if tag in run.tags]
    return max(sorted(set(values)), key=values.count) if values else None


def _trials_per_metric(experiment: Experiment) -> dict[str, int]:
    return {m: len(np.unique(p.runs)) for m, p in experiment.points.items()}


def _known(experiment: Experiment) -> str:
    ours = sorted(m for m in experiment.points if not metric_names.is_companion(m))
    return ", ".join(ours[:12]) + (f" and {len(ours) - 12} more" if len(ours) > 12 else "") if ours else "none"


def _of_test_data(aim: Objective) -> list[str]:
    """A warning where trials are chosen by what should only be looked at once they are chosen."""
    if metric_names.split_of(aim.metric) != "test":
        return []
    return [
        f"The objective, {aim.metric}, is of test data by its name: choose trials on validation data, and look at test data once."
    ]


# --- curves ---------------------------------------------------------------------------------------------------------------------


def _trial_runs(experiment: Experiment, objective: str) -> tuple[IntArray, list[str]]:
    """Indices of the runs that are trials, and a warning of those that are none because they only hold others together."""
    children: dict[str, list[Run]] = {}
    for run in experiment.runs:
        if _PARENT_TAG in run.tags:
            children.setdefault(run.tags[_PARENT_TAG], []).append(run)
    with_objective = set(experiment.points[objective].runs.tolist())
    keep = [
        i
        for i, run in enumerate(experiment.runs)
        if run.id not in children or (i in with_objective and _resembles(run, children[run.id]))
    ]
    warnings = []
    if held := len(experiment.runs) - len(keep):
        many = "run holds others together and is" if held == 1 else "runs hold others together and are"
        warnings.append(f"{held:,} {many} not counted as a trial.")
    if stray := _stray(experiment, keep):
        keep = [i for i in keep if i not in stray]
        many = (
            "run holds one evaluation and no parameters, and is" if len(stray) == 1 else "runs hold one evaluation each"
        )
        many += "" if len(stray) == 1 else " and no parameters, and are"
        warnings.append(f"{len(stray):,} {many} not counted as a trial.")
    return np.array(keep, dtype=np.int64), warnings


def _stray(experiment: Experiment, keep: Sequence[int]) -> set[int]:
    """Runs that tools begin for an evaluation after the training: no parameters and one point a metric, where others have both."""
    bare = {i for i in keep if not experiment.runs[i].params}
    if not bare or 2 * len(bare) > len(keep):
        return set()
    curves = {run for points in experiment.points.values() for run in _repeated(points.runs)}
    return bare - curves if curves - bare else set()


def _repeated(runs: IntArray) -> list[int]:
    """The runs that occur more than once."""
    found, counts = np.unique(runs, return_counts=True)
    repeated: list[int] = found[counts > 1].tolist()
    return repeated


def _resembles(parent: Run, children: Sequence[Run]) -> bool:
    """Whether a parent may be a trial: it has a hyperparameter that its children vary, or they vary none, as folds and repeats do.

    The parent of a sweep that logs the sweep's best value is none.
    """
    trials = inference.parse_params([run.params for run in children])
    varied = {name for name in {n for t in trials for n in t} if len({t[name] for t in trials if name in t}) > 1}
    return not varied or bool(varied & set(parent.params))


def _blocks(experiment: Experiment, keep: IntArray) -> tuple[dict[str, CurveBlock], list[str]]:
    trial_of = np.full(len(experiment.runs), -1, dtype=np.int64)
    trial_of[keep] = np.arange(len(keep))
    started = np.array([math.nan if experiment.runs[i].started is None else experiment.runs[i].started for i in keep])
    blocks, without_steps = {}, []
    few = experiment.few
    for metric, points in experiment.points.items():
        blocks[metric], stepless = _block(points, trial_of, started, few=few)
        if stepless:
            without_steps.append(metric)
    warnings = []
    if without_steps:
        listed = ", ".join(sorted(without_steps)[:5])
        warnings.append(f"Logged without usable steps, so the order of logging stands for them: {listed}.")
    return blocks, warnings


def _block(points: Points, trial_of: IntArray, started: FloatArray, *, few: bool) -> tuple[CurveBlock, bool]:
    """Sort the points by trial, step and time; of several points at one step the last one logged counts."""
    stepless = _is_stepless(points, trial_of, len(started))
    counts = np.zeros(len(started), dtype=np.int64)

    def portion(part: slice) -> tuple[IntArray, FloatArray, FloatArray]:
        trials, steps, values, times = _sorted(points, part, trial_of)
        if stepless:
            steps = np.arange(len(steps), dtype=np.int64) - np.searchsorted(trials, trials)
        elif not ascending(trials, steps):
            last = np.append((trials[1:] != trials[:-1]) | (steps[1:] != steps[:-1]), True)
            trials, steps, values, times = trials[last], steps[last], values[last], times[last]
        if (huge := np.abs(values) > HUGE).any():
            values = np.where(huge, np.copysign(np.inf, values), values)
        np.add(counts, np.bincount(trials, minlength=len(counts)), out=counts)
        return steps, values, times - started[trials]

    steps, values, times = spill.joined(map(portion, spill.portions(points.runs)), most=len(points.runs), few=few)
    return CurveBlock(steps, values, times, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)), stepless


def _sorted(points: Points, part: slice, trial_of: IntArray) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """A part of the points, by trial, step and time, a point logged twice once: trials, steps, values, times."""
    trials = trial_of[points.runs[part]]
    steps, values, times = points.steps[part], points.values[part], points.times[part]
    if not (kept := trials >= 0).all():
        trials, steps, values, times = trials[kept], steps[kept], values[kept], times[kept]
    if ascending(trials, steps):  # as nearly all trainings log
        return trials, steps, values, times
    order = np.lexsort((times, steps, trials))
    trials, steps, values, times = trials[order], steps[order], values[order], times[order]
    if not (new := _differ(trials, steps, times, values)).all():
        trials, steps, values, times = trials[new], steps[new], values[new], times[new]
    return trials, steps, values, times


def _is_stepless(points: Points, trial_of: IntArray, trials: int) -> bool:
    """Whether the steps tell nothing: too large to be told apart, or the same throughout, of more points than there are trials."""
    parts = list(spill.portions(points.runs))
    steps = (points.steps[part][trial_of[points.runs[part]] >= 0] for part in parts)
    ends = [(int(s.min()), int(s.max())) for s in steps if len(s)]
    if not ends:
        return False
    low, high = min(first for first, _ in ends), max(last for _, last in ends)
    if max(-low, high) > _FARTHEST:
        return True
    return low == high and sum(len(_sorted(points, part, trial_of)[0]) for part in parts) > trials


def _differ(*columns: NDArray[Any]) -> BoolArray:
    """Which rows of columns of 8 bytes a number, each of shape (n,), differ from the row before: a point logged twice is one."""
    new = np.ones(len(columns[0]), dtype=np.bool_)
    new[1:] = np.logical_or.reduce([(bits := c.view(np.int64))[1:] != bits[:-1] for c in columns])
    return new


# --- trials ---------------------------------------------------------------------------------------------------------------------


def _trials(
    experiment: Experiment,
    keep: IntArray,
    blocks: Mapping[str, CurveBlock],
    objective: str,
    spec: StudySpec | None,
) -> tuple[tuple[Trial, ...], list[str]]:
    """The trials, and warnings of what their parameters and metrics repeat or count in a way of their own."""
    runs = [experiment.runs[i] for i in keep]
    params = inference.parse_params([run.params for run in runs])
    spec = spec or from_study_file.noted(experiment, params)
    if spec is not None:
        params = [spec.completed(trial) for trial in params]
    facts = [_facts(run) for run in runs]
    ends = axes.last_steps(blocks)
    _add_stated(facts, params, ends.tolist())
    doubled = inference.twins(params, spec.parameters if spec is not None else ())
    warnings = [f"{name} has the values of {other} in every trial, and is left out." for name, other in doubled.items()]
    trials = tuple(
        Trial(
            index=i,
            id=run.id,
            name=run.name or run.id,
            status=_status(run, blocks, objective, i),
            params={name: value for name, value in params[i].items() if name not in doubled},
            seed=_seed(run),
            facts=facts[i],
            started=run.started,
            ended=run.ended,
        )
        for i, run in enumerate(runs)
    )
    noted = all(fact.get("step_unit") == "epoch" for fact in facts)
    return trials, [*warnings, *([axes.BY_EPOCH] if noted else axes.epochs_only(ends, params))]


def _facts(run: Run) -> dict[str, str]:
    return {k.removeprefix(contract.TAG_PREFIX): v for k, v in run.tags.items() if k.startswith(contract.TAG_PREFIX)}


def _add_stated(facts: Sequence[dict[str, str]], params: Sequence[Mapping[str, Value]], ends: Sequence[int]) -> None:
    """Add to the facts of each trial (trials,) what no adapter noted but its parameters say."""
    for noted, trial, steps in zip(facts, params, from_params.max_train_steps(params, ends), strict=True):
        if steps is not None:
            noted.setdefault("max_train_steps", str(steps))
        sizes = [
            number
            for name in sorted(trial, key=len)
            if is_batch_size(name) and (number := from_params.count(trial[name])) >= 1
        ]
        if sizes:
            noted.setdefault("batch_size", f"{sizes[0] * from_params.micro_batches(trial):.0f}")


def _status(run: Run, blocks: Mapping[str, CurveBlock], objective: str, trial: int) -> Status:
    noted = run.tags.get(contract.TAG_STATUS)
    for status in _ENDED:
        if noted == status:
            return status
    if run.status in ("RUNNING", "SCHEDULED"):
        return "running"
    if run.status == "FAILED":
        return "stopped" if _pruned(run) else "infeasible"
    curve = blocks[objective].curve(trial)
    if not len(curve):
        return "no_data"
    if not math.isfinite(curve.values[-1]) and not _trained_on(blocks, objective, trial):
        return "diverged"
    return "stopped" if run.status == "KILLED" else "complete"


def _trained_on(blocks: Mapping[str, CurveBlock], objective: str, trial: int) -> bool:
    """Whether a trial's objective had been finite, and its training loss was to the last: an evaluation broke, not the training.

    A loss that is not finite by then, or that was last logged before the objective was lost, shows nothing of the kind.
    """
    broken = blocks[objective].curve(trial)
    losses = [
        block.curve(trial)
        for name, block in blocks.items()
        if name != objective and metric_names.split_of(name) == "train" and metric_names.quantity(name) == ("loss",)
    ]
    whole = [c for c in losses if len(c) and np.isfinite(c.values).all() and c.steps[-1] >= broken.steps[-1]]
    return bool(np.isfinite(broken.values).any()) and bool(whole)


def _pruned(run: Run) -> bool:
    """Whether a tuner gave the run up and noted it, as Optuna does: the exception by which it does so is no crash."""
    return run.tags.get("state", run.tags.get("trial_state", "")).upper().endswith("PRUNED")


_ENDED: tuple[Status, ...] = ("complete", "diverged", "infeasible", "stopped", "no_data")


def _seed(run: Run) -> int | None:
    text = run.tags.get(contract.TAG_SEED)
    if text is None:
        named = [run.params[name] for name in sorted(run.params, key=len) if _is_seed(words_of(name))]
        text = named[0] if named else ""
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return None


def _is_seed(words: Sequence[str]) -> bool:
    """Whether a parameter of these words is the seed of the whole training: seed, trainer.seed, random_state; not data_seed."""
    return words[-2:] == ["random", "state"] or (words[-1:] == ["seed"] and "data" not in words)


# --- space ----------------------------------------------------------------------------------------------------------------------


def _space(
    experiment: Experiment,
    spec: StudySpec | None,
    aim: Objective,
    trials: Sequence[Trial],
    blocks: Mapping[str, CurveBlock],
    inferred: dict[str, str],
) -> tuple[StudySpec, list[str]]:
    """The study's spec, and warnings of trials that lie outside of what it declares."""
    seen = inference.infer_parameters([t.params for t in trials])
    spec = spec or from_study_file.noted(experiment, [t.params for t in trials])
    known, outside = from_study_file.parameters(spec, [t.params for t in trials])
    guessed = {name: p for name, p in seen.items() if name not in known}
    for name, parameter in guessed.items():
        if name not in ("objective", "direction"):  # these keys tell of the study's own objective
            inferred[name] = "range inferred from the trials" if parameter.searched else "the same in every trial"
    block = blocks[aim.metric]
    ends = [int(c.steps[-1]) for t in trials if len(c := block.curve(t.index))]
    steps = inference.infer_max_steps([t.fact("max_train_steps") for t in trials], ends)
    name = (experiment.name or "study")[: MAX_NAME - 100]  # with room for what the next studies are called
    base = spec or StudySpec(study=name, objective=aim, trials=len(trials))
    if base.max_train_steps is None:
        base = base.model_copy(update={"max_train_steps": steps})
    return base.model_copy(update={"objective": aim, "parameters": {**known, **guessed}}), outside
