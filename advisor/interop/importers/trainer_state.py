"""Imports `trainer_state.json` of Hugging Face's `Trainer` from its output folder and from each `checkpoint-*` folder.

Only the latest state of a run is read, because each state contains the complete earlier history. Trainer saves its arguments
only as a pickle, which is never opened; parameters are read from a JSON file or from the model card.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor import contract
from advisor.interop.importers import files
from advisor.interop.importers.points import Curves, as_step, as_value
from advisor.interop.importers.runs import RunContent, RunList, SourceRun
from advisor.model.errors import AdvisorError

_STATE = "trainer_state.json"
_CARD = "README.md"
_PARAMS_FILES = (
    "training_args.json",
    "train_args.json",
    "args.json",
    "all_args.json",
    "hparams.json",
    "hyperparameters.json",
    _CARD,
)
_MAX_CARD_BYTES = 1_000_000
_CARD_ITEM = re.compile(r"^- ([A-Za-z_]\w*): (\S.*)$")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_COUNT = re.compile(r"[1-9][0-9]{0,17}")


def find(source: str | Path) -> RunList:
    """List the runs in a folder and its subfolders, one per folder of checkpoints; raise AdvisorError if there are none."""
    path = files.require(source, f"a Trainer's output folder or {_STATE}")
    if path.is_dir():
        root, states = path, files.find_all(path, _STATE.__eq__)
    elif path.suffix == ".json":
        root, states = path.parent, [path]
    else:
        raise AdvisorError(f"{files.printable(path)} is not {_STATE}; pickles such as training_args.bin are not read")
    runs: dict[Path, list[Path]] = {}
    for state in states:
        folder = state.parent
        is_checkpoint = folder != root and _CHECKPOINT.fullmatch(folder.name)
        runs.setdefault(folder.parent if is_checkpoint else folder, []).append(state)
    if not runs:
        raise AdvisorError(f"{files.printable(path)}: no {_STATE} there; give a Trainer's output folder")
    return RunList([_run(folder, paths, root) for folder, paths in sorted(runs.items())])


def _run(folder: Path, states: Sequence[Path], root: Path) -> SourceRun:
    name = files.run_name(folder, root)
    latest = max(states, key=_progress)
    beside = [folder / name for name in _PARAMS_FILES]
    try:
        history = _history(_read(latest), latest)
    except AdvisorError:
        history = []  # the error is reported later, when the run is read
    return SourceRun(
        name,
        ("trainer-state", name, files.digest_of(history[0]) if history else ""),
        files.folder_name(root),
        lambda: _content(latest, beside),
        files.state_of([*states, *beside]),
    )


def _progress(state: Path) -> tuple[int, int]:
    """Return a sort key: checkpoints by number, then the state in the output folder, because it is saved last."""
    number = _CHECKPOINT.fullmatch(state.parent.name)
    return (0, int(number[1][:18])) if number else (1, 0)


def _read(path: Path) -> dict[str, Any]:
    state = files.read_json(path)
    if not isinstance(state, dict) or "log_history" not in state:
        raise AdvisorError(f"{files.printable(path)} has no log_history, which a Trainer's state has")
    return state


def _history(state: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    history = state["log_history"]
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise AdvisorError(f"{files.printable(path)}: its log_history is not a list of entries")
    return history


def _content(path: Path, beside: Sequence[Path]) -> RunContent:
    state = _read(path)
    history = _history(state, path)
    curves = Curves()
    for number, entry in enumerate(history, 1):
        step = as_step(entry.get("step", 0), f"{files.printable(path)}, entry {number} of log_history")
        for key, cell in entry.items():
            value = as_value(cell)
            if key != "step" and value is not None:
                curves.add(key, step, value)
    arguments = _arguments(beside)
    trial = state.get("trial_params")
    planned, reached = as_value(state.get("max_steps")) or 0.0, as_value(state.get("global_step")) or 0.0
    tags = _aim(state, history, arguments)
    batch = arguments.get("total_train_batch_size") or state.get("train_batch_size")
    for tag, value in ((contract.TAG_MAX_TRAIN_STEPS, state.get("max_steps")), (contract.TAG_BATCH_SIZE, batch)):
        if isinstance(value, int | str) and _COUNT.fullmatch(str(value)):
            tags[tag] = str(value)
    return RunContent(
        curves.points(),
        {**arguments, **(trial if isinstance(trial, dict) else {})},
        tags,
        "FINISHED" if reached >= planned else "KILLED",
        started_ms=files.modified_ms(path),
    )


def _aim(
    state: Mapping[str, Any], history: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
) -> dict[str, str]:
    """Return the objective's tags: the metric in the arguments, or else the only metric that reached `best_metric`."""
    named = arguments.get("metric_for_best_model")
    best = as_value(state.get("best_metric"))
    values: dict[str, list[float]] = {}
    for entry in history:
        for key, cell in entry.items():
            if key.startswith("eval_") and (value := as_value(cell)) is not None:
                values.setdefault(key, []).append(value)
    if isinstance(named, str) and named:
        metric = named if named.startswith("eval_") else f"eval_{named}"
        greater = arguments.get("greater_is_better")
        if isinstance(greater, bool):
            return {contract.TAG_OBJECTIVE: metric, contract.TAG_DIRECTION: "maximize" if greater else "minimize"}
    else:
        candidates = [key for key, of_key in values.items() if best in of_key]
        if best is None or len(candidates) != 1:
            return {}
        metric = candidates[0]
    tags = {contract.TAG_OBJECTIVE: metric}
    of_metric = values.get(metric, [])
    if len(set(of_metric)) > 1 and best in (min(of_metric), max(of_metric)):
        tags[contract.TAG_DIRECTION] = "minimize" if best == min(of_metric) else "maximize"
    return tags


def _arguments(beside: Sequence[Path]) -> dict[str, Any]:
    """Return the training arguments from the first of the candidate files that exists."""
    for path in beside:
        if path.is_file():
            return _card_arguments(path) if path.name == _CARD else files.read_mapping(path)
    return {}


def _card_arguments(path: Path) -> dict[str, str]:
    """Return the entries under "Training hyperparameters" in a model card that Trainer wrote."""
    arguments: dict[str, str] = {}
    inside = False
    for line in files.read_bytes(path, _MAX_CARD_BYTES).decode("utf-8", "replace").splitlines():
        if line.startswith("#"):
            inside = line.strip("# ").lower() == "training hyperparameters"
        elif inside and (item := _CARD_ITEM.match(line)):
            arguments[item[1]] = item[2].strip()
    return arguments
