"""Imports Optuna storages (databases and journal files): one experiment per study, and one run per trial. The declared search space
is stored as a study file, so that the analysis need not infer the space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from advisor import contract
from advisor.contract.redact import redact
from advisor.interop.importers import files
from advisor.interop.importers.mlflow_runs import MAX_VALUE_CHARACTERS
from advisor.interop.importers.runs import RunContent, RunCurves, RunList, SourceRun, convert_to_step, convert_to_value
from advisor.model import spec_yaml
from advisor.model.errors import AdvisorError
from advisor.model.spec import Direction, Objective, Parameter, StudySpec
from advisor.tracking.runs import RunStatus
from advisor.tracking.stores.client import driver_hint, one_line_error
from advisor.tracking.study.inference import infer_parameters, parse_params

_RUN_STATUSES: Mapping[str, tuple[RunStatus, str | None]] = {
    "COMPLETE": ("FINISHED", None),
    "PRUNED": ("KILLED", "pruned"),
    "FAIL": ("FAILED", "infeasible"),
    "RUNNING": ("RUNNING", None),
}
_MIN_EQUAL_VALUE_FRACTION = 0.9
"""Minimum share of trials with a final value among their intermediate values, at which both kinds of values are one metric."""


@dataclass(frozen=True, slots=True)
class OptunaStorage:
    study: str | None = None
    objective: str | None = None
    """Name or index of the objective to import; required if the study has several objectives."""

    def find_runs(self, source: str | Path) -> RunList:
        location = str(source)
        shown_location = redact(location) if "://" in location else files.printable_text(location)
        optuna = files.load_library("optuna", "Optuna")
        storage = _open_storage(location)
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        notes: list[str] = []
        try:
            study_names = sorted(optuna.get_all_study_names(storage))
            if self.study is not None and self.study not in study_names:
                listed_names = ", ".join(study_names[:20]) or "none"
                raise AdvisorError(f"no study named {self.study!r} in the storage; its studies are: {listed_names}")
            if not study_names:
                raise AdvisorError(f"{shown_location} holds no Optuna study")
            chosen_studies = study_names if self.study is None else [self.study]
            studies = [optuna.load_study(study_name=name, storage=storage) for name in chosen_studies]
            runs = [run for study in studies for run in self._runs_of_study(study, notes)]
        except AdvisorError:
            raise
        except Exception as error:  # Optuna or the database driver may raise any exception if the storage is damaged
            raise AdvisorError(f"Optuna cannot read {shown_location}: {one_line_error(error)}") from None
        finally:
            optuna.logging.set_verbosity(verbosity)
        if not runs:
            raise AdvisorError(f"no trial of {shown_location} has started")
        return RunList(runs, notes)

    def _runs_of_study(self, study: Any, notes: list[str]) -> list[SourceRun]:
        name = str(study.study_name)  # a damaged journal file may contain a name of any type
        index, metric = self._objective_to_import(study)
        direction = study.directions[index].name.lower()
        all_trials = study.get_trials(deepcopy=False)
        trials = [trial for trial in all_trials if trial.state.name in _RUN_STATUSES]
        if len(trials) < len(all_trials):
            notes.append(f"{len(all_trials) - len(trials):,} trials of {name!r} have not started and were left out.")
        tags = {contract.TAG_OBJECTIVE: metric}
        if direction in ("minimize", "maximize"):
            tags[contract.TAG_DIRECTION] = direction
        declared, note = _declared_study(name, metric, tags.get(contract.TAG_DIRECTION), trials)
        notes += [note] if note else []
        experiment_tags = {**tags, **({} if declared is None else {contract.TAG_STUDY_FILE: declared})}
        complete_trials = [t for t in trials if t.state.name == "COMPLETE" and t.intermediate_values]
        equal_value_count = sum(t.values[index] in t.intermediate_values.values() for t in complete_trials)
        is_one_metric = equal_value_count >= _MIN_EQUAL_VALUE_FRACTION * len(complete_trials)
        intermediate_metric = metric if is_one_metric else f"{metric}.intermediate"

        def run(trial: Any) -> SourceRun:
            digest_input = (trial.state.name, len(trial.intermediate_values), trial.values, sorted(trial.params))
            source = ("optuna", name, str(trial.number), str(_ms_since_1970(trial.datetime_start)))
            read = partial(_content_of_trial, trial, index, metric, intermediate_metric, tags)
            return SourceRun(f"trial {trial.number}", source, name, read, files.digest_of_value(digest_input), experiment_tags)

        return [run(trial) for trial in trials]

    def _objective_to_import(self, study: Any) -> tuple[int, str]:
        objectives = len(study.directions)
        metrics = list(study.metric_names or ([f"values_{i}" for i in range(objectives)] if objectives > 1 else ["value"]))
        if objectives > 1 and self.objective not in (*metrics, *map(str, range(objectives))):
            listed_objectives = ", ".join(f"{m} ({d.name.lower()})" for m, d in zip(metrics, study.directions, strict=True))
            raise AdvisorError(
                f"the study {study.study_name!r} has {len(metrics)} objectives: {listed_objectives}; choose one with --objective"
            )
        chosen_name = self.objective if objectives > 1 else metrics[0]
        index = metrics.index(chosen_name) if chosen_name in metrics else int(str(chosen_name))
        return index, str(metrics[index])


def _open_storage(location: str) -> Any:
    if "://" in location:
        if location.startswith("sqlite"):
            files.require_existing_path(location.split("///", 1)[-1].split("?", 1)[0], "an SQLite file of Optuna")
        return _open_database(location)
    path = files.require_existing_path(location, "an SQLite or journal file of Optuna, or the URL of a database")
    if path.is_dir():
        raise AdvisorError(f"{files.printable_text(path)} is a folder; give the SQLite or journal file of an Optuna storage")
    with path.open("rb") as file:
        is_sqlite = file.read(16) == b"SQLite format 3\0"
    return _open_database(f"sqlite:///{path.absolute()}") if is_sqlite else _open_journal(path)


def _open_journal(path: Path) -> Any:
    journal = files.load_library("optuna.storages.journal", "Optuna")
    if "op_code" not in next(files.read_objects(path), {}):
        raise AdvisorError(f"{files.printable_text(path)} is neither an SQLite database nor a journal file of Optuna")
    optuna_storages = files.load_library("optuna.storages", "Optuna")
    try:
        return optuna_storages.JournalStorage(journal.JournalFileBackend(str(path)))
    except Exception as error:  # Optuna may raise any exception if the journal is damaged
        raise AdvisorError(
            f"Optuna cannot read {files.printable_text(path)}: {one_line_error(error)}; was it truncated?"
        ) from None


def _open_database(url: str) -> Any:
    import sqlalchemy

    optuna_storages = files.load_library("optuna.storages", "Optuna")
    try:
        engine = sqlalchemy.create_engine(url)
        tables = set(sqlalchemy.inspect(engine).get_table_names())
        engine.dispose()
    except ImportError as error:
        raise AdvisorError(f"cannot open {redact(url)}: {error}; {driver_hint(url)}") from None
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise AdvisorError(f"cannot open {redact(url)}: {one_line_error(error)}") from None
    if not {"studies", "trials", "version_info", "alembic_version"} <= tables:
        raise AdvisorError(f"{redact(url)} is not a storage of Optuna")
    try:
        return optuna_storages.RDBStorage(url, skip_table_creation=True)
    except Exception as error:  # RuntimeError for an unsupported version of the tables, or any error of the database
        raise AdvisorError(f"Optuna cannot read {redact(url)}: {one_line_error(error)}") from None


def _content_of_trial(trial: Any, index: int, metric: str, intermediate_metric: str, tags: Mapping[str, str]) -> RunContent:
    trial_text = f"trial {trial.number}"
    # A damaged journal file may contain a value of another type in place of a number.
    values = {convert_to_step(step, trial_text): convert_to_value(value) for step, value in trial.intermediate_values.items()}
    reported_points = sorted((s, v) for s, v in values.items() if v is not None)
    curves = RunCurves()
    for step, value in reported_points:
        curves.add(intermediate_metric, step, value)
    last_step = reported_points[-1][0] if reported_points else 0
    final_value = convert_to_value(trial.values[index]) if trial.values and trial.state.name != "PRUNED" else None
    if final_value is not None and (intermediate_metric != metric or final_value not in values.values()):
        curves.add(metric, last_step if intermediate_metric != metric else last_step + bool(reported_points), final_value)
    status, end = _RUN_STATUSES[trial.state.name]
    if trial.state.name == "FAIL" and reported_points and not math.isfinite(reported_points[-1][1]):
        end = "diverged"
    return RunContent(
        curves.points(),
        trial.params,
        {**tags, contract.TAG_TUNER: "optuna", **({contract.TAG_STATUS: end} if end else {})},
        status,
        _ms_since_1970(trial.datetime_start),
        _ms_since_1970(trial.datetime_complete),
    )


def _ms_since_1970(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp() * 1000)


def _declared_study(
    name: str, metric: str, direction: Direction | str | None, trials: Sequence[Any]
) -> tuple[str | None, str | None]:
    """Return (study file or None, note for the user or None) for the trials of a study. A hyperparameter's range covers its ranges
    in all trials. A hyperparameter that occurs only with certain values of another one becomes conditional."""
    inferred_parameters = infer_parameters(parse_params([{k: str(v) for k, v in trial.params.items()} for trial in trials]))
    declared_parameters = {
        key: _declared_parameter([t.distributions[key] for t in trials if key in t.distributions], parameter)
        for key, parameter in inferred_parameters.items()
    }
    parameters = {key: parameter for key, parameter in declared_parameters.items() if parameter is not None}
    parameters = {
        key: p if all(parent in parameters for parent in p.when or {}) else p.model_copy(update={"when": None})
        for key, p in parameters.items()
    }
    if not parameters or direction not in ("minimize", "maximize"):
        return None, None
    objective = Objective(metric=metric, direction=direction)
    try:
        spec = StudySpec(study=name, objective=objective, parameters=parameters, trials=len(trials))
        study_file = spec_yaml.format_study_file(spec)
        spec_yaml.parse_study_file(study_file)
        problem = "its study file is too long for a tag" if len(study_file) > MAX_VALUE_CHARACTERS else ""
    except (ValidationError, ValueError) as error:
        problem = f"a study file cannot express it: {str(error)[:100]}"
    return (None, f"The space of {name!r} is inferred from its trials: {problem}.") if problem else (study_file, None)


def _declared_parameter(distributions: Sequence[Any], inferred: Parameter) -> Parameter | None:
    """Return the parameter with its declared domain, or None if a study file cannot express it or it has a single value."""
    distribution_types = {type(d).__name__ for d in distributions}
    fields: dict[str, Any]
    if distribution_types == {"CategoricalDistribution"}:
        choices = tuple(dict.fromkeys(c for d in distributions for c in d.choices if isinstance(c, str | bool | int | float)))
        if len({isinstance(c, str) for c in choices}) > 1:  # the analysis reads mixed values as texts, too
            choices = tuple(map(str, choices))
        fields = {"type": "categorical", "choices": choices, "role": "scientific"}
    elif distribution_types in ({"FloatDistribution"}, {"IntDistribution"}):
        fields = {
            "type": "int" if distribution_types == {"IntDistribution"} else "float",
            "low": min(d.low for d in distributions),
            "high": max(d.high for d in distributions),
            "scale": "log" if all(d.log for d in distributions) else "linear",
            "role": "nuisance",
        }
    else:
        return None
    try:
        parameter = Parameter(**fields, when=inferred.when, why="the domain that the Optuna study declares")
    except ValidationError:
        return None
    return parameter if parameter.has_several_values else None
