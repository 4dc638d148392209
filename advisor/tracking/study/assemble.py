"""Converts an experiment to a `Study`. Every decision about the data is made once, before any rule runs, in one module:

| decision | module |
|---|---|
| which runs to exclude as probes; which runs are trials | `probes` |
| which unfinished runs have ended | `silent_runs` |
| which logged parameters are hyperparameters | `hyperparameters`; without parameters, `tagged` reads the tags |
| which of several populations to analyse | `populations` |
| which runs continue an interrupted run | `continued` |
| which objective is optimised | `objective` |
| which points form each curve; step or epoch | `curves`, `axes` |
| which parameters are not separate hyperparameters | `roles`, `relations` |
| end status of each trial | `status`, `early_failures`, `silent_failures`, `plateaus`, `short_runs` |
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
from advisor.model.study import CurveBlock, Study, Trial
from advisor.tracking.runs import Experiment
from advisor.tracking.study.comparisons import add_metric_comparisons
from advisor.tracking.study.continued import join_continued
from advisor.tracking.study.curves import build_curves
from advisor.tracking.study.hyperparameters import drop_non_hyperparameters
from advisor.tracking.study.kind import choose_kind
from advisor.tracking.study.metric_names import find_signal_metrics
from advisor.tracking.study.objective import choose_objective
from advisor.tracking.study.populations import select_population
from advisor.tracking.study.probes import exclude_probe_runs, find_trial_runs
from advisor.tracking.study.silent_runs import end_silent_runs
from advisor.tracking.study.space import build_space
from advisor.tracking.study.tagged import hyperparameters_from_tags
from advisor.tracking.study.targets import add_reached_target
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
    """Return the study of an experiment's runs. reading: the user's decisions, by default those in the study file. unfinished:
    whether to accept a study without an ended trial. Objective, direction and space come from the arguments, `spec`, or the
    tags of our hooks; else they are inferred, as `Study.inferred` says. Raises AdvisorError if the experiment has no data or
    contradicts the arguments."""
    if not experiment.runs:
        raise NothingToJudge(f"experiment {experiment.name!r} has no runs; train some trials first")
    reading = reading or (spec.reading if spec is not None else None) or Reading()
    experiment = exclude_probe_runs(experiment)
    # The guard reads running trials, and the clocks of other machines may be hours behind.
    experiment, ended = (experiment, ()) if unfinished else end_silent_runs(experiment)
    experiment, read_from_tags = hyperparameters_from_tags(experiment)
    experiment, left_out = drop_non_hyperparameters(experiment, spec, reading)
    population = select_population(
        experiment,
        reading.population,
        objective=spec.objective.metric if spec is not None else objective,
        declared_study=spec is not None or latest_study_file(experiment.tags) is not None,
    )
    experiment, joined = join_continued(population.experiment)
    aim = choose_objective(experiment, spec, objective, direction)
    metric = aim.objective.metric
    indices, run_warnings = find_trial_runs(experiment, metric)
    curves = build_curves(experiment, indices)
    trials = build_trials(experiment, indices, curves, aim.objective, spec)
    _require_results(experiment.name, metric, trials.trials, curves.blocks[metric], unfinished=unfinished)
    kind, kind_decisions = choose_kind(experiment, indices, metric, reading)
    space = build_space(experiment, trials.spec, aim.objective, trials.trials, curves.blocks[metric], trials.roles.parameters)
    # A metric with at most one point per trial is a summary.
    summaries = {name for name, block in curves.blocks.items() if (np.diff(block.offsets) <= 1).all()}
    points = {name: len(block.steps) for name, block in curves.blocks.items()}
    warnings = [*population.warnings, *experiment.warnings, *aim.warnings, *run_warnings]
    decisions = [*ended, *population.decisions, *joined, *read_from_tags, *left_out, *kind_decisions]
    study = Study(
        spec=space.spec,
        trials=trials.trials,
        metrics=curves.blocks,
        signals=find_signal_metrics(curves.blocks, metric, points, summaries),
        inferred={**aim.inferred, **space.inferred},
        warnings=(*warnings, *curves.warnings, *trials.warnings, *space.warnings),
        unit=trials.unit,
        kind=kind,
        lengths=trials.roles.steps_per_unit,
        decisions=(*decisions, *curves.decisions, *trials.decisions, *space.decisions),
    )
    return add_metric_comparisons(add_reached_target(study), curves.summaries.get(metric, {}))


def _require_results(experiment: str, metric: str, trials: tuple[Trial, ...], block: CurveBlock, *, unfinished: bool) -> None:
    if not any(len(block.curve(t.index)) for t in trials):
        raise AdvisorError(f"no run of experiment {experiment!r} logged the objective {metric!r}")
    if not unfinished and all(t.status in ("running", "no_data") for t in trials):
        running = sum(t.status == "running" for t in trials)
        raise NothingToJudge(
            f"no trial of experiment {experiment!r} has ended yet ({running} are running); come back later, or end the runs with "
            "MlflowClient.set_terminated; runs that log nothing for an hour count as ended"
        )
