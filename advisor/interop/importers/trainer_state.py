"""Imports `trainer_state.json` of Hugging Face's `Trainer`, from the output folder and each `checkpoint-*` folder. Only the
latest file is read, because it contains the complete history. `Trainer` saves its arguments only as a pickle, which is never
opened; parameters are read from a JSON file or from the model card."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from advisor import contract
from advisor.interop.importers import files
from advisor.interop.importers.runs import RunContent, RunCurves, RunList, SourceRun, convert_to_step, convert_to_value
from advisor.model.errors import AdvisorError

_TRAINER_STATE_FILE = "trainer_state.json"
_MODEL_CARD_FILE = "README.md"
_PARAMS_FILES = (
    *("training_args.json", "train_args.json", "args.json", "all_args.json", "hparams.json", "hyperparameters.json"),
    _MODEL_CARD_FILE,
)
_MAX_CARD_BYTES = 1_000_000
_MODEL_CARD_ITEM_PATTERN = re.compile(r"^- ([A-Za-z_]\w*): (\S.*)$")
_CHECKPOINT_PATTERN = re.compile(r"checkpoint-(\d+)")
_POSITIVE_INTEGER_PATTERN = re.compile(r"[1-9][0-9]{0,17}")


def find_runs(source: str | Path) -> RunList:
    path = files.require_existing_path(source, f"a Trainer's output folder or {_TRAINER_STATE_FILE}")
    if path.is_dir():
        root, states = path, files.find_files(path, _TRAINER_STATE_FILE.__eq__)
    elif path.suffix == ".json":
        root, states = path.parent, [path]
    else:
        raise AdvisorError(
            f"{files.printable_text(path)} is not {_TRAINER_STATE_FILE}; pickles such as training_args.bin are not read"
        )
    runs: dict[Path, list[Path]] = {}
    for state in states:
        folder = state.parent
        is_checkpoint = folder != root and _CHECKPOINT_PATTERN.fullmatch(folder.name)
        runs.setdefault(folder.parent if is_checkpoint else folder, []).append(state)
    if not runs:
        raise AdvisorError(f"{files.printable_text(path)}: no {_TRAINER_STATE_FILE} there; give a Trainer's output folder")
    return RunList([_source_run(folder, paths, root) for folder, paths in sorted(runs.items())])


def _source_run(folder: Path, states: Sequence[Path], root: Path) -> SourceRun:
    name = files.run_name(folder, root)

    def age(state: Path) -> tuple[int, int]:  # `Trainer` writes the file in the output folder last
        checkpoint_match = _CHECKPOINT_PATTERN.fullmatch(state.parent.name)
        return (0, int(checkpoint_match[1][:18])) if checkpoint_match else (1, 0)

    latest = max(states, key=age)
    possible_params_files = [folder / name for name in _PARAMS_FILES]
    history: list[dict[str, Any]] = []
    with suppress(AdvisorError):  # `read` will report this error
        history = _read_state(latest)[1]
    source = ("trainer-state", name, files.digest_of_value(history[0]) if history else "")
    digest = files.digest_of_files([*states, *possible_params_files])
    return SourceRun(name, source, files.folder_name(root), lambda: _run_content(latest, possible_params_files), digest)


def _read_state(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    state_data = files.read_json(path)
    if not isinstance(state_data, dict) or "log_history" not in state_data:
        raise AdvisorError(f"{files.printable_text(path)} has no log_history, which a Trainer's state has")
    history = state_data["log_history"]
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise AdvisorError(f"{files.printable_text(path)}: log_history is not a list of entries")
    return state_data, history


def _run_content(path: Path, argument_files: Sequence[Path]) -> RunContent:
    state, history = _read_state(path)
    curves = RunCurves()
    for number, entry in enumerate(history, 1):
        step = convert_to_step(entry.get("step", 0), f"{files.printable_text(path)}, entry {number} of log_history")
        for key, cell in entry.items():
            value = convert_to_value(cell)
            if key != "step" and value is not None:
                curves.add(key, step, value)
    source = next((file for file in argument_files if file.is_file()), None)
    is_card = source is not None and source.name == _MODEL_CARD_FILE
    arguments: dict[str, Any] = {} if source is None else (_arguments_in_model_card if is_card else files.read_mapping)(source)
    trial = state.get("trial_params")
    planned, reached = (convert_to_value(state.get("max_steps")) or 0.0, convert_to_value(state.get("global_step")) or 0.0)
    tags = _objective_tags(state, history, arguments)
    batch_size = arguments.get("total_train_batch_size") or state.get("train_batch_size")
    for tag, count in ((contract.TAG_MAX_TRAIN_STEPS, state.get("max_steps")), (contract.TAG_BATCH_SIZE, batch_size)):
        if isinstance(count, int | str) and _POSITIVE_INTEGER_PATTERN.fullmatch(str(count)):
            tags[tag] = str(count)
    return RunContent(
        curves.points(),
        {**arguments, **(trial if isinstance(trial, dict) else {})},
        tags,
        "FINISHED" if reached >= planned else "KILLED",
        started_ms=files.modification_time_ms(path),
    )


def _objective_tags(
    state: Mapping[str, Any], history: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
) -> dict[str, str]:
    """Return the objective and its direction; without a named objective, it is the only metric with the value `best_metric`."""
    named_metric = arguments.get("metric_for_best_model")
    best_value = convert_to_value(state.get("best_metric"))
    values_by_metric: dict[str, list[float]] = {}
    for entry in history:
        for key, cell in entry.items():
            if key.startswith("eval_") and (value := convert_to_value(cell)) is not None:
                values_by_metric.setdefault(key, []).append(value)
    if isinstance(named_metric, str) and named_metric:
        metric = named_metric if named_metric.startswith("eval_") else f"eval_{named_metric}"
        greater_is_better = arguments.get("greater_is_better")
        if isinstance(greater_is_better, bool):
            return {contract.TAG_OBJECTIVE: metric, contract.TAG_DIRECTION: "maximize" if greater_is_better else "minimize"}
    else:
        matching_metrics = [key for key, of_key in values_by_metric.items() if best_value in of_key]
        if best_value is None or len(matching_metrics) != 1:
            return {}
        metric = matching_metrics[0]
    tags = {contract.TAG_OBJECTIVE: metric}
    of_metric = values_by_metric.get(metric, [])
    if len(set(of_metric)) > 1 and best_value in (min(of_metric), max(of_metric)):
        tags[contract.TAG_DIRECTION] = "minimize" if best_value == min(of_metric) else "maximize"
    return tags


def _arguments_in_model_card(path: Path) -> dict[str, str]:
    arguments: dict[str, str] = {}
    inside_section = False
    for line in files.read_bytes(path, _MAX_CARD_BYTES).decode("utf-8", "replace").splitlines():
        if line.startswith("#"):
            inside_section = line.strip("# ").lower() == "training hyperparameters"
        elif inside_section and (item := _MODEL_CARD_ITEM_PATTERN.match(line)):
            arguments[item[1]] = item[2].strip()
    return arguments
