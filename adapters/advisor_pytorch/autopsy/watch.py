"""Watches a training run for its first non-finite loss or gradient norm, and then collects facts that explain this value.

A finite step costs one reference to the batch, and a comparison of numbers that are in host memory. On the CPU, the model is
inspected before the update with non-finite gradients. On other devices, the writer thread learns of the value some steps later;
until then, a ring buffer on the device keeps the norms of each parameter's gradient.
"""

from __future__ import annotations

import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from advisor.contract.redact import one_line_error
from advisor_pytorch.autopsy import inspection
from advisor_pytorch.autopsy.graph import AutogradGraph
from advisor_pytorch.steps.patches import backward_patches

AutopsyMode = Literal[True, False, "batch"]
Facts = dict[str, Any]

MAX_NONFINITE_LOSS_INSPECTIONS = 8
"""Maximum inspections at a non-finite loss whose step is then skipped, for example by a gradient scaler."""
MAX_SPIKES, SPIKE_FACTOR, MIN_STEPS = 4, 100.0, 5
"""After `MIN_STEPS` steps, a norm of `SPIKE_FACTOR` times the largest is a spike; the first `MAX_SPIKES` are described."""
FOLLOWING_BATCHES, FOLLOWING_STEPS = 2, 3
"""Number of later batches that are described for comparison, and maximum steps to wait for them."""
RING_VALUES, RING_BATCH_BYTES = 2**18, 2**28
"""Maximum gradient norms in the ring buffer, and bytes of the batches kept with `autopsy="batch"`."""
MAX_LISTED_TENSORS = 60
"""Maximum number of buffers, and of names of non-finite tensors, that the autopsy file lists."""


REPLAY_VARIABLE = "ADVISOR_AUTOPSY"
"""If the environment variable ADVISOR_AUTOPSY is "replay", values on all devices are read immediately."""
DeviceReadMode = Literal["cpu", "all", "none"]


class SeenBatch(NamedTuple):
    """A batch of training data; its epoch and its number in the epoch count from 0."""

    step: int
    epoch: int
    number: int
    batch: Any


