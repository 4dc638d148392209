"""Captures one row of metrics per optimizer step, from the optimizers' hooks and from calls in the training loop.

This code runs in the training thread, so it only appends numbers and tensors to lists; the writer thread does the rest (`rows`).
"""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from advisor import contract
from advisor.contract.redact import one_line_error
from advisor_pytorch.steps.device import ScalarValue, detached_copy, logged_value
from advisor_pytorch.steps.gradients import NormFunction, gradient_norm
from advisor_pytorch.steps.norms import StepNorms
from advisor_pytorch.steps.other_optimizers import UncapturedOptimizers
from advisor_pytorch.steps.patches import GradientClipping, clipping_patches, is_unscaled, scaler_patches
from advisor_pytorch.steps.readings import LearningRateReader, PendingLosses, StepClock
from advisor_pytorch.steps.rows import PendingChunk, RowBuffer, SkippedStepCounter

MIN_PENDING_LOSSES_TO_WARN = 16
"""Minimum number of losses without an optimizer step, or of steps of an unknown optimizer, at which a warning is logged."""
MAX_PENDING_LOSSES = 1024
"""Maximum number of losses in memory that wait for their optimizer step; a step has fewer micro-batches than this."""
MAX_HAND_OVER_S = 0.25
"""Seconds after which the training thread passes its rows to the writer thread, at the end of the current step."""


class CaptureReceiver(Protocol):
    """Receives the data that `StepCapture` collects."""

    def submit_chunk(self, chunk: PendingChunk) -> None: ...

    def on_observed_tag(self, tag: str, value: str) -> None: ...

    def on_optimizer_replaced(self, k: int, optimizer: torch.optim.Optimizer) -> None: ...

    def warn(self, key: str, message: str) -> None: ...


class NonFiniteWatch(Protocol):
    """Watches a training run for its first non-finite value. Its methods must not raise errors."""

    def on_loss(self, loss: ScalarValue) -> None: ...

    def on_clip(self, norm: torch.Tensor | None) -> None: ...

    def on_step(self, step: int, norm: torch.Tensor | None, parts: torch.Tensor | None) -> None: ...

    def on_skip(self) -> None: ...


