"""Code that all probes share: the trained objects, their restoration, and the study that holds the trials."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch

from advisor import contract
from advisor_logging.run_description import NEW_RUN_ID
from advisor_pytorch.checkpoints import Stateful, random_states, restore_random_states
from advisor_pytorch.facts.optimizers import unwrap_optimizer
from advisor_pytorch.logger import TuningLogger
from advisor_pytorch.outcome import Direction
from advisor_pytorch.steps.device import ScalarValue, model_device
from advisor_pytorch.validation import check_count, check_training


class TrainingSnapshot:
    """Copy in host memory of the states of the model, the optimizers, the random generators and the objects in `also`.

    `restore` writes into the original tensors, because other code or compiled graphs may refer to them, and removes state that the
    objects have gained since.
    """

    def __init__(
        self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], also: Sequence[Stateful] = ()
    ) -> None:
        self._optimizers, self._also = optimizers, also
        modules = list(model.modules())
        self._modes = [(m, m.training) for m in modules]
        self._buffers = [(m, dict(m._buffers)) for m in modules]
        tensors = [*model.parameters(), *model.buffers()]
        trained = [p for o in optimizers for g in o.param_groups for p in g["params"]]
        own = {id(t): t for t in [*tensors, *trained]}.values()
        self._gradients = [(t, t.grad) for t in own if t.is_leaf]
        self._values: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for tensor in [*own, *(g for _, g in self._gradients if g is not None)]:
            self._copy_tensor(tensor)
        self._groups = [[self._copy_state({**g}) for g in o.param_groups] for o in optimizers]
        self._states = [{p: self._copy_state(state) for p, state in o.state.items()} for o in optimizers]
        self._others = [copy.deepcopy(one.state_dict()) for one in also]
        self._random = random_states()

    def restore(self) -> None:
        for module, mode in self._modes:
            module.training = mode
        for module, buffers in self._buffers:
            module._buffers.clear()
            module._buffers.update(buffers)
        for tensor, gradient in self._gradients:
            tensor.grad = gradient
        with torch.no_grad():
            for tensor, value in self._values.values():
                tensor.copy_(value)
        for optimizer, groups, states in zip(self._optimizers, self._groups, self._states, strict=True):
            for group, saved_group in zip(optimizer.param_groups, groups, strict=True):
                group.clear()
                group.update(_copy_containers(saved_group))
            optimizer.state.clear()
            optimizer.state.update({p: _copy_containers(state) for p, state in states.items()})
        for stateful, state in zip(self._also, self._others, strict=True):
            stateful.load_state_dict(copy.deepcopy(state))
        restore_random_states(self._random)

    def _copy_tensor(self, tensor: torch.Tensor) -> None:
        self._values.setdefault(id(tensor), (tensor, tensor.detach().to("cpu", copy=True)))

    def _copy_state(self, value: Any) -> Any:
        """Store copies of the tensors in `value`, and return `value` in new containers that hold the original tensors."""
        if isinstance(value, torch.Tensor):
            self._copy_tensor(value)
            return value
        if isinstance(value, dict):
            return {k: self._copy_state(v) for k, v in value.items()}
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(self._copy_state(v) for v in value)
        return value


def _copy_containers(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy_containers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_copy_containers(v) for v in value]
    return value


StepFunction = Callable[[], ScalarValue]
"""Function that makes one training step (forward, backward, `optimizer.step()`) and returns the loss."""


class ProbeBench:
    """A training on which a probe runs several trials, each from the same state, which is restored at the end."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        probe: str,
        params: Mapping[str, object] | None,
        also: Sequence[Stateful],
        experiment: str,
        tracking_uri: str | None,
    ) -> None:
        """Raises TypeError or ValueError with a one-line message if the probe cannot run on this training."""
        given_optimizers = optimizer if isinstance(optimizer, list | tuple) else (optimizer,)
        self.optimizers = [unwrap_optimizer(one) for one in given_optimizers]
        check_training(model, self.optimizers)
        check_single_process()
        for one in also:
            if not hasattr(one, "state_dict") or not hasattr(one, "load_state_dict"):
                raise TypeError(f"also: {type(one).__name__} has no state_dict and load_state_dict to restore it")
        self.model, self._probe, self._params = model, probe, dict(params or {})
        self._experiment, self._tracking_uri = experiment, tracking_uri
        self._snapshot = TrainingSnapshot(model, self.optimizers, also)
        self.device = model_device(model)
        self.rates = LearningRateSetter(self.optimizers)
        self._trials, self._shown = 0, False

    @contextmanager
    def trial(
        self,
        params: Mapping[str, float],
        objective: str,
        *,
        direction: Direction = "minimize",
        rate: float | None = None,
        start_step: int = 0,
        max_train_steps: int | None = None,
    ) -> Iterator[TuningLogger]:
        """Start a run from the initial state, at learning rate `rate`. An exception determines the status of the run."""
        self.reset()
        self._trials += 1
        if rate is not None:
            self.rates.set_rate(rate)
        with TuningLogger(
            self.model,
            self.optimizers,
            params={**self._params, **params},
            objective=objective,
            direction=direction,
            experiment=self._experiment,
            max_train_steps=max_train_steps,
            run_name=f"probe-{self._trials}",
            run_id=NEW_RUN_ID,
            start_step=start_step,
            tracking_uri=self._tracking_uri,
        ) as log:
            rates = {} if rate is None else {f"{contract.TAG_OPTIMIZER}.learning_rate": str(rate)}
            log.note({contract.TAG_PROBE: self._probe, **rates})  # replaces the learning rate that a scheduler stored
            yield log

    def reset(self) -> None:
        self._snapshot.restore()

    def show_progress(self, text: str) -> None:
        if sys.stderr.isatty():
            self._shown = True
            sys.stderr.write(f"\r\033[K{self._probe} probe: {text}")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.reset()
        if self._shown:
            sys.stderr.write("\r\033[K")


