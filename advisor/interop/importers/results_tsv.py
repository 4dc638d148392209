"""Imports the file `results.tsv` of coding agents that change a training script themselves: one row per proposed change. The
usual columns are `commit`, the objective (such as `val_bpb`), `memory_gb`, `status` (keep, discard or crash) and `description`.
Rows with the same commit are repeats of one setting. Agents log zeros in all numeric columns of a crashed run; we import it as
a failed run without a result."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from advisor import contract
from advisor.contract.metric_direction import direction_of_metric
from advisor.interop.importers import files
from advisor.interop.importers.runs import RunContent, RunCurves, RunList, SourceRun
from advisor.model.errors import AdvisorError
from advisor.model.spec import Direction

_TABLE_FILE_NAME = "results.tsv"
_COMMIT, _STATUS, _DESCRIPTION = "commit", "status", "description"
_MAX_TABLE_BYTES = 32_000_000
_CRASH_STATUS_PATTERN = re.compile(r"crash|fail|error|oom|timed?[ _-]?out|killed|diverged|nan", re.IGNORECASE)
_KEPT_STATUS_PATTERN = re.compile(r"ke(ep|pt)|baseline|accept", re.IGNORECASE)
_REPEAT_WORD_PATTERN = re.compile(r"baseline|repeat|re-?run|again|seed|noise|replicat", re.IGNORECASE)
_RUNNING_STATUS_PATTERN = re.compile(r"(in[ _-]?progress|running|pending|queued)$", re.IGNORECASE)
_EMPTY_CELL_TEXTS = ("", "-", "--", "n/a", "na", "none", "null", "nan", "?")
_MISSING_COMMIT_PATTERN = re.compile(r"[-?]*|0+|n/?a|none|null|unknown|uncommitted|pending", re.IGNORECASE)
_THOUSANDS_PATTERN = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
"""Pattern of numbers with thousands separators. Other numbers with a comma, which may be a decimal comma, are rejected."""
_RESERVED_TAG_PREFIXES = (contract.TAG_PREFIX, "mlflow.")
"""Prefixes of tags that determine how the analysis reads a run. No column of a table becomes such a tag."""
_MEMORY_COLUMN_PATTERN = re.compile(r"(^|_)(memory|mem|vram|ram)(_|$)", re.IGNORECASE)


def is_result_table(columns: Sequence[str]) -> bool:
    lower_names = {c.strip().lower() for c in columns}
    return {_COMMIT, _STATUS} <= lower_names or {_COMMIT, _DESCRIPTION} <= lower_names


@dataclass(frozen=True, slots=True)
class _ResultRow:
    line: int
    cell_texts: Mapping[str, str]

    @property
    def commit(self) -> str:
        """Commit of the row's run, or a unique name for a row without a commit, because such a row may belong to any code."""
        commit = self.cell_texts[_COMMIT]
        return f"uncommitted-{self.line}" if _MISSING_COMMIT_PATTERN.fullmatch(commit) else commit

    def number_in_column(self, column: str) -> float | None:
        cell_text = self.cell_texts[column]
        try:
            value = float(cell_text.replace(",", "") if _THOUSANDS_PATTERN.fullmatch(cell_text) else cell_text)
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def has_failed(self, numeric: Sequence[str]) -> bool:
        """Return whether the run has no result, by its status, a missing objective, or zeros in all numeric columns."""
        status, values = self.cell_texts.get(_STATUS, ""), [self.number_in_column(c) for c in numeric]
        all_zero = not any(values) and not _KEPT_STATUS_PATTERN.match(status)
        return bool(_CRASH_STATUS_PATTERN.match(status)) or all_zero or values[0] is None


@dataclass(frozen=True, slots=True)
class ResultsTsv:
    objective: str | None = None
    """Column that contains the objective; by default, the first numeric column after the commit."""

    def find_runs(self, source: str | Path) -> RunList:
        root = files.require_existing_path(source, f"a {_TABLE_FILE_NAME} or of a folder with one")
        paths = files.find_files(root, _TABLE_FILE_NAME.__eq__) if root.is_dir() else [root]
        if not paths:
            raise AdvisorError(f"{files.printable_text(root)}: it contains no {_TABLE_FILE_NAME}")
        tables = [self._runs_in_table(path) for path in paths]
        return RunList([run for runs, _ in tables for run in runs], [note for _, notes in tables for note in notes])

    def _runs_in_table(self, path: Path) -> tuple[list[SourceRun], list[str]]:
        shown_path = files.printable_text(path)
        rows = _read_rows(path)
        number_columns = self._numeric_columns(rows, shown_path)
        ended_rows = [row for row in rows if not _RUNNING_STATUS_PATTERN.match(row.cell_texts.get(_STATUS, ""))]
        for row in ended_rows:
            where = f"{shown_path}, line {row.line}"
            value, status = row.cell_texts[number_columns[0]], row.cell_texts.get(_STATUS, "")
            has_value = row.number_in_column(number_columns[0]) is not None or _is_missing_value(value)
            if not has_value and not _CRASH_STATUS_PATTERN.match(status):
                raise AdvisorError(f"{where}: {number_columns[0]} is {value[:40]!r}, which is not a number; correct the line")
            if re.fullmatch(r"[-+]?[\d.]+%?", status):
                raise AdvisorError(f"{where}: the status is {status[:40]!r}; put the cells in the order of the first line")
        tags = {contract.TAG_OBJECTIVE: number_columns[0]}
        if direction := direction_of_metric(number_columns[0]) or _infer_direction(ended_rows, number_columns):
            tags[contract.TAG_DIRECTION] = direction
        experiment = files.folder_name(path.absolute().parent) if path.name == _TABLE_FILE_NAME else path.stem
        row_digest = files.digest_of_value(dict(rows[0].cell_texts))
        commit_counts: Counter[str] = Counter()
        runs = []
        for row in ended_rows:
            commit_counts[row.commit] += 1
            name = row.commit if commit_counts[row.commit] == 1 else f"{row.commit}-{commit_counts[row.commit]}"
            key = ("results-tsv", row_digest, row.commit, str(commit_counts[row.commit]))
            content = partial(_run_content, row, number_columns, tags)
            runs.append(SourceRun(name, key, experiment, content, experiment_tags=tags))
        return runs, _table_notes(ended_rows, len(rows) - len(ended_rows), shown_path)

    def _numeric_columns(self, rows: Sequence[_ResultRow], file_text: str) -> list[str]:
        """Return the names of the numeric columns, with the objective first."""
        columns = list(rows[0].cell_texts)
        columns_after_commit = columns[columns.index(_COMMIT) + 1 :]
        candidates = [c for c in (*columns_after_commit, *columns) if c not in (_COMMIT, _STATUS, _DESCRIPTION)]
        candidates = [c for c in dict.fromkeys(candidates) if any(row.number_in_column(c) is not None for row in rows)]
        objective = self.objective or next((c for c in candidates if not _MEMORY_COLUMN_PATTERN.search(c)), None)
        if objective not in columns:
            missing_text = "no column of numbers" if objective is None else f"no column {objective!r}"
            raise AdvisorError(f"{file_text} has {missing_text}; its columns are: {', '.join(columns[:20])}")

        def is_numeric(column: str) -> bool:
            return all(row.number_in_column(column) is not None or _is_missing_value(row.cell_texts[column]) for row in rows)

        return [objective, *(c for c in candidates if c != objective and is_numeric(c))]


