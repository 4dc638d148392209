"""Writes the runs that an importer found into MLflow: one in memory at a time, whole or not at all, none twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from advisor import contract
from advisor.interop.importers import files
from advisor.interop.importers.runs import START_MS, Content, Found
from advisor.interop.importers.writer import (
    MAX_VALUE,
    TAG_STATE,
    Imported,
    Names,
    NewRun,
    Writer,
    open_writer,
    source_text,
)
from advisor.model.errors import AdvisorError
from advisor.model.spec import Direction
from advisor.tracking.points.collect import UNTIMED_BEFORE_MS

_MOST_WARNINGS = 20


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """What an import did."""

    experiments: tuple[str, ...]
    written: int
    """Runs written."""
    skipped: int
    """Runs that an earlier import had written and that are unchanged."""
    points: int
    """Points of the runs written, and points added to others."""
    warnings: tuple[str, ...] = ()
    completed: int = 0
    """Runs that an earlier import had written and that had grown since."""
    unreadable: tuple[str, ...] = ()
    """Why runs were left out, one sentence each."""


@dataclass
class _Tally:
    tell: Callable[[int, int], None]
    runs: int
    written: int = 0
    completed: int = 0
    skipped: int = 0
    points: int = 0
    unreadable: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, run: NewRun, points: int) -> None:
        """A run is safe in the store, with so many points that were not there before."""
        self.points += points if run.continues else sum(len(p.steps) for p in run.points.values())
        if run.continues is None:
            self.written += 1
        elif points:
            self.completed += 1
        else:
            self.skipped += 1
        self.progress()

    def progress(self) -> None:
        done = self.written + self.completed + self.skipped + len(self.unreadable)
        self.tell(done, self.runs)


def import_runs(
    found: Sequence[Found],
    *,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    objective: str | None = None,
    direction: Direction | None = None,
    names: Names | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ImportSummary:
    """Import `found` into MLflow.

    tracking_uri: default as MLflow resolves it; a SQLite file is made if it is not there. experiment: where all runs go; default
    one experiment for each that the source names. objective, direction: noted with the runs, above what the source says.
    on_progress: told (runs dealt with, runs in all).

    Runs that are there already are skipped, or completed if they have grown: points and parameters that are missing are added,
    status and facts renewed, nothing is deleted. A run that cannot be read is left out and named in the summary; AdvisorError if
    that leaves none, or a store cannot be written.
    """
    groups: dict[str, list[Found]] = {}
    for run in found:
        groups.setdefault(_text(experiment or run.experiment)[:250], []).append(run)
    names = names or Names()
    given = {contract.TAG_OBJECTIVE: objective and names.safe(objective), contract.TAG_DIRECTION: direction}
    aim = {tag: value for tag, value in given.items() if value}
    tally = _Tally(on_progress or _silent, len(found))
    with open_writer(tracking_uri) as writer:
        for name, group in groups.items():
            there = writer.imported(name)
            waiting = [run for run in group if not _unchanged(run, there)]
            tally.skipped += len(group) - len(waiting)
            tally.progress()
            if waiting:
                _write(writer, name, group, there, aim, names, tally)
    if tally.unreadable and not (tally.written or tally.completed or tally.skipped):
        more = f" ({len(tally.unreadable) - 1:,} more could not be read either)" if len(tally.unreadable) > 1 else ""
        raise AdvisorError(tally.unreadable[0] + more)
    notes = list(dict.fromkeys([*names.warnings, *tally.notes]))
    if len(notes) > _MOST_WARNINGS:
        notes[_MOST_WARNINGS:] = [f"and {len(notes) - _MOST_WARNINGS:,} more notes like these."]
    return ImportSummary(
        tuple(groups),
        tally.written,
        tally.skipped,
        tally.points,
        tuple(notes),
        tally.completed,
        tuple(tally.unreadable),
    )


def _silent(done: int, of: int) -> None:
    pass


def _unchanged(run: Found, there: Mapping[str, Imported]) -> bool:
    known = there.get(_source(run))
    return known is not None and (run.state is None or run.state == known.state)


def _source(run: Found) -> str:
    return source_text([_text(part) for part in run.source])


def _write(
    writer: Writer,
    experiment: str,
    group: Sequence[Found],
    there: Mapping[str, Imported],
    aim: Mapping[str, str],
    names: Names,
    tally: _Tally,
) -> None:
    def readable() -> Iterator[NewRun]:
        same = Counter(run.name for run in group)
        # Names and stand-ins for times are those of all runs, so that an import that was cut off goes on as it began.
        for number, run in enumerate(group):
            if _unchanged(run, there):
                continue
            shown = run.name if same[run.name] == 1 else f"{run.experiment}/{run.name}"
            known = there.get(_source(run))
            try:
                content = run.read()
                new = _new_run(replace(run, name=shown), content, names, aim, number, known.run if known else None)
            except AdvisorError as error:
                tally.unreadable.append(str(error))
                tally.progress()
                continue
            tally.notes += content.notes
            yield new

    runs = readable()
    for first in islice(runs, 1):  # an experiment is made only when there is a run for it
        writer.write(experiment, {**_shared_tags(group, names), **aim}, _again(first, runs), tally.add)


def _again(first: NewRun, others: Iterator[NewRun]) -> Iterator[NewRun]:
    yield first
    yield from others


def _shared_tags(group: Sequence[Found], names: Names) -> dict[str, str]:
    """What all runs of an experiment say of it."""
    first = group[0].experiment_tags
    shared = {tag: value for tag, value in first.items() if all(run.experiment_tags.get(tag) == value for run in group)}
    return _with_safe_objective(shared, names)


def _with_safe_objective(tags: Mapping[str, str], names: Names) -> dict[str, str]:
    objective = tags.get(contract.TAG_OBJECTIVE)
    return {**tags, **({contract.TAG_OBJECTIVE: names.safe(objective)} if objective is not None else {})}


# --- a run as MLflow takes it ---------------------------------------------------------------------------------------------------


def _new_run(
    run: Found, content: Content, names: Names, aim: Mapping[str, str], number: int, continues: str | None
) -> NewRun:
    try:
        params = files.flat(content.params, ".")
    except AdvisorError as error:
        raise AdvisorError(f"{run.name}: {error}") from None
    tags = {**_facts(params), **_with_safe_objective(content.tags, names), **aim}
    if run.state is not None:
        tags[TAG_STATE] = run.state
    first, last = _span(content)
    started = content.started_ms if content.started_ms is not None else first
    ended = content.ended_ms if content.ended_ms is not None else last
    return NewRun(
        source=tuple(_text(part) for part in run.source),
        name=_text(run.name)[:250],
        status=content.status,
        started_ms=START_MS + 1000 * number if started is None else started,
        ended_ms=None if content.status == "RUNNING" else ended,
        params={names.safe(_text(k)): param_text(v) for k, v in params.items() if v is not None},
        tags={tag: _text(value)[:MAX_VALUE] for tag, value in tags.items()},
        points={names.safe(_text(metric)): points for metric, points in content.points.items() if len(points.steps)},
        continues=continues,
    )


def _span(content: Content) -> tuple[int | None, int | None]:
    """When the first and the last point that has a time was logged."""
    known = [p.times_ms[p.times_ms >= UNTIMED_BEFORE_MS] for p in content.points.values()]
    known = [times for times in known if len(times)]
    if not known:
        return None, None
    return min(int(t.min()) for t in known), max(int(np.max(t)) for t in known)


def _text(text: str) -> str:
    """Text that every store takes: half characters are written out, and there is no zero byte."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", " ")


