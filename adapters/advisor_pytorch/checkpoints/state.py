"""The training state: model, optimizers, schedulers, gradient scaler and random generators."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from advisor.contract.redact import one_line_error


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
        """Save `optimizer` instead of optimizer number k in all later checkpoints."""
        self._several["optimizers"][k] = optimizer

    def save(self, path: Path, metadata: Mapping[str, object]) -> None:
        """Write the training state and the entries of `metadata` to a checkpoint file."""
        states = {name: [one.state_dict() for one in many] for name, many in self._several.items()}
        scaler = None if self._scaler is None else self._scaler.state_dict()
        content = {"model": self._model.state_dict(), "scaler": scaler, "rng": random_states(), **states, **metadata}
        torch.save(content, path)

    def load(self, path: Path) -> None:
        """Restore the training state from a checkpoint file. Raises ValueError with a one-line message if the checkpoint does
        not fit the model, optimizers or other objects."""
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
    """Return the states of all random generators that the training may use, as tensors and plain values."""
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
