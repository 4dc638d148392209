"""Imports Optuna's storages, databases and journal files: one experiment a study, one run a trial.

The space that the study's distributions declare goes with the experiment as a study file, so that the analysis need not infer it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from advisor import contract
from advisor.contract.redact import redact
from advisor.interop.importers import extras, files
from advisor.interop.importers.runs import Content, Curves, Found, as_step, as_value
from advisor.interop.importers.space import declared_study
from advisor.model.errors import AdvisorError
from advisor.tracking.runs import RunStatus
from advisor.tracking.stores.client import one_line

_STATUSES: Mapping[str, tuple[RunStatus, str | None]] = {
    "COMPLETE": ("FINISHED", None),
    "PRUNED": ("KILLED", "stopped"),
    "FAIL": ("FAILED", "infeasible"),
    "RUNNING": ("RUNNING", None),
}
_SAME_SHARE = 0.9
"""Of the complete trials: where so many end on one of their intermediate values, both are one metric."""


def find(storage: str, *, study: str | None = None, objective: str | None = None) -> tuple[list[Found], list[str]]:
    """The trials of all studies in a storage, or of the one named, and what the user should know of them.

    storage: a database's URL, or the path of an SQLite or journal file. objective: of a study with several, the name or number of
    the one to judge by. AdvisorError where there is no such storage, study or objective.
    """
    extras.load("optuna", "Optuna")
    opened = _open(storage)
    optuna = extras.load("optuna", "Optuna")
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        names = sorted(optuna.get_all_study_names(opened))
        if study is not None and study not in names:
            raise AdvisorError(f"no study named {study!r} in the storage; there are: {', '.join(names[:20]) or 'none'}")
        if not names:
            raise AdvisorError(f"{_shown(storage)} holds no Optuna study")
        chosen = [study] if study is not None else names
        loaded = [optuna.load_study(study_name=name, storage=opened) for name in chosen]
        found: list[Found] = []
        notes: list[str] = []
        for one in loaded:
            found += _trials(one, objective, notes)
    except AdvisorError:
        raise
    except Exception as error:  # whatever a damaged storage makes Optuna or its database driver raise
        raise AdvisorError(f"Optuna cannot read {_shown(storage)}: {one_line(error)}") from None
    finally:
        optuna.logging.set_verbosity(level)
    if not found:
        raise AdvisorError(f"{_shown(storage)}: its studies hold no trial that was started")
    return found, notes


def _shown(storage: str) -> str:
    return redact(storage) if "://" in storage else files.printable(storage)


# --- storages -------------------------------------------------------------------------------------------------------------------


def _open(storage: str) -> Any:
    """The storage, opened without writing to it; AdvisorError if there is none."""
    url = storage
    if "://" not in storage:
        path = files.require(Path(storage), "an SQLite or journal file of Optuna's, or a database's URL")
        if path.is_dir():
            raise AdvisorError(
                f"{files.printable(path)} is a folder; give the SQLite or journal file of an Optuna storage"
            )
        with path.open("rb") as file:
            head = file.read(16)
        if head != b"SQLite format 3\0":
            return _journal(path)
        url = f"sqlite:///{path.absolute()}"
    elif storage.startswith("sqlite"):
        files.require(Path(storage.split("///", 1)[-1].split("?", 1)[0]), "an SQLite file of Optuna's")
    return _database(url)


def _journal(path: Path) -> Any:
    journal = extras.load("optuna.storages.journal", "Optuna")
    first = next(files.rows(path), {})
    if "op_code" not in first:
        raise AdvisorError(f"{files.printable(path)} is neither an SQLite database nor a journal file of Optuna's")
    storages = extras.load("optuna.storages", "Optuna")
    try:
        return storages.JournalStorage(journal.JournalFileBackend(str(path)))
    except Exception as error:  # whatever a damaged journal makes it raise
        raise AdvisorError(f"Optuna cannot read {files.printable(path)}: {one_line(error)}; was it cut off?") from None


def _database(url: str) -> Any:
    import sqlalchemy

    storages = extras.load("optuna.storages", "Optuna")
    try:
        engine = sqlalchemy.create_engine(url)
        tables = set(sqlalchemy.inspect(engine).get_table_names())
        engine.dispose()
    except ImportError as error:
        raise AdvisorError(f"cannot open {redact(url)}: {error}; install the database's Python driver") from None
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise AdvisorError(f"cannot open {redact(url)}: {one_line(error)}") from None
    if not {"studies", "trials", "version_info", "alembic_version"} <= tables:  # which Optuna would make
        raise AdvisorError(f"{redact(url)} holds no storage of Optuna's")
    try:
        return storages.RDBStorage(url, skip_table_creation=True)
    except Exception as error:  # RuntimeError for another version's tables, or of the database
        raise AdvisorError(f"Optuna cannot read {redact(url)}: {one_line(error)}") from None


# --- trials ---------------------------------------------------------------------------------------------------------------------


def _trials(study: Any, objective: str | None, notes: list[str]) -> list[Found]:
    name = str(study.study_name)  # a journal may hold anything
    which, metric = _objective(study, objective)
    direction = study.directions[which].name.lower()
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name in _STATUSES]
    waiting = len(study.get_trials(deepcopy=False)) - len(trials)
    if waiting:
        notes.append(f"{waiting:,} trials of {name!r} wait to be started and were left out.")
    curve = metric if _one_metric(trials, which) else f"{metric}.intermediate"
    tags = {contract.TAG_OBJECTIVE: metric}
    if direction in ("minimize", "maximize"):
        tags[contract.TAG_DIRECTION] = direction
    declared, note = declared_study(name, metric, tags.get(contract.TAG_DIRECTION), trials)
    notes += [note] if note else []
    tags_of_experiment = {**tags, **({contract.TAG_STUDY_FILE: declared} if declared is not None else {})}
    return [_found(name, trial, which, metric, curve, tags, tags_of_experiment) for trial in trials]


def _objective(study: Any, wanted: str | None) -> tuple[int, str]:
    """The number and the name of the objective; AdvisorError that lists them where there are several and none is chosen."""
    several = len(study.directions) > 1
    names = study.metric_names or ([f"values_{i}" for i in range(len(study.directions))] if several else ["value"])
    if not several:
        return 0, str(names[0])
    if wanted in names:
        return names.index(wanted), str(wanted)
    if wanted is not None and wanted.isdecimal() and int(wanted) < len(names):
        return int(wanted), str(names[int(wanted)])
    listed = ", ".join(f"{name} ({d.name.lower()})" for name, d in zip(names, study.directions, strict=True))
    raise AdvisorError(
        f"the study {study.study_name!r} has {len(names)} objectives: {listed}; choose the one to judge by with --objective"
    )


def _one_metric(trials: Sequence[Any], which: int) -> bool:
    """Whether the trials' final values are of the same metric as their intermediate ones."""
    ended = [t for t in trials if t.state.name == "COMPLETE" and t.intermediate_values]
    same = sum(t.values[which] in t.intermediate_values.values() for t in ended)
    return not ended or same >= _SAME_SHARE * len(ended)