def param_text(value: Any) -> str:
    """A parameter as MLflow would log it: Python's own text, which for numbers loses nothing; at most `MAX_VALUE` characters."""
    if not isinstance(value, list | tuple):
        return _text(str(value) if not isinstance(value, int) or abs(value) < 10**4000 else "a huge number")[:MAX_VALUE]
    text = ""
    try:
        for piece in json.JSONEncoder(default=str).iterencode(list(value)):
            text += piece
            if len(text) >= MAX_VALUE:
                break
    except (ValueError, RecursionError, TypeError):
        return "a list that holds itself"
    return _text(text)[:MAX_VALUE]


_FACTS: Mapping[str, tuple[str, ...]] = {
    contract.TAG_SEED: ("seed", "random_seed", "random_state"),
    contract.TAG_BATCH_SIZE: ("batch_size", "train_batch_size", "total_train_batch_size"),
    contract.TAG_MAX_TRAIN_STEPS: ("max_train_steps", "max_steps", "total_steps", "num_train_steps", "training_steps"),
}


def _facts(params: Mapping[str, Any]) -> dict[str, str]:
    """The facts that are among the parameters under one of their usual names."""
    found = {}
    for tag, usual in _FACTS.items():
        values = {str(v) for k, v in params.items() if k.rsplit(".", 1)[-1] in usual and _is_count(v)}
        if len(values) == 1:
            found[tag] = values.pop()
    return found


def _is_count(value: Any) -> bool:
    if isinstance(value, str):
        return value.isdecimal() and len(value) < 19
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
