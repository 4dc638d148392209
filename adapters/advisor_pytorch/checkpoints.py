"""Saves checkpoints of a training run, and finds an interrupted run and resumes from it."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from advisor.contract.redact import one_line_error
from advisor_logging import checkpoints
from advisor_pytorch.steps.device import ScalarValue
from advisor_pytorch.steps.gradients import is_fully_sharded
from advisor_pytorch.validation import check_count, make_writable_folder


class Stateful(Protocol):
    def state_dict(self) -> Mapping[str, Any]:
        """Return the object's state."""

    def load_state_dict(self, state_dict: Any, /) -> object:
        """Restore the object from a state that `state_dict` returned."""


class TrainingState:
    """The training state that a checkpoint contains.

    | key | |
    |---|---|
    | `model`, `scaler` | state dict; `scaler` is None if there is no scaler |
    | `optimizers`, `schedulers` | list of state dicts, in the order in which they were passed |
    | `rng` | states of the random generators: `torch`, `cuda` (one per device), `python` and `numpy` |
    | `step`, `steps_made`, `objective`, `value` | time of the checkpoint, and name and value of the objective; `value` None if not
    evaluated |

    Read a checkpoint file with `torch.load(path, weights_only=True)`. The checkpoint does not contain the data loader's
    position in the epoch.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Stateful | Sequence[Stateful],
        scheduler: Stateful | Sequence[Stateful] | None = None,
        scaler: Stateful | None = None,
    ) -> None:
        self._model, self._scaler = model, scaler
        self._several: dict[str, list[Stateful]] = {"optimizers": _as_list(optimizer), "schedulers": _as_list(scheduler)}

    def replace_optimizer(self, k: int, optimizer: Stateful) -> None:
        self._several["optimizers"][k] = optimizer

    def save(self, path: Path, metadata: Mapping[str, object]) -> None:
        states = {name: [one.state_dict() for one in many] for name, many in self._several.items()}
        scaler = None if self._scaler is None else self._scaler.state_dict()
        content = {"model": self._model.state_dict(), "scaler": scaler, "rng": random_states(), **states, **metadata}
        torch.save(content, path)

    def load(self, path: Path) -> None:
        """Raises ValueError with a one-line message if the checkpoint does not fit the model, optimizers or other objects."""
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            for name, many in self._several.items():
                if len(content[name]) != len(many):
                    raise ValueError(f"the checkpoint holds {len(content[name])} {name}, but the training has {len(many)}")
            self._model.load_state_dict(content["model"])
            for name, many in self._several.items():
                for one, state in zip(many, content[name], strict=True):
                    one.load_state_dict(state)
            if self._scaler is not None and content["scaler"] is not None:
                self._scaler.load_state_dict(content["scaler"])
            restore_random_states(content["rng"])
        except OSError:
            raise
        except Exception as error:
            raise ValueError(f"the checkpoint {path} does not fit this training: {one_line_error(error)}") from None


def _as_list(objects: Stateful | Sequence[Stateful] | None) -> list[Stateful]:
    if objects is None:
        return []
    return list(objects) if isinstance(objects, Sequence) else [objects]


def random_states() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": (version, list(words), gauss)}
    states["cuda"] = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (name, [int(k) for k in keys], *(float(r) if isinstance(r, float) else int(r) for r in rest))
    return states


def restore_random_states(states: Mapping[str, Any]) -> None:
    """States of devices that this machine does not have are ignored."""
    torch.set_rng_state(states["torch"])
    for i, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, i)
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    if (numpy := sys.modules.get("numpy")) is not None and "numpy" in states:
        numpy.random.set_state(tuple(states["numpy"]))


SaveFunction = Callable[[Path], object]
"""A function of the user that writes the training state to a file or folder at the given path."""
LoadFunction = Callable[[Path], object]
"""A function of the user that restores the training state from the given path."""
WriteFunction = Callable[[Path, Mapping[str, object]], object]
"""Function that writes the training state and its metadata to a path."""
WarnFunction = Callable[[str, str], None]
"""Function that logs a one-line warning, at most once per key."""
_INTERRUPTED_STATUSES = (None, "stopped", "infeasible")


class EarlierRun(NamedTuple):
    """An earlier run to continue: its checkpoint folder, its description, and the checkpoint to resume from."""

    folder: Path
    run_info: checkpoints.RunInfo
    checkpoint: checkpoints.Checkpoint | None


class CheckpointSettings(NamedTuple):
    keep: int
    root: Path
    save: SaveFunction | None
    load: LoadFunction | None
    on_all_ranks: bool
    resume: bool | str | os.PathLike[str]

    def check(self, model: torch.nn.Module, start_step: int) -> None:
        """Raise TypeError, ValueError or OSError if these settings do not allow saving and resuming the training."""
        check_count("checkpoints", self.keep, 0)
        for name, function in (("save", self.save), ("load", self.load)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function that takes a path, not {function!r}")
        if self.resume and not self.keep:
            raise ValueError("resume needs checkpoints: pass the number to keep, for example checkpoints=3")
        if self.resume and start_step:
            raise ValueError("resume determines the first step: omit start_step")
        if self.resume and self.save is not None and self.load is None:
            raise ValueError("to resume with your own `save`, also pass `load`, which reads the path that `save` wrote")
        if self.on_all_ranks and self.save is None:
            raise ValueError("save_on_all_ranks requires your own `save` function, which all ranks call")
        if self.keep and self.save is None and is_fully_sharded(model):
            raise ValueError("no single rank has the whole model: pass your own `save` function and save_on_all_ranks=True")
        if self.keep:
            make_writable_folder(self.root)

    def find(self, run_id: str | None, run_info: checkpoints.RunInfo) -> EarlierRun | None:
        """Return the run that `resume` or `run_id` names, else an interrupted run with the same description.

        Raises FileNotFoundError if `resume` is a path without a checkpoint.
        """
        if not self.keep:
            return None
        if not isinstance(self.resume, bool):
            return _earlier_run_at_path(Path(self.resume).absolute(), run_info.objective)
        folder = checkpoints.find_checkpoint_folder(self.root, lambda known: known.run_id == run_id) if run_id else None
        if folder is None and self.resume:
            wanted_run = replace(run_info, run_id=None, spool=None, status=None)
            folder = checkpoints.find_checkpoint_folder(
                self.root,
                lambda known: (
                    known.status in _INTERRUPTED_STATUSES and replace(known, run_id=None, spool=None, status=None) == wanted_run
                ),
            )
        return None if folder is None else _earlier_run_in_folder(folder, run_info.objective)

    def restore(self, earlier_run: EarlierRun | None, state: TrainingState) -> int:
        """Return the number of the next optimizer step. Raises ValueError if the checkpoint does not fit, and any error of
        `load`."""
        if earlier_run is None or earlier_run.checkpoint is None or not self.resume:
            return 0
        (self.load or state.load)(earlier_run.checkpoint.path)
        return earlier_run.checkpoint.steps_made


class CheckpointKeeper:
    """Saves the training state at each evaluation and after the last step; if saving fails, logs a warning.

    Rank 0 decides when to save and writes the checkpoint. With `on_all_ranks`, all ranks call `save` whenever rank 0 saves a
    checkpoint, so that `save` can gather a sharded state from all ranks.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        earlier: EarlierRun | None,
        run_info: checkpoints.RunInfo,
        identity: str,
        state: TrainingState,
        *,
        is_rank_0: bool,
        warn: WarnFunction,
    ) -> None:
        """Use the folder of the run to continue, or a new folder named `identity`. is_rank_0: whether this process is rank 0."""
        folder = earlier.folder if earlier is not None else settings.root / identity
        keep = settings.keep if is_rank_0 or settings.on_all_ranks else 0
        suffix, save = ".pt" if settings.save is None else "", settings.save
        self.checkpoints = checkpoints.CheckpointFolder(
            folder, keep, run_info, suffix, owner=is_rank_0, resumes=bool(settings.resume)
        )
        self._write: WriteFunction = state.save if save is None else lambda path, _checkpoint_metadata: save(path)
        self._together, self._is_rank_0, self._warn = settings.on_all_ranks, is_rank_0, warn

    @property
    def best(self) -> tuple[int, float] | None:
        best = next(iter(self.checkpoints.existing_set.best), None)
        return None if best is None or best.value is None else (best.step, best.value)

    def on_evaluation(self, step: int, steps_made: int, value: ScalarValue | None) -> bool:
        """Save a checkpoint; return whether it was saved. Reading `value` waits for the device; None: the value could not be read.

        With `on_all_ranks`, every rank must call this method, because rank 0 decides for all ranks.
        """
        if not self.checkpoints.keep:
            return False
        try:
            if self._together:
                return self._save_on_all_ranks(step, steps_made, value)
            return self._is_rank_0 and value is not None and self._save_on_rank_0(step, steps_made, float(value))
        except Exception as error:
            self._warn("checkpoint", f"a checkpoint could not be saved ({one_line_error(error)}); training continues")
            return False

    def on_end(self, step: int, steps_made: int) -> None:
        """Save the state after the last step, unless saving requires all ranks, because some ranks may have exited."""
        last = self.checkpoints.existing_set.last
        if not self.checkpoints.keep or not self._is_rank_0 or self._together:
            return
        if last is not None and last.steps_made >= steps_made:
            return
        try:
            self._save_on_rank_0(step, steps_made, None)
        except Exception as error:
            self._warn("checkpoint", f"the last checkpoint could not be saved ({one_line_error(error)})")

    def update_run_info(self, **fields: str | None) -> None:
        """Update fields of the run's description, which is stored with its checkpoints; None keeps a field."""
        changes = {name: text for name, text in fields.items() if text is not None}
        run_info = replace(self.checkpoints.run_info, **changes)  # type: ignore[arg-type]  # only text fields change
        if not self._is_rank_0 or run_info == self.checkpoints.run_info:
            return
        try:
            self.checkpoints.update_run_info(run_info)
        except OSError as error:
            self._warn("checkpoint list", f"the list of checkpoints could not be written ({one_line_error(error)})")

    def _save_on_rank_0(self, step: int, steps_made: int, value: float | None) -> bool:
        metadata = self._checkpoint_metadata(step, steps_made, value)
        return self.checkpoints.save(step, steps_made, value, lambda path: self._write(path, metadata))

    def _checkpoint_metadata(self, step: int, steps_made: int, value: float | None) -> dict[str, object]:
        objective = self.checkpoints.run_info.objective
        return {"step": step, "steps_made": steps_made, "objective": objective, "value": value}

    def _save_on_all_ranks(self, step: int, steps_made: int, value: ScalarValue | None) -> bool:
        from torch import distributed

        objective_value = None if value is None or not self._is_rank_0 else float(value)
        shared_path: list[str | None] = [None]
        if self._is_rank_0 and objective_value is not None and self.checkpoints.accepts_value(objective_value):
            try:
                shared_path = [str(self.checkpoints.begin_checkpoint(step))]
            except OSError as error:
                self._warn("checkpoint", f"a checkpoint could not be saved ({one_line_error(error)}); training continues")
        distributed.broadcast_object_list(shared_path, src=0)
        if shared_path[0] is None:
            return False
        failures: list[str | None] = [None] * distributed.get_world_size()
        failure = None
        try:
            self._write(Path(shared_path[0]), self._checkpoint_metadata(step, steps_made, objective_value))
        except Exception as error:
            failure = one_line_error(error)
        distributed.all_gather_object(failures, failure)
        if not self._is_rank_0:
            return not any(failures)
        try:
            if failed := [f"rank {rank}: {why}" for rank, why in enumerate(failures) if why]:
                raise RuntimeError(failed[0])
            self.checkpoints.complete_checkpoint(Path(shared_path[0]), step, steps_made, objective_value)
            return True
        finally:
            self.checkpoints.delete_unfinished()


def _earlier_run_at_path(path: Path, objective: str) -> EarlierRun:
    for folder in (path, path.parent):
        earlier_run = _earlier_run_in_folder(folder, objective)
        if earlier_run is None:
            continue
        if folder == path:
            return earlier_run
        listed, _ = checkpoints.read_checkpoints(folder, objective)
        checkpoint = next((c for c in listed if c.path.name == path.name), None)
        if checkpoint is not None:
            return earlier_run._replace(checkpoint=checkpoint)
    raise FileNotFoundError(
        f"resume: {os.fspath(path)!r} is neither the folder in which a run with the objective {objective!r} keeps its checkpoints "
        "nor one of them"
    )


def _earlier_run_in_folder(folder: Path, objective: str) -> EarlierRun | None:
    run_info = checkpoints.read_run_info(folder)
    if run_info is None or run_info.objective != objective:
        return None
    listed, last = checkpoints.read_checkpoints(folder, objective)
    return EarlierRun(folder, run_info, last or max(listed, key=lambda c: c.steps_made, default=None))