class Autopsy:
    """Collects the facts in the training thread and passes them to `write(facts, batches)`, which is called at most twice."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        write: Callable[[Facts, list[SeenBatch]], None],
        warn: Callable[[str, str], None],
        *,
        keeps_batches: bool,
        start_step: int = 0,
    ) -> None:
        self._model, self._optimizers, self._write, self._warn = model, optimizers, write, warn
        self._keeps_batches = keeps_batches
        self.read_mode: DeviceReadMode = "all" if os.environ.get(REPLAY_VARIABLE) == "replay" else "cpu"
        """Tensors that are read immediately: CPU tensors, or all in a replay, which waits for the device."""
        self.late_non_finite_step: int | None = None
        """First step with a non-finite value that the writer thread has found; None before it finds one."""
        self.next_step = start_step
        self._epoch, self._number = 0, -1
        self._batches: deque[SeenBatch] = deque(maxlen=1)
        self._norms: deque[tuple[int, torch.Tensor]] = deque(maxlen=2)
        self._loss: weakref.ref[torch.Tensor] | None = None
        self._backward_loss, self._pair = math.nan, (math.nan, math.nan)
        self._candidate: Facts | None = None
        self._counts = {"steps": 0, "backwards": 0, "clips": 0}
        self._inspections, self._steps_left = 0, FOLLOWING_STEPS
        self._largest_norm = 0.0
        self._spikes: list[Facts] = []
        self._unfinished: list[Facts] = []
        self._record: Facts | None = None
        self._done = False
        self._start_norms = inspection.initial_parameter_norms(model)
        self._listener = self._stop_watch_on_error(self._on_backward)
        backward_patches.add_listener(self._listener)

    def stop(self) -> None:
        if self._record is None and self.late_non_finite_step is not None:
            self._stop_watch_on_error(self._begin_late_record)()
        self._finish_watch()

    def _finish_watch(self) -> None:
        if not self._done and self._record is not None:
            self._write_facts()
        self._done = True
        backward_patches.remove_listener(self._listener)
        self._batches.clear()
        self._norms.clear()

    def _stop_watch_on_error(self, function: Callable[..., None]) -> Callable[..., None]:
        """An error in `function` stops watching and logs a warning."""

        def guarded(*args: Any) -> None:
            if self._done:
                return
            try:
                function(*args)
            except Exception as error:
                self._done = True
                self._warn("autopsy", f"no autopsy of this run ({one_line_error(error)}); training continues")

        return guarded

    # The training loop calls the methods below.

    def begin_epoch(self) -> None:
        self._epoch, self._number = self._epoch + (self._number >= 0), -1

    def on_batch(self, batch: Any) -> None:
        """Keep a reference to the batch until the next one arrives; with `autopsy="batch"`, for several steps."""
        if self._done:
            return
        self._number += 1
        self._batches.append(SeenBatch(self.next_step, self._epoch, self._number, batch))
        if self._keeps_batches and self._batches.maxlen == 1:
            sizes = [t.numel() * t.element_size() for _, t in inspection.named_tensors(batch)]
            self._batches = deque(self._batches, max(min(512, RING_BATCH_BYTES // max(sum(sizes), 1)), 1))
        if self._unfinished:
            self._stop_watch_on_error(self._add_following_batch)(batch)

    def _add_following_batch(self, batch: Any) -> None:
        for facts in self._unfinished:
            facts["following"].append(inspection.batch_facts(batch))
        self._unfinished = [facts for facts in self._unfinished if len(facts["following"]) < FOLLOWING_BATCHES]
        if self._record is not None and not self._unfinished:
            self._finish_watch()

    def on_loss(self, loss: float | torch.Tensor) -> None:
        if self._done or self.read_mode == "none" or (isinstance(loss, torch.Tensor) and not self._can_read_now(loss)):
            return
        loss = float(loss)
        if math.isfinite(loss):
            self._pair = (self._backward_loss, loss)
        elif self._record is None:
            self._stop_watch_on_error(self._begin_record)("loss", loss, max(self.next_step - 1, 0))

    # PyTorch's hooks call the methods below.

    def _on_backward(self, loss: torch.Tensor) -> None:
        self._counts["backwards"] += 1
        if self._record is not None:
            if "graph" not in self._record:
                self._record["graph"] = self._graph_facts(loss, self._record)
            return
        self._loss = weakref.ref(loss)
        if self.late_non_finite_step is not None:
            self._begin_late_record(loss)
        elif self._can_read_now(loss) and loss.numel() == 1:
            self._backward_loss = value = loss.item()
            if not math.isfinite(value) and self._inspections < MAX_NONFINITE_LOSS_INSPECTIONS and self._candidate is None:
                self._candidate = self._inspect_model(loss) | {"backward_loss": str(value)} | self._batch_facts(self.next_step)

    def on_clip(self, norm: torch.Tensor | None) -> None:
        """Inspect the gradients before clipping, which would spread a non-finite value to all of them."""
        if not self._done:
            self._counts["clips"] += 1
            if self._record is None and norm is not None and self._can_read_now(norm) and not math.isfinite(norm):
                self._stop_watch_on_error(self._add_gradients)()

    def on_step(self, step: int, norm: torch.Tensor | None, parts: torch.Tensor | None) -> None:
        """Check the global gradient norm before optimizer step `step`; `parts` holds the norm of each parameter's gradient."""
        if self._done:
            return
        self.next_step = step + 1
        self._counts["steps"] += 1
        if self._record is not None:
            self._steps_left -= 1
            if self._steps_left == 0:
                self._finish_watch()
        elif self.late_non_finite_step is not None:
            self._stop_watch_on_error(self._begin_late_record)()
        elif norm is not None and self._can_read_now(norm):
            value = float(norm)
            if value <= self._largest_norm:  # false for NaN
                self._candidate = None
            else:
                self._stop_watch_on_error(self._check_gradient_norm)(step, value)
        elif parts is not None:
            if self._norms.maxlen == 2:
                self._norms = deque(maxlen=max(min(1024, RING_VALUES // len(parts)), 2))
            self._norms.append((step, parts))

    def on_skip(self) -> None:
        self._candidate = None

    def _can_read_now(self, tensor: torch.Tensor) -> bool:
        return self.read_mode == "all" or (self.read_mode == "cpu" and tensor.is_cpu)

    def _check_gradient_norm(self, step: int, norm: float) -> None:
        if not math.isfinite(norm):
            self._add_gradients()
            self._begin_record("grad_norm", norm, step)
            return
        self._candidate = None
        steps = self._counts["steps"]
        if norm > self._largest_norm:
            if steps > MIN_STEPS and norm > SPIKE_FACTOR * self._largest_norm > 0 and len(self._spikes) < MAX_SPIKES:
                spike = {"step": step, "grad_norm": norm, "before": self._largest_norm} | self._batch_facts(step)
                self._spikes.append(spike)
                self._unfinished.append(spike)
            self._largest_norm = norm

    # The methods below are called after the first non-finite value.

    def _add_gradients(self) -> None:
        """Add facts about the gradients before clipping or an update changes them."""
        if self._candidate is None:
            if self._inspections >= MAX_NONFINITE_LOSS_INSPECTIONS:
                return
            self._candidate = self._inspect_model(None)
        if "gradients" not in self._candidate:
            parameters = inspection.named_parameters(self._model, self._optimizers)
            self._candidate["gradients"] = _summarise_tensors(inspection.gradient_facts(parameters))

    def _begin_record(self, metric: str, value: float, step: int) -> None:
        facts = self._candidate or self._inspect_model(None)
        record = {"step": step, "metric": metric, "value": str(value), "late": False, **self._batch_facts(step)}
        self._record = record | facts
        self._complete_facts()

    def _begin_late_record(self, loss: torch.Tensor | None = None) -> None:
        """Start the record about a non-finite value of a past step, which the writer thread has found."""
        step = self.late_non_finite_step or 0
        lag = max(self.next_step - step, 0)
        self._record = {"step": step, "metric": "", "late": True, "lag": lag, **self._batch_facts(step)}
        self._record |= self._inspect_model(loss)
        if (gradients := self._gradients_in_ring(step)) is not None:
            self._record["gradients"] = gradients
        self._complete_facts()

    def _complete_facts(self) -> None:
        assert self._record is not None
        self._record |= {"spikes": self._spikes, "counts": dict(self._counts), "losses": [*map(str, self._pair)]}
        loss = self._loss() if self._loss is not None else None
        if loss is not None and loss.grad_fn is not None:
            self._record["graph"] = self._graph_facts(loss, self._record)
        self._unfinished = [self._record]
        self._write_facts()

    def _write_facts(self) -> None:
        assert self._record is not None
        step = self._record["step"]
        batches = [seen for seen in self._batches if self._keeps_batches and step - 2 <= seen.step <= step]
        self._write(dict(self._record), batches)

    def _inspect_model(self, loss: torch.Tensor | None) -> Facts:
        """Return all facts except facts about gradients. loss: the current loss; None if its backward pass has already
        started."""
        self._inspections += 1
        parameters = inspection.named_parameters(self._model, self._optimizers)
        facts: Facts = {
            "start": inspection.largest_initial_gains(self._model, self._start_norms),
            "start_norm": math.hypot(*map(float, self._start_norms)),
            "scale": inspection.loss_scale(),
            "parameters": _summarise_tensors([inspection.tensor_facts(name, p) for name, p in parameters.items()]),
            "buffers": inspection.buffer_facts(self._model)[:MAX_LISTED_TENSORS],
            "optimizers": inspection.optimizer_facts(self._optimizers)[:4],
            "grad_versions": [p.grad._version for p in parameters.values() if p.grad is not None][:3],
        }
        if loss is not None and loss.grad_fn is not None:
            graph = AutogradGraph(loss, parameters)
            facts["forward_fault"] = graph.first_forward_fault() if graph.is_of_model else None
        return facts

    def _graph_facts(self, loss: torch.Tensor, record: Mapping[str, Any]) -> Facts | None:
        bad = record.get("gradients", {}).get("bad_names", ())
        graph = AutogradGraph(loss, inspection.named_parameters(self._model, self._optimizers))
        return graph.operations_between(bad) if graph.is_of_model else None

    def _batch_facts(self, step: int) -> Facts:
        """Return facts about the batch of a step; if the batch was not kept, return only that it existed."""
        seen = next((one for one in reversed(self._batches) if one.step == step), None)
        if seen is None:
            return {"batch": None, "following": []}
        batch_position = {"epoch": seen.epoch, "number": seen.number}
        return {"batch": inspection.batch_facts(seen.batch), **batch_position, "following": []}

    def _gradients_in_ring(self, step: int) -> Facts | None:
        gradient_norms = next((norms.tolist() for at, norms in self._norms if at == step), None)
        if gradient_norms is None:
            return None
        optimizer_parameters = [p for group in self._optimizers[0].param_groups for p in group["params"]]
        names_by_id = {id(p): name for name, p in inspection.named_parameters(self._model, self._optimizers).items()}
        for candidates in (
            [p for p in optimizer_parameters if p.grad is not None],
            [p for p in optimizer_parameters if p.requires_grad],
            optimizer_parameters,
        ):
            if len(candidates) == len(gradient_norms):
                norms = zip(candidates, gradient_norms, strict=True)
                return _summarise_tensors([{"name": names_by_id[id(p)], "bad": int(not math.isfinite(n))} for p, n in norms])
        return None


def _summarise_tensors(tensors: Sequence[Facts]) -> Facts:
    non_finite = [facts for facts in tensors if facts["bad"]]
    sorted_by_gain = sorted((f for f in tensors if "rms" in f), key=lambda f: -f["rms"] * math.sqrt(math.prod(f["shape"][1:])))
    return {
        "tensors": len(tensors),
        "bad": len(non_finite),
        "bad_names": [facts["name"] for facts in non_finite[:MAX_LISTED_TENSORS]],
        "first": non_finite[:6],
        "largest": sorted_by_gain[:6],
    }
