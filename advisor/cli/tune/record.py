"""Reads the trials of a search from MLflow, and gets the next study from the analysis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from pydantic import ValidationError

from advisor import contract
from advisor.analysis import first_study
from advisor.cli.tune.files import BlockFile
from advisor.engine.rule import Rule
from advisor.execution.job_env import check_command, unpassed_study_settings
from advisor.execution.queue import parse_params
from advisor.history.pool import add_earlier_trials
from advisor.history.rounds import describe_study_changes
from advisor.model import formula, placeholders
from advisor.model.errors import AdvisorError, NothingToJudge
from advisor.model.spec import StudySpec
from advisor.model.study import Study, Trial
from advisor.planning.base import validate_spec
from advisor.planning.blocks import Block, TrainedTrial
from advisor.planning.blocks.spaces import same_length_and_schedule, steps_per_trial
from advisor.tracking.lineage import StudyReader
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.stores.location import StoreLocation
from advisor.tracking.study.assemble import assemble
from advisor.tracking.study.probes import select_runs

MIN_TRIAL_COST_SHARE = 0.1
"""Minimum cost of a trial, as a share of its planned steps, because even starting a training takes time."""
_EARLY_END_STATUSES = ("pruned", "early_stopped", "stopped", "diverged")
"""Statuses of trials that ended early. Such a trial costs only the steps that it trained."""


@dataclass
class SearchRecord:
    """The trials of a search in one MLflow experiment. Implements the protocol `Analyst` of `advisor.planning.blocks`."""

    experiment: str
    location: StoreLocation
    starting_study: StudySpec
    command_words: Sequence[str]
    """Arguments (argv) of the training command. The analysis may change only values that this command passes to the training."""
    appends_parameters: bool
    rules: Sequence[Rule]
    declined_changes: list[str] = field(default_factory=list)
    """One sentence for each value that the last analysis asked to change but that the command does not pass to the training."""
    _last_read_runs: Experiment | None = None

    def check_experiment_is_empty(self) -> None:
        """Raise AdvisorError if the experiment already holds runs. Only a search without blocks may call this method."""
        if runs := self._read().runs:
            name = runs[0].tags.get(contract.TAG_STUDY)
            of = "no study" if name is None else f"the study {name!r}"
            raise AdvisorError(
                f"experiment {self.experiment!r} already holds runs of {of}, which are not from this search; pass --experiment "
                "with a new name, or the --out of the search that they belong to"
            )

    def check_runs_of_blocks(self, files: Sequence[BlockFile], blocks: Sequence[Block]) -> None:
        """Raise AdvisorError if an ended block has no runs, because the user named another store or deleted the runs."""
        lost_file = next((f for f, b in zip(files[:-1], blocks, strict=False) if not b.trained), None)
        if lost_file is not None:
            raise AdvisorError(
                f"{self.location.display} has no runs of {lost_file.path}; pass the --tracking-uri of its search, or another --out"
            )

    def blocks(self, files: Sequence[BlockFile]) -> list[Block]:
        store_runs = self._last_read_runs = self._read()
        trained_trials = {t.id: t for group in _group_similar_blocks(files) for t in _read_block_group(store_runs, group)}
        return [replace(f.block, trained=tuple(trained_trials[r.id] for r in _runs_of_block(store_runs, f))) for f in files]

    def has_metric_values(self, metric: str) -> bool:
        """Return whether any run had a value of the metric at the last read of the store."""
        return self._last_read_runs is not None and metric in self._last_read_runs.points

    def _read(self) -> Experiment:
        """Return the experiment's runs, or an empty experiment if the experiment or its store does not exist yet."""
        no_runs, path = Experiment(name=self.experiment, runs=(), points={}), self.location.path
        if path is not None and not path.exists():
            return no_runs
        reader = StudyReader(self.location.uri)
        try:
            experiment_exists = self.experiment in {place.experiment for place in reader.studies_in_store}
            return reader.experiment(self.experiment) if experiment_exists else no_runs
        except NothingToJudge:
            return no_runs

    def next_study(
        self, spec: StudySpec, trials: Sequence[TrainedTrial], prepare: Callable[[StudySpec], StudySpec]
    ) -> StudySpec | None:
        """Return the first study that the analysis plans, based on `trials` and on the trials of studies before this search."""
        assert self._last_read_runs is not None, "read the blocks before the analysis"
        try:
            own = _study_of_runs(self._last_read_runs, [t.id for t in trials], spec)
        except AdvisorError:  # no trial has a result
            return None
        own = replace(own, spec=own.spec.model_copy(update={"parent": self.starting_study.parent}))
        earlier, _ = StudyReader(self.location.uri).earlier_rounds(own)
        return first_study(add_earlier_trials(own, earlier).study, self.rules, prepare)[0]

    def supported_study(self, spec: StudySpec, before: StudySpec, /) -> StudySpec:
        """Return `spec` with only those changes from `before` that the training command passes to the training. The returned
        study has a training length only if the study at the start of the search has one."""
        if self.starting_study.max_train_steps is None:
            spec = spec.model_copy(update={"max_train_steps": None})
        unpassed = unpassed_study_settings(spec, self.command_words) if self.appends_parameters else ()
        unpassed_names = [name for name in unpassed if name != "seed"]
        if unpassed_names and not same_length_and_schedule(spec, before):
            self.declined_changes.append(_declined_change_sentence(spec, before, unpassed_names))
            if spec.probe is not None:
                return before
            kept_fields = {name: getattr(before, name) for name in ("max_train_steps", "evaluate_every", "schedule")}
            spec = spec.model_copy(update=kept_fields)
        known = self.starting_study.parameters.keys()
        formulas = [p.formula for n, p in spec.parameters.items() if n in known and p.formula is not None]
        formula_inputs = {name for text in formulas for name in formula.parse_formula(text).names}
        parameters = {n: p for n, p in spec.parameters.items() if n in known or n in formula_inputs}
        baseline = None if spec.baseline is None else self.supported_study(spec.baseline, before)
        try:
            spec = validate_spec(spec.model_copy(update={"parameters": parameters, "baseline": baseline}))
            check_command(spec, self.command_words, append=self.appends_parameters)
        except (ValidationError, AdvisorError):
            return before
        return spec