def check_single_process() -> None:
    """Raise ValueError for several ranks, which would make different numbers of steps and wait for each other forever."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise ValueError(
            "a probe runs in one process: run it on one device with that device's part of the batch, without the process group"
        )


def check_functions(**functions: object) -> None:
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")


def check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None:
            check_count(name, count, 1)


def read_number(value: ScalarValue) -> float:
    """Return the value as a number; reading a tensor waits for the device."""
    return value.detach().item() if isinstance(value, torch.Tensor) else float(value)


class LearningRateSetter:
    """Sets the learning rate of the first parameter group, and scales the rates of the other groups by the same factor."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Raises ValueError if an optimizer has no learning rate."""
        self._groups = [g for o in optimizers for g in o.param_groups]
        if any("lr" not in g for g in self._groups):
            raise ValueError("a probe can set the learning rate only in group['lr'], which one of the optimizers does not have")
        rates = [self._base_rate(g) for g in self._groups]
        self.first_rate = rates[0]
        self._shares = [rate / rates[0] if rates[0] > 0 else 1.0 for rate in rates]

    def set_rate(self, rate: float) -> None:
        """rate: learning rate of the first parameter group."""
        for group, share in zip(self._groups, self._shares, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate * share)  # captured or compiled steps hold a reference to this tensor
            else:
                group["lr"] = rate * share

    @staticmethod
    def _base_rate(group: Mapping[str, object]) -> float:
        """A warmup may start the rate at 0; the scheduler has then stored the base rate."""
        rate = float(group["lr"])  # type: ignore[arg-type]
        return rate if rate > 0 else float(group.get("initial_lr", 0.0))  # type: ignore[arg-type]


def warmup_rate(rate: float, step: int, warmup_steps: int) -> float:
    """The rate rises linearly to `rate` during the warmup; steps count from 0."""
    return rate * min(1.0, (step + 1) / (warmup_steps + 1))