def _read_rows(path: Path) -> list[_ResultRow]:
    """Return the rows of a results table. The last column, usually the description, may contain tabs."""
    shown_path = files.printable_text(path)
    file_lines = files.read_bytes(path, _MAX_TABLE_BYTES).decode("utf-8-sig", "replace").replace("\r\n", "\n").split("\n")
    numbered_lines = [(number, line) for number, line in enumerate(file_lines, 1) if line.strip() and not line.startswith("#")]
    header = [name.strip() for name in numbered_lines[0][1].split("\t")] if numbered_lines else []
    header = [name.lower() if name.lower() in (_COMMIT, _STATUS, _DESCRIPTION) else name for name in header]
    if _COMMIT not in header or len(set(header)) < len(header):
        raise AdvisorError(
            f"{shown_path}: the first line must name the columns, separated by tabs, each once and one of them 'commit'"
        )
    if len(numbered_lines) == 1:
        raise AdvisorError(f"{shown_path} has no rows yet; import it after the first run")
    rows = []
    for number, line in numbered_lines[1:]:
        cells = [cell.strip() for cell in line.split("\t", len(header) - 1)]
        rows.append(_ResultRow(number, dict(zip(header, [*cells, *[""] * (len(header) - len(cells))], strict=True))))
    return rows


def _is_missing_value(text: str) -> bool:
    return text.lower().lstrip("+-") in (*_EMPTY_CELL_TEXTS, "inf", "infinity")


def _infer_direction(rows: Sequence[_ResultRow], numeric: Sequence[str]) -> Direction | None:
    """Return the direction of change from the first to the last kept row, because agents keep only improvements."""
    is_kept = [_KEPT_STATUS_PATTERN.match(row.cell_texts.get(_STATUS, "")) and not row.has_failed(numeric) for row in rows]
    kept_results = [row.number_in_column(numeric[0]) for row, kept_row in zip(rows, is_kept, strict=True) if kept_row]
    kept_values = [value for value in kept_results if value is not None]
    if len(kept_values) < 2 or kept_values[0] == kept_values[-1]:
        return None
    return "minimize" if kept_values[-1] < kept_values[0] else "maximize"


def _table_notes(rows: Sequence[_ResultRow], running: int, file_text: str) -> list[str]:
    notes = []
    if running:
        notes.append(f"{file_text}: {running} {'row has' if running == 1 else 'rows have'} not ended; import again later.")
    first_rows: dict[str, _ResultRow] = {}
    for row in rows:
        earlier_row = first_rows.setdefault(row.commit, row)
        description = row.cell_texts.get(_DESCRIPTION, "")
        if description != earlier_row.cell_texts.get(_DESCRIPTION, "") and not _REPEAT_WORD_PATTERN.search(description):
            notes.append(
                f"{file_text}: lines {earlier_row.line} and {row.line} have the same commit and different descriptions. They count "
                "as repeats of one setting; commit each change before its run."
            )
            break
    return notes


def _run_content(row: _ResultRow, numeric: Sequence[str], tags: Mapping[str, str]) -> RunContent:
    cells, curves = row.cell_texts, RunCurves()
    has_failed = row.has_failed(numeric)
    for column in () if has_failed else numeric:
        if (value := row.number_in_column(column)) is not None:
            curves.add(column, 0, value)
    tag_columns = [c for c in cells if c not in (_COMMIT, _DESCRIPTION, *numeric) and not c.startswith(_RESERVED_TAG_PREFIXES)]
    tag_texts = {c: cells[c] for c in tag_columns if cells[c]}
    tag_texts[contract.TAG_GIT_COMMIT] = row.commit
    if description := cells.get(_DESCRIPTION):
        tag_texts[contract.TAG_DESCRIPTION] = tag_texts[contract.TAG_TESTED_CHANGE] = description
    return RunContent(curves.points(), {}, {**tags, **tag_texts}, "FAILED" if has_failed else "FINISHED")