def _declined_change_sentence(spec: StudySpec, previous: StudySpec, unpassed: Sequence[str]) -> str:
    empty_fields: dict[str, object] = {"parameters": {}, "trials": None, "seeds": None}
    changes = "; ".join(describe_study_changes(previous.model_copy(update=empty_fields), spec.model_copy(update=empty_fields)))
    options = " ".join(map(placeholders.command_option, unpassed))
    return f"The analysis asks for {changes}; to allow this, add {options} to the command."


def _group_similar_blocks(files: Sequence[BlockFile]) -> list[list[BlockFile]]:
    """Group blocks with equal steps and schedule, whose trials can be read as one study. Each probe is a separate group."""
    group_keys = [(steps_per_trial(f.spec), repr(f.spec.schedule), f.spec.study if f.spec.probe else "") for f in files]
    file_order = sorted(range(len(files)), key=lambda i: group_keys[i])
    return [[files[i] for i in group] for _, group in groupby(file_order, key=lambda i: group_keys[i])]


def _runs_of_block(experiment: Experiment, file: BlockFile) -> list[Run]:
    own = [run for run in experiment.runs if run.tags.get(contract.TAG_STUDY) == file.spec.study]
    return sorted(own, key=lambda run: [int(run.tags.get(tag, 0)) for tag in (contract.TAG_REPEAT, contract.TAG_TRIAL)])


def _read_block_group(experiment: Experiment, files: Sequence[BlockFile]) -> list[TrainedTrial]:
    runs = [(run, f.spec) for f in files for run in _runs_of_block(experiment, f)]
    try:
        study = _study_of_runs(experiment, [run.id for run, _ in runs], files[-1].spec)
    except AdvisorError:
        study = None
    trials = {} if study is None else {t.id: t for t in study.trials}
    return [_make_trained_trial(run, spec, study, trials.get(run.id)) for run, spec in runs]


def _study_of_runs(experiment: Experiment, ids: Sequence[str], spec: StudySpec) -> Study:
    """Return a study that consists of the runs with the given ids. Raises AdvisorError if none of these runs has a result."""
    wanted_ids = set(ids)
    selected_runs = select_runs(experiment, np.array([run.id in wanted_ids for run in experiment.runs], dtype=np.bool_))
    return assemble(selected_runs, spec=spec)


def _make_trained_trial(run: Run, spec: StudySpec, study: Study | None, trial: Trial | None) -> TrainedTrial:
    params = parse_params(spec, run.params, anywhere=True) or {}
    is_comparable = study is not None and trial is not None and bool(study.comparable[trial.index])
    return TrainedTrial(
        id=run.id,
        setting=params,
        params=params,
        cost=float(study.costs[trial.index]) if is_comparable and study is not None and trial is not None else math.nan,
        steps=steps_per_trial(spec),
        schedule=dict(spec.schedule or {}),
        probe=spec.probe,
        charged_steps=None if study is None or trial is None else _trial_cost_in_steps(study, trial, spec),
    )


def _trial_cost_in_steps(study: Study, trial: Trial, spec: StudySpec) -> int | None:
    """Return the cost of a trial that ended early, or None if it costs all of its planned steps or its steps are unknown."""
    steps = study.cost_curve(trial).steps
    if trial.status not in _EARLY_END_STATUSES or spec.max_train_steps is None or study.unit != "step" or not len(steps):
        return None
    planned_steps = spec.max_train_steps
    return min(max(int(steps[-1]), math.ceil(MIN_TRIAL_COST_SHARE * planned_steps)), planned_steps)