class StepCapture:
    """Captures the steps of `optimizers` until `stop` is called. Only the steps of the first (leading) optimizer are counted.

    A step's row of metrics starts after the `step()` of the leading optimizer. The row ends when the loop calls `add_loss`, or
    before the next step if the loop does not log every step. If the loop logs the losses of micro-batches before the optimizer
    step, the step's row contains their mean. A row contains the gradient norms of all optimizers that have made a step since
    the last row.

    A step that a gradient scaler skips has no row of metrics. If a fused optimizer skips a step, the step numbers have a gap,
    because the skip is known only on the device; a step that another optimizer skips has no number.

    losses_without_step: number of dropped losses; failures: number of errors; skipped: number of steps without a number.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        owner: CaptureReceiver,
        start_step: int = 0,
        batch_size: int | None = None,
        *,
        measure: NormFunction | None = gradient_norm,
        is_partial: bool = False,
        watch: NonFiniteWatch | None = None,
    ) -> None:
        """measure: computes gradient norms, or None. is_partial: whether they cover only this rank's shards (see `merging`)."""
        self._watch = watch
        self._optimizers, self._owner = list(optimizers), owner
        self._index = {id(optimizer): k for k, optimizer in enumerate(optimizers)}
        device = next((p.device for o in optimizers for g in o.param_groups for p in g["params"] if p.is_cuda), None)
        self._on_cuda = device is not None
        self._norms = StepNorms(self._optimizers, measure)
        self._rates = LearningRateReader(self._optimizers)
        self._clock = StepClock(device)
        self._losses = PendingLosses(batch_size)
        self._buffer = RowBuffer(is_partial=is_partial)
        self.alive = True
        """Whether steps are captured; False after `stop` and in a forked process."""
        self.next_step = self._start_step = start_step
        self.losses_without_step = self.failures = self.skipped = self._pending_skips = 0
        self._scaled = self._hook_ran = self._drops_loss = False
        self._begun: set[int] = set()
        self._closed_rows = 0
        self._noticed: dict[str, str] = {}
        self._skips = SkippedStepCounter()
        self._handed = time.perf_counter()
        self._row: list[float] | None = None
        self._scale: torch.Tensor | None = None
        self._overflowed: torch.Tensor | None = None
        self._reset_row()
        self._guarded_add_batch = self._safe_hook(self._add_batch)
        self._register_all_hooks()
        _live_captures.add(self)

    def _register_all_hooks(self) -> None:
        self._handles = [self._register_hooks(k) for k in range(len(self._optimizers))]
        self._others = UncapturedOptimizers(self._optimizers, self._follow_new_optimizer, self._safe_hook)
        self._clip_listener = self._safe_hook(self._on_clip)
        self._scaler_listener = self._safe_hook(self._on_scaler_step)
        clipping_patches.add_listener(self._clip_listener)
        scaler_patches.add_listener(self._scaler_listener)

    def stop(self) -> None:
        for handle in itertools.chain.from_iterable(self._handles):
            handle.remove()
        self._others.stop()
        clipping_patches.remove_listener(self._clip_listener)
        scaler_patches.remove_listener(self._scaler_listener)
        self._safe_hook(self._close_row)()
        if self._others.steps or self.next_step == self._start_step:
            self._drop_pending_losses()
        self._safe_hook(self.flush)()
        self.alive = False

    def describe_unmatched_losses(self) -> str:
        """Return one line about losses that belong to no captured optimizer step; "" if there are no such losses."""
        if not self.losses_without_step:
            return ""
        optimizer_note = f"; a different optimizer, {name}, made steps" if (name := self._others.name) else ""
        return f"losses without a step of the optimizer that was given: {self.losses_without_step:,}{optimizer_note}"

    def _register_hooks(self, k: int) -> tuple[Any, Any]:
        optimizer = self._optimizers[k]
        pre_step_hook = optimizer.register_step_pre_hook(self._safe_hook(partial(self._before_step, k)))
        return pre_step_hook, optimizer.register_step_post_hook(self._safe_hook(partial(self._after_step, k)))

    def _follow_new_optimizer(self, k: int, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer` has just made its first step on the parameters of optimizer k."""
        if k == 0:
            self._close_row()
        for handle in self._handles[k]:
            handle.remove()
        self._optimizers[k] = optimizer
        self._handles[k] = self._register_hooks(k)
        self._index = {id(one): j for j, one in enumerate(self._optimizers)}
        self._norms.forget_optimizer(k)
        self._rates = LearningRateReader(self._optimizers)
        if self._row is not None:
            self._read_rates()
        self._others.read_captured_optimizers()
        self._owner.on_optimizer_replaced(k, optimizer)
        self._end_step(k)

    def _safe_hook(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The hook does nothing after `stop` or in a forked process, and turns an error into a warning."""

        def guarded(*args: Any) -> Any:
            if not self.alive:
                return None
            try:
                return function(*args)
            except Exception as error:
                self.failures += 1
                self._owner.warn("capture", f"a step could not be captured ({one_line_error(error)}); training continues")
                return None

        return guarded

    # The training loop calls the methods below.

    def add_loss(self, loss: ScalarValue, grad_norm: ScalarValue | None = None, examples: int | None = None) -> None:
        """grad_norm: norm of the step's gradient; passing it says that a step was made."""
        if self._drops_loss:
            self._drops_loss = False
            return
        value = logged_value(loss)
        self._others.is_stepping = False  # a captured optimizer may have raised an exception in its last step
        self._losses.add_loss(value, examples)
        if self._watch is not None:
            self._watch.on_loss(value)
        if grad_norm is not None and self._row is None:  # no optimizer hook has run, as in the replay of a CUDA graph
            norm = grad_norm if isinstance(grad_norm, torch.Tensor) else torch.tensor(grad_norm, device="cpu")
            self._norms.set_total_norm(detached_copy(norm))
            self._start_row()
        if self._row is not None:
            self._close_row()
        elif len(self._losses) >= MIN_PENDING_LOSSES_TO_WARN:
            self._check_pending()

    def _check_pending(self) -> None:
        """Warn if losses arrive without optimizer steps, and limit the number of losses that wait for a step."""
        pending = len(self._losses)
        if self._others.steps >= MIN_PENDING_LOSSES_TO_WARN:
            text = f"steps of a different optimizer, {self._others.name}, are not logged: pass all optimizers to TuningLogger"
            self._owner.warn("other optimizer", text)
        if pending >= MAX_PENDING_LOSSES:
            self._drop_pending_losses()
            self._owner.warn("no step", f"losses are dropped: {pending:,} were logged without an optimizer step")

    def _drop_pending_losses(self) -> None:
        self.losses_without_step += len(self._losses)
        self._losses.clear()

    def add_batch(self, waited_s: float, examples: int | None) -> None:
        self._guarded_add_batch(waited_s, examples)

    def _add_batch(self, waited_s: float, examples: int | None) -> None:
        self._drops_loss = False
        if self._row is not None:  # losses logged after this call belong to the next step
            self._close_row()
        self._clock.add_batch(waited_s, examples)

    def restart_clock(self) -> None:
        self._clock.restart()

    def flush(self) -> None:
        self._handed = time.perf_counter()
        if stretches := self._buffer.take():
            self._owner.submit_chunk(PendingChunk(stretches, is_windowed=True, skips=self._skips))

    # PyTorch's hooks call the methods below.

    def _before_step(
        self, k: int, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._hook_ran = True
        self._begun.add(k)
        if k == 0:
            self._drops_loss = False
            if self._row is not None:
                self._close_row()
            if self._scaled:
                self._overflowed = getattr(optimizer, "found_inf", None)
        if self._is_capturing():
            return None
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._wrap_closure(k, args[1]), *args[2:]), kwargs
        if len(args) <= 1 and callable(kwargs.get("closure")):
            return args, kwargs | {"closure": self._wrap_closure(k, kwargs["closure"])}
        self._measure_step(k)
        return None

    def _measure_step(self, k: int) -> None:
        self._norms.before_step(k)
        if k == 0 and self._watch is not None and self._overflowed is None:
            self._watch.on_step(self.next_step, self._norms.latest_norm(k), self._norms.take_gradient_norms())

    def _wrap_closure(self, k: int, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure's first evaluation computes the gradient at the start of the step."""
        is_measured = False

        def wrapped() -> Any:
            nonlocal is_measured
            loss = closure()
            if not is_measured:
                is_measured = True
                self._safe_hook(self._measure_step)(k)
            return loss

        return wrapped

    def _after_step(self, k: int, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if k in self._begun:  # otherwise, the hook of a base class of the optimizer has already ended this step
            self._begun.remove(k)
            self._end_step(k)

    def _end_step(self, k: int) -> None:
        self._norms.after_step(k)
        if k == 0 and not self._is_capturing():
            self._start_row()

    def _on_clip(self, event: GradientClipping) -> None:
        scope = self._norms.affected_optimizers(event)
        if not scope.optimizers:
            return
        if 0 in scope.optimizers:
            self._close_row()
        tag = contract.TAG_GRAD_CLIP if event.by == "norm" else contract.TAG_GRAD_CLIP_VALUE
        if tag not in self._noticed:
            self._report_fact(tag, str(event.limit))
        if not self._is_capturing():
            self._norms.record_clipping(event, scope)
            if 0 in scope.optimizers and self._watch is not None:
                self._watch.on_clip(self._norms.latest_norm(0))

    def _on_scaler_step(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, begins: bool) -> None:
        k = self._index.get(id(optimizer))
        if k is not None and scaler.is_enabled():
            if begins:
                self._before_scaled_step(k, scaler, optimizer)
            elif not self._hook_ran:
                self._after_skipped_step(k)

    def _before_scaled_step(self, k: int, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        self._hook_ran = False
        scale = getattr(scaler, "_scale", None)  # calling `get_scale` would wait for the device
        if k == 0:
            self._close_row()
            self._scaled = True
            self._scale = detached_copy(scale) if scale is not None else None
        if scale is not None and not is_unscaled(scaler, optimizer):
            self._norms.unscale_norms(k, scale)

    def _after_skipped_step(self, k: int) -> None:
        self._norms.drop_norms(k)
        if k == 0:
            if self._watch is not None:
                self._watch.on_skip()
            self.skipped += 1
            self._pending_skips += 1
            self._reset_row()
            self._clock.restart()
            self._clock.discard_batches()
            self._drops_loss = True  # this loss belongs to the batch whose gradients overflowed

    # Rows.

    def _reset_row(self) -> None:
        self._row = self._scale = self._overflowed = None
        self._losses.clear()
        self._norms.clear()

    def _start_row(self) -> None:
        self._row = row = [self.next_step, time.time() * 1e3]
        self._seen, self._batches = self._clock.examples, self._clock.batches
        self._times = self._clock.end_step(row)
        self._read_rates()
        self.next_step += 1

    def _read_rates(self) -> None:
        self._rate_numbers, self._rate_tensors = self._rates.read()
        self._rate_names = self._rates.number_names, self._rates.tensor_names

    def _close_row(self) -> None:
        row = self._row
        if row is None:
            return
        tensors = self._losses.tensors
        tensor_losses, number_losses = len(tensors), len(self._losses.numbers)
        tensors += self._rate_tensors
        row += self._rate_numbers
        row += self._losses.numbers
        if examples := self._losses.explicit_examples or self._seen or self._losses.nominal_examples:
            row.append(examples)
        if self._scaled:
            row.append(self._pending_skips)
            self._pending_skips = 0
            tensors += [t for t in (self._scale, self._overflowed) if t is not None]
            scaler_key: object = (self._scale is not None, self._overflowed is not None)
        else:
            scaler_key = None
        norm_key = self._norms.append_values(tensors, row)
        key = (self._times, *self._rate_names, tensor_losses, number_losses, examples > 0, scaler_key, norm_key)
        self._buffer.append(key, self._norms, row, tensors, self._clock.events)
        if self._closed_rows < 2:  # if a loop logs the loss before its steps, two losses arrive for the first step
            self._closed_rows += 1
            self._report_batch_facts(examples, max(tensor_losses + number_losses, self._batches))
        self._reset_row()
        if self._clock.last_step_s - self._handed >= MAX_HAND_OVER_S:
            self.flush()

    def _is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured, during which `optimizer.step()` changes no parameters."""
        return self._on_cuda and torch.cuda.is_current_stream_capturing()

    def _report_batch_facts(self, examples: int, micro_batches: int) -> None:
        if examples:
            self._report_fact(contract.TAG_BATCH_SIZE, str(examples))
        if micro_batches > 1 or contract.TAG_MICRO_BATCHES in self._noticed:
            self._report_fact(contract.TAG_MICRO_BATCHES, str(micro_batches))

    def _report_fact(self, tag: str, value: str) -> None:
        if self._noticed.get(tag) != value:
            self._noticed[tag] = value
            self._owner.on_observed_tag(tag, value)


_live_captures: weakref.WeakSet[StepCapture] = weakref.WeakSet()


def _disable_in_child() -> None:
    for capture in _live_captures:
        capture.alive = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disable_in_child)  # in a forked loader worker, the copy must do nothing
