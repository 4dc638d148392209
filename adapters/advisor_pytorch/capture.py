"""One row per optimizer step, taken from the optimizer's hooks and the loop's calls."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from advisor import contract
from advisor_pytorch import clipping
from advisor_pytorch.device import PendingChunk, PendingRow, Value, own_copy

HAND_OVER_S = 0.25
"""Points stay with the training thread no longer than this, or a step where that takes longer."""


class Owner(Protocol):
    """Whom the capture reports to."""

    def hand_over(self, chunk: PendingChunk) -> None:
        """Take values that may still be on their way."""

    def noticed(self, tag: str, value: str) -> None:
        """Take a fact that showed itself during training."""

    def warn(self, key: str, message: str) -> None:
        """Say one line, once."""


class StepCapture:
    """Captures the steps of `optimizer`, numbered from `start_step`, until `stop`.

    A row opens when `optimizer.step()` is through and closes with the loop's `add_loss`, or, if the loop does not log every step,
    when the next one begins. Losses of micro-batches, logged before their optimizer step, are averaged into it.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, owner: Owner, start_step: int, batch_size: int | None) -> None:
        self._optimizer, self._owner, self._batch_size = optimizer, owner, batch_size
        self._pid = os.getpid()
        self.next_step = start_step
        self._rows: list[PendingRow] = []
        self._open: PendingRow | None = None
        self._norm: Value | None = None
        self._rates: list[Value] = []
        self._clips: list[tuple[Value, float]] = []
        self._losses: list[Value] = []
        self._clock: float | None = None
        self._wait: float | None = None
        self._examples = 0
        self._counted = False
        self._handed = time.perf_counter()
        self._covers: dict[tuple[int, int, int, int], bool] = {}
        self._noticed: set[str] = set()
        self._on_cuda = any(p.is_cuda for g in optimizer.param_groups for p in g["params"])
        self._takes_norm = not self._has_distributed_tensors()
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        clipping.listen(self._on_clip)

    def stop(self) -> None:
        """Take the hooks away and hand over what is left."""
        for handle in self._handles:
            handle.remove()
        clipping.ignore(self._on_clip)
        self._close_row()
        self.flush()

    # From the loop.

    def add_loss(self, loss: Value, grad_norm: Value | None, examples: int | None) -> None:
        """The loss of the step just made, or of a micro-batch of the one to come; a `grad_norm` says that a step was made."""
        self._losses.append(_value(loss))
        if examples is not None:
            self._examples += examples
        elif self._batch_size is not None and not self._counted:
            self._examples += self._batch_size
        if grad_norm is not None and self._open is None:  # no hook ran: a replayed CUDA graph
            self._norm = _value(grad_norm)
            self._rates = self._read_rates()
            self._open_row()
        if self._open is not None:
            self._close_row()
            if time.perf_counter() - self._handed >= HAND_OVER_S:
                self.flush()

    def add_batch(self, waited_s: float, examples: int | None) -> None:
        """A batch arrived from the loader, after a wait."""
        self._wait = (self._wait or 0.0) + waited_s
        if examples is not None:
            self._counted = True
            self._examples += examples

    def restart_clock(self) -> None:
        """Begin the next step's time now: what came before was no training."""
        if self._clock is not None:
            self._clock = time.perf_counter()
            self._wait = None if self._wait is None else 0.0

    def flush(self) -> None:
        """Hand over the rows that are complete."""
        self._handed = time.perf_counter()
        if self._rows:
            rows, self._rows = self._rows, []
            self._owner.hand_over(PendingChunk(rows, windowed=True))

    # From PyTorch.

    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if os.getpid() != self._pid:
            return
        try:
            self._close_row()
            if self._norm is None and self._takes_norm and not self._is_capturing():
                norm = global_norm([p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None])
                scale = getattr(
                    optimizer, "grad_scale", None
                )  # set by GradScaler where a fused optimizer unscales by itself
                self._norm = norm / scale if norm is not None and isinstance(scale, torch.Tensor) else norm
            self._rates = self._read_rates()
        except Exception as error:
            self._fail(error)

    def _after_step(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if os.getpid() != self._pid:
            return
        try:
            self._open_row()
        except Exception as error:
            self._fail(error)

    def _on_clip(self, parameters: Sequence[torch.Tensor], threshold: float | None, norm: torch.Tensor | None) -> None:
        """Just before a clipping: the last moment at which the gradient is whole."""
        if os.getpid() != self._pid or not self._takes_norm:
            return
        try:
            own = [p for g in self._optimizer.param_groups for p in g["params"]]
            if not parameters or not own or not self._touches(parameters, own):
                return
            covers = self._covers_all(parameters, own)
            given = own_copy(norm) if norm is not None else None
            if self._norm is None:
                grads = [p.grad for p in own if p.grad is not None]
                self._norm = given if given is not None and covers else global_norm(grads)
            if threshold is not None:
                clipped = (
                    given if given is not None else global_norm([p.grad for p in parameters if p.grad is not None])
                )
                if clipped is not None:
                    self._clips.append((clipped, float(threshold)))
                self._notice(contract.TAG_GRAD_CLIP, str(float(threshold)))
        except Exception as error:
            self._fail(error)

    # Rows.

    def _open_row(self) -> None:
        now = time.perf_counter()
        values: dict[str, Value] = {}
        if self._norm is not None:
            values[contract.GRAD_NORM] = self._norm
        for i, rate in enumerate(self._rates):
            values[contract.LEARNING_RATE + (f"{contract.GROUP_SUFFIX}{i}" if i else "")] = rate
        if self._clock is not None:  # else there is no step before to count from
            values[contract.STEP_TIME] = now - self._clock
            if self._wait is not None:
                values[contract.DATA_WAIT] = self._wait
        self._clock, self._wait = now, None if self._wait is None else 0.0
        self._open = PendingRow(self.next_step, int(time.time() * 1000), values, self._clips)
        self.next_step += 1
        self._norm, self._clips = None, []

    def _close_row(self) -> None:
        row = self._open
        if row is None:
            return
        self._open = None
        if self._losses:
            row.values[contract.TRAIN_LOSS] = sum(self._losses[1:], start=self._losses[0]) / len(self._losses)
            self._losses = []
        if self._examples:
            self._notice(contract.TAG_BATCH_SIZE, str(self._examples))
            if (seconds := row.values.get(contract.STEP_TIME)) is not None:
                row.values[contract.EXAMPLES_PER_SECOND] = self._examples / seconds
            self._examples = 0
        self._rows.append(row)

    def _read_rates(self) -> list[Value]:
        return [_value(group["lr"]) for group in self._optimizer.param_groups if "lr" in group]

    # What it knows of its surroundings.

    def _touches(self, parameters: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> bool:
        return self._covers_all(parameters, own) or bool({id(p) for p in parameters} & {id(p) for p in own})

    def _covers_all(self, parameters: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> bool:
        """Whether a clipping is of all that the optimizer trains and of nothing else."""
        key = (id(parameters[0]), id(parameters[-1]), len(parameters), len(own))
        if key not in self._covers:
            trained = {id(p) for p in own if p.requires_grad}
            self._covers[key] = {id(p) for p in parameters if p.requires_grad} == trained
        return self._covers[key]

    def _has_distributed_tensors(self) -> bool:
        found = any(hasattr(p, "to_local") for g in self._optimizer.param_groups for p in g["params"])
        if found:
            self._owner.warn("dtensor", "no gradient norm is logged: that of sharded parameters needs all ranks")
        return found

    def _is_capturing(self) -> bool:
        return self._on_cuda and torch.cuda.is_current_stream_capturing()

    def _notice(self, tag: str, value: str) -> None:
        if tag not in self._noticed:
            self._noticed.add(tag)
            self._owner.noticed(tag, value)

    def _fail(self, error: Exception) -> None:
        self._owner.warn("capture", f"a step could not be captured ({type(error).__name__}: {error}); training goes on")


def global_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The L2 norm of all gradients together, a float32 scalar on the first one's device; None if there are none. Never waits."""
    if not gradients:
        return None
    with torch.no_grad():
        try:
            narrow = gradients[0].dtype in (torch.float16, torch.bfloat16)  # their squares overflow or lose digits
            norms = torch._foreach_norm(list(gradients), 2.0, dtype=torch.float32 if narrow else None)
        except (RuntimeError, TypeError):  # a sparse gradient, or a mixture that the fused kernel does not take
            norms = tuple(_one_norm(g) for g in gradients)
        device = norms[0].device
        total: torch.Tensor = torch.linalg.vector_norm(
            torch.stack([n if n.device == device else n.to(device) for n in norms])
        )
        return total.to(torch.float32)


def _one_norm(gradient: torch.Tensor) -> torch.Tensor:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    norm: torch.Tensor = torch.linalg.vector_norm(values)
    return norm.to(torch.float32)


def _value(given: Value) -> Value:
    return own_copy(given) if isinstance(given, torch.Tensor) else float(given)
