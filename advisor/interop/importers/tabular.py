"""Imports rows of metrics, CSV, JSON lines or Parquet: one file a run, or one file with a column that names the run.

A file NAME.csv may have its parameters beside it, in NAME.json, NAME.yaml, NAME.config.json or NAME_config.json. Exports of
Weights & Biases are such files, too: columns that begin with an underscore are its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from advisor import contract
from advisor.interop.importers import files, flat
from advisor.interop.importers.flat import Layout, Rows
from advisor.interop.importers.runs import Content, Found
from advisor.interop.importers.spill import Spill
from advisor.model.errors import AdvisorError

Kind = Literal["csv", "jsonl", "wandb"]
_ENDINGS: dict[Kind, tuple[str, ...]] = {
    "csv": flat.TABLES,
    "jsonl": flat.LINES,
    "wandb": (*flat.TABLES, *flat.LINES),
}
_BESIDE = (".config.json", "_config.json", ".config.yaml", "_config.yaml", ".json", ".yaml", ".yml")
_NO_METRIC = ("", "index", "unnamed:_0")


def find(
    path: Path,
    kind: Kind,
    *,
    step: str | None = None,
    run: str | None = None,
    params: Sequence[str] = (),
    time: str | None = None,
) -> tuple[list[Found], list[str]]:
    """The runs in a file, or in all such files of a folder, and what the user should know of them.

    step, run, time: the columns of those names; default the first with a usual name (see `flat.STEPS`). params: columns that hold
    parameters. Without a column of steps, rows are counted. AdvisorError where there is no such file or column.
    """
    endings = _ENDINGS[kind]
    files.require(path, f"a {' or '.join(endings)} file, or of a folder with such files")
    if path.is_dir():
        paths = [p for _, of_folder in files.folders(path, lambda n: n.lower().endswith(endings)) for p in of_folder]
    else:
        paths = [path] if path.suffix.lower() in endings else []
    if not paths:
        raise AdvisorError(f"{files.printable(path)}: no {', '.join(endings)} file there")
    found: list[Found] = []
    notes: list[str] = []
    problems: list[AdvisorError] = []
    for file in paths:
        try:
            layout = _layout(file, kind, step, run, params, time, notes)
        except AdvisorError as error:
            problems.append(error)
            continue
        if layout.run is None:
            found.append(_one_run(file, path, kind, layout))
        else:
            found += _many_runs(file, path, kind, layout, notes)
    if problems and not found:
        raise problems[0]
    return found, [*notes, *(f"Left out: {problem}" for problem in problems)]


def _layout(
    file: Path,
    kind: Kind,
    step: str | None,
    run: str | None,
    params: Sequence[str],
    time: str | None,
    notes: list[str],
) -> Layout:
    columns = flat.columns_of(file)
    for given in (step, run, time, *params):
        if given is not None and given not in columns:
            raise AdvisorError(
                f"{files.printable(file)} has no column {given!r}; its columns are: {', '.join(columns[:20]) or 'none'}"
            )
    step = step or flat.find_column(columns, flat.STEPS)
    if step is None:
        notes.append("No column of steps was found, so rows are counted; name one with --step.")

    def metric(name: str) -> str | None:
        own = name.lower().replace(" ", "_") in _NO_METRIC or (kind == "wandb" and name.startswith("_"))
        return None if own else name

    return Layout(
        step=step,
        time=time or flat.find_column([c for c in columns if c != step], flat.TIMES),
        run=run or flat.find_column([c for c in columns if c != step], flat.RUNS),
        params=frozenset(params),
        metric=metric,
    )


def _one_run(file: Path, root: Path, kind: Kind, layout: Layout) -> Found:
    name = (
        files.printable(file.relative_to(root).with_suffix("").as_posix())
        if root != file
        else files.printable(file.stem)
    )
    beside = params_beside(file)

    def read() -> Content:
        rows = flat.read_rows(file, layout)
        params = {**({} if beside is None else unwrapped(files.read_mapping(beside))), **rows.all_params}
        return _content(rows, params, layout, files.printable(file))

    return Found(
        name,
        (kind, name, files.digest_of(flat.first_row(file))),
        files.folder_name(root) if root != file else files.folder_name(file.absolute().parent),
        read,
        files.state_of([file, *([beside] if beside else [])]),
    )


def _many_runs(file: Path, root: Path, kind: Kind, layout: Layout, notes: list[str]) -> list[Found]:
    spill = Spill()
    flat.read_file(file, layout, spill.rows)
    notes += _unchanging(spill)
    name, state = files.printable(file.stem), files.state_of([file])

    def reader(run: str) -> Callable[[], Content]:
        return lambda: _content(
            (rows := spill.take(run)), rows.all_params, layout, f"{files.printable(file)}, run {run!r}"
        )

    below = files.printable(file.relative_to(root).as_posix()) if root != file else files.printable(file.name)
    born = files.digest_of(flat.first_row(file))
    return [Found(run, (kind, below, born, run), name, reader(run), state) for run in spill.names]


def _content(rows: Rows, params: dict[str, Any], layout: Layout, where: str) -> Content:
    points = rows.curves.points()
    if not points and not params:
        raise AdvisorError(f"{where} holds no row with a number")
    by_epoch = layout.step is not None and flat.find_column([layout.step], ("epoch", "epochs")) is not None
    return Content(points, params, {contract.TAG_STEP_UNIT: "epoch"} if by_epoch else {})


def _unchanging(spill: Spill) -> list[str]:
    """A hint at metrics that never change within a run but do between runs: they are more likely hyperparameters."""
    constant: dict[str, set[float]] = {}
    varying: set[str] = set()
    for run in spill.names:
        for metric, (low, high, count) in spill.extents(run).items():
            if low == high and count > 1 and math.isfinite(low):
                constant.setdefault(metric, set()).add(low)
            else:
                varying.add(metric)
    names = [name for name, values in constant.items() if name not in varying and len(values) > 1]
    if not names:
        return []
    listed = ",".join(names)
    return [
        f"Constant within each run and different between runs: if they are hyperparameters, pass --params {listed}."
    ]


def params_beside(file: Path) -> Path | None:
    """The file of parameters that lies beside a file of rows."""
    named = (file.with_name(file.stem + ending) for ending in _BESIDE)
    return next((path for path in named if path.is_file()), None)


def unwrapped(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration of Weights & Biases without its wrapping, `{"lr": {"desc": null, "value": 0.1}}`, and its own keys."""
    plain = {key: value for key, value in config.items() if not key.startswith("_") and key != "wandb_version"}
    return {
        k: v["value"] if isinstance(v, dict) and "value" in v and set(v) <= {"desc", "value"} else v
        for k, v in plain.items()
    }