def _found(
    study: str,
    trial: Any,
    which: int,
    metric: str,
    curve: str,
    tags: Mapping[str, str],
    tags_of_experiment: Mapping[str, str],
) -> Found:
    started = _ms(trial.datetime_start)
    changing = (trial.state.name, len(trial.intermediate_values), trial.values, sorted(trial.params))
    return Found(
        f"trial {trial.number}",
        ("optuna", study, str(trial.number), str(started)),
        study,
        lambda: _content(trial, which, metric, curve, tags),
        files.digest_of(changing),
        tags_of_experiment,
    )


def _content(trial: Any, which: int, metric: str, curve: str, tags: Mapping[str, str]) -> Content:
    where = f"trial {trial.number}"
    curves = Curves()
    # A journal may hold anything in the place of a number.
    reported = {as_step(step, where): as_value(value) for step, value in trial.intermediate_values.items()}
    for step, value in (known := sorted((s, v) for s, v in reported.items() if v is not None)):
        curves.add(curve, step, value)
    last = known[-1][0] if known else 0
    final = as_value(trial.values[which]) if trial.values and trial.state.name != "PRUNED" else None
    if final is not None and (curve != metric or final not in reported.values()):
        curves.add(metric, last if curve != metric else last + bool(known), final)
    status, noted = _STATUSES[trial.state.name]
    if trial.state.name == "FAIL" and known and not math.isfinite(known[-1][1]):
        noted = "diverged"
    return Content(
        curves.points(),
        trial.params,
        {**tags, **({contract.TAG_STATUS: noted} if noted else {})},
        status,
        _ms(trial.datetime_start),
        _ms(trial.datetime_complete),
    )


def _ms(when: datetime | None) -> int | None:
    return None if when is None else int(when.timestamp() * 1000)
