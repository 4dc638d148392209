"""Imports what Hugging Face's `Trainer` saves: `trainer_state.json`, in its output folder and in each `checkpoint-*` there.

The state that went furthest counts, since each holds the whole history before it. The training's arguments are saved only as a
pickle, which is never opened; parameters come from a JSON file of them or from the model card, where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor import contract
from advisor.interop.importers import files
from advisor.interop.importers.runs import Content, Curves, Found, as_step, as_value
from advisor.model.errors import AdvisorError

_STATE = "trainer_state.json"
_ARGUMENTS = (
    "training_args.json",
    "train_args.json",
    "args.json",
    "all_args.json",
    "hparams.json",
    "hyperparameters.json",
)
_CARD = "README.md"
_CARD_BYTES = 1_000_000
_COUNT = re.compile(r"[1-9][0-9]{0,17}")


def find(path: Path) -> list[Found]:
    """The runs at or below a folder, one a folder of checkpoints; AdvisorError if there is none."""
    files.require(path, f"a Trainer's output folder or {_STATE}")
    if path.is_dir():
        states = [state for _, of_folder in files.folders(path, _STATE.__eq__) for state in of_folder]
        root = path
    else:
        states, root = [path], path.parent
        if path.suffix != ".json":
            raise AdvisorError(
                f"{files.printable(path)} is no {_STATE}; pickles such as training_args.bin are not read"
            )
    runs: dict[Path, list[Path]] = {}
    for state in states:
        runs.setdefault(_output_folder(state.parent, root), []).append(state)
    if not runs:
        raise AdvisorError(f"{files.printable(path)}: no {_STATE} there; give a Trainer's output folder")
    return [_found(folder, of_run, root) for folder, of_run in sorted(runs.items())]


def _output_folder(folder: Path, root: Path) -> Path:
    return folder.parent if folder != root and re.fullmatch(r"checkpoint-\d+", folder.name) else folder


def _found(folder: Path, states: Sequence[Path], root: Path) -> Found:
    name = files.run_name(folder, root)
    newest = max(states, key=_progress)
    beside = [folder / name for name in (*_ARGUMENTS, _CARD)]

    def read() -> Content:
        return _content(newest, beside)

    return Found(
        name,
        ("trainer-state", name, _birth(newest)),
        files.folder_name(root),
        read,
        files.state_of([*states, *beside]),
    )


def _progress(state: Path) -> tuple[int, int]:
    """How far the training was: by the checkpoint's number, and the output folder's own state, which is saved last, above all."""
    numbered = re.fullmatch(r"checkpoint-(\d{1,18})", state.parent.name)
    return (0, int(numbered[1])) if numbered else (1, 0)


def _birth(state: Path) -> str:
    """What stays as it is while the training goes on; the run is refused when it is read, where that is nothing."""
    try:
        history = _history(_read(state), state)
    except AdvisorError:
        return ""
    return files.digest_of(history[0]) if history else ""


def _read(path: Path) -> dict[str, Any]:
    state = files.read_json(path)
    if not isinstance(state, dict) or "log_history" not in state:
        raise AdvisorError(f"{files.printable(path)} has no log_history, as a Trainer's state does")
    return state


def _history(state: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    history = state["log_history"]
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise AdvisorError(f"{files.printable(path)}: its log_history is no list of entries")
    return history


def _content(path: Path, beside: Sequence[Path]) -> Content:
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
    return Content(
        curves.points(),
        {**arguments, **(trial if isinstance(trial, dict) else {})},
        tags,
        "FINISHED" if reached >= planned else "KILLED",
        started_ms=files.modified_ms(path),
    )


# --- objective ------------------------------------------------------------------------------------------------------------------


def _aim(
    state: Mapping[str, Any], history: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
) -> dict[str, str]:
    """The metric for the best model and its direction: as the arguments name them, else the one whose value `best_metric` is."""
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
            direction = "maximize" if greater else "minimize"
            return {contract.TAG_OBJECTIVE: metric, contract.TAG_DIRECTION: direction}
    else:
        holding = [key for key, of_key in values.items() if best in of_key]
        if best is None or len(holding) != 1:
            return {}
        metric = holding[0]
    tags = {contract.TAG_OBJECTIVE: metric}
    of_metric = values.get(metric, [])
    if len(set(of_metric)) > 1 and best in (min(of_metric), max(of_metric)):
        tags[contract.TAG_DIRECTION] = "minimize" if best == min(of_metric) else "maximize"
    return tags


# --- arguments ------------------------------------------------------------------------------------------------------------------


def _arguments(beside: Sequence[Path]) -> dict[str, Any]:
    """The training's arguments from the first of the files that is there."""
    for path in beside:
        if path.is_file():
            return _card(path) if path.name == _CARD else files.read_mapping(path)
    return {}


_ITEM = re.compile(r"^- ([A-Za-z_]\w*): (\S.*)$")


def _card(path: Path) -> dict[str, str]:
    """The list under "Training hyperparameters" of a model card that the Trainer wrote."""
    found: dict[str, str] = {}
    inside = False
    for line in files.read_bytes(path, _CARD_BYTES).decode("utf-8", "replace").splitlines():
        if line.startswith("#"):
            inside = line.strip("# ").lower() == "training hyperparameters"
        elif inside and (item := _ITEM.match(line)):
            found[item[1]] = item[2].strip()
    return found
