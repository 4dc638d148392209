"""Converts an experiment to a `Study`. Every decision about the data is made once, before any rule runs, in one module:

| decision | module |
|---|---|
| which runs to exclude as probes | `probes` |
| which logged parameters are hyperparameters | `hyperparameters`, `measurements` |
| which of several populations to analyse | `populations` |
| which runs continue an interrupted run | `continued` |
| which objective is optimised | `objective` |
| which runs are trials | `trial_runs` |
| which points form each curve; step or epoch | `curves`, `axes` |
| which parameters are not separate hyperparameters | `roles`, `relations` |
| end status of each trial | `status`, `silent_failures`, `plateaus`, `short_runs`, `memory` |
| settings and facts of each trial | `trials` |
| which kind of workload it is | `kind` |
| which space the study searched | `space`, `declared` |
| which metric is the training loss, gradient norm, ... | `metric_names` |
| whether trials stopped at a target value | `targets` |
| how trials and objectives compare | `comparisons` |
"""

from __future__ import annotations

import numpy as np

from advisor.model.errors import AdvisorError, NothingToJudge
from advisor.model.reading import Reading
from advisor.model.spec import Direction, StudySpec
from advisor.model.study import CurveBlock, Signal, Study, Trial
from advisor.tracking.runs import Experiment
from advisor.tracking.study import metric_names
from advisor.tracking.study.comparisons import add_metric_comparisons
from advisor.tracking.study.continued import join_continued
from advisor.tracking.study.curves import build_curves
from advisor.tracking.study.hyperparameters import drop_non_hyperparameters
from advisor.tracking.study.kind import choose_kind
from advisor.tracking.study.objective import choose_objective
from advisor.tracking.study.populations import RunPopulation, select_population
from advisor.tracking.study.probes import exclude_probe_runs
from advisor.tracking.study.space import build_space
from advisor.tracking.study.targets import add_reached_target
from advisor.tracking.study.trial_runs import find_trial_runs
from advisor.tracking.study.trials import build_trials
from advisor.tracking.study_tags import latest_study_file


def assemble(
    experiment: Experiment,
    *,
    spec: StudySpec | None = None,
    objective: str | None = None,
    direction: Direction | None = None,
    reading: Reading | None = None,
    unfinished: bool = False,
) -> Study:
    """Return the study of an experiment's runs. reading: the user's decisions, by default those in the study file.

    unfinished: whether to accept a study in which no trial has ended yet.

    Objective, direction and search space are taken from the arguments, or else from `spec`, or else from the tags of our
    training hooks. If none of these sources states them, they are inferred, and `Study.inferred` records this. Raises
    AdvisorError if the experiment has no data or the arguments contradict the data.
    """
    if not experiment.runs:
        raise NothingToJudge(f"experiment {experiment.name!r} has no runs; train some trials first")
    reading = reading or (spec.reading if spec is not None else None) or Reading()
    experiment, left_out = drop_non_hyperparameters(exclude_probe_runs(experiment), spec, reading)
    population = _choose_population(experiment, reading, spec, objective)
    experiment, joined = join_continued(population.experiment)
    aim = choose_objective(experiment, spec, objective, direction)
    metric = aim.objective.metric
    chosen = find_trial_runs(experiment, metric)
    curves = build_curves(experiment, chosen.trial_indices)
    trials = build_trials(experiment, chosen.trial_indices, curves, aim.objective, spec)
    _require_results(experiment.name, metric, trials.trials, curves.blocks[metric], unfinished=unfinished)
    kind = choose_kind(experiment, chosen.trial_indices, metric, reading)
    space = build_space(experiment, trials.spec, aim.objective, trials.trials, curves.blocks[metric], trials.roles.parameters)
    study = Study(
        spec=space.spec,
        trials=trials.trials,
        metrics=curves.blocks,
        signals=_metrics_of_signals(curves.blocks, metric),
        inferred={**aim.inferred, **space.inferred},
        warnings=tuple(w for part in (population, experiment, aim, chosen, curves, trials, space) for w in part.warnings),
        unit=trials.unit,
        kind=kind.kind,
        lengths=trials.roles.steps_per_unit,
        decisions=(
            *(*population.decisions, *joined, *left_out),
            *(d for part in (kind, curves, trials, space) for d in part.decisions),
        ),
    )
    return add_metric_comparisons(add_reached_target(study), curves.summaries.get(metric, {}))


def _choose_population(
    experiment: Experiment, reading: Reading, spec: StudySpec | None, objective: str | None
) -> RunPopulation:
    return select_population(
        experiment,
        reading.population,
        objective=spec.objective.metric if spec is not None else objective,
        declared_study=spec is not None or latest_study_file(experiment.tags) is not None,
    )


def _require_results(experiment: str, metric: str, trials: tuple[Trial, ...], block: CurveBlock, *, unfinished: bool) -> None:
    """Raise AdvisorError unless at least one trial logged the objective. If `unfinished` is False, at least one trial must also
    have ended."""
    if not any(len(block.curve(t.index)) for t in trials):
        raise AdvisorError(f"no run of experiment {experiment!r} logged the objective {metric!r}")
    if not unfinished and all(t.status in ("running", "no_data") for t in trials):
        running = sum(t.status == "running" for t in trials)
        raise NothingToJudge(f"no trial of experiment {experiment!r} has ended yet ({running} are running); come back later")


def _metrics_of_signals(blocks: dict[str, CurveBlock], objective: str) -> dict[Signal, str]:
    points = {metric: len(block.steps) for metric, block in blocks.items()}
    summaries = {metric for metric, block in blocks.items() if (np.diff(block.offsets) <= 1).all()}
    return metric_names.find_signal_metrics(blocks, objective, points, summaries)
