"""Collects facts about a training run that become known only while it runs, such as the chance levels of its metrics."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from advisor import contract
from advisor.contract.redact import one_line_error
from advisor_logging.table import MetricTable
from advisor_pytorch.facts import architecture, data, discovery, machine, run_tags, schedules
from advisor_pytorch.facts.residuals import AutogradGraph, compute_dtype, norm_order

_MAX_RATE_AS_FRACTION = 1.5
"""An accuracy or error rate above this value is assumed to be in percent, because it cannot be a fraction."""
_ACCURACY_OR_ERROR_NAMES = re.compile(
    r"(^|[^a-z])(acc|accuracy|top_?\d+|top_?\d+_?acc(uracy)?|err|error|error_rate|top_?\d+_?err(or)?)($|[^a-z])"
)
_ENTROPY_NAMES = re.compile(r"(^|[^a-z])(loss|nll|ce|xent|cross_?entropy|log_?loss|nll_loss|ce_loss)($|[^a-z])")
_PERPLEXITY_NAMES = re.compile(r"(^|[^a-z])(ppl|perplexity)($|[^a-z])")
_REGRESSION_NAMES = re.compile("mse|mae|rmse|squared|absolute|angular|relative|pixel|recon")


def chance_level_of(metric: str, classes: int, *, percent: bool = False) -> float | None:
    """Return the chance level of the metric named `metric` for `classes` equally frequent classes; None if the name is not that
    of a known metric.

    For C classes: accuracy 1/C, error rate 1 - 1/C (top-k accuracy: k/C), cross-entropy ln C in nats, perplexity C.
    """
    name = metric.lower()
    if _REGRESSION_NAMES.search(name):
        return None
    if match := _ACCURACY_OR_ERROR_NAMES.search(name):
        k = int(digits.group(1)) if (digits := re.search(r"top_?(\d+)", name)) else 1
        accuracy = min(k / classes, 1.0)
        rate = 1 - accuracy if "err" in name[match.start() :] else accuracy
        return 100 * rate if percent else rate
    if _PERPLEXITY_NAMES.search(name):
        return float(classes)
    return math.log(classes) if _ENTROPY_NAMES.search(name) else None


class ChanceLevels:
    """Computes `levels`, the value of `contract.TAG_CHANCE_LEVEL`, from the logged metrics whose names are known."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._percent: dict[str, bool] = {}
        self.levels: dict[str, float] = {}

    def update(self, values: Mapping[str, float]) -> bool:
        """Return whether `levels` changed."""
        changed = False
        for name, value in values.items():
            percent = self._percent.get(name, False) or value > _MAX_RATE_AS_FRACTION
            if self._percent.get(name) is percent:
                continue
            self._percent[name] = percent
            chance = chance_level_of(name, self._classes, percent=percent)
            if chance is not None and self.levels.get(name) != chance:
                self.levels[name], changed = chance, True
        return changed


NoteTagsFunction = Callable[[Mapping[str, str]], None]
WarnFunction = Callable[[str, str], None]
"""Function that logs a one-line warning, at most once per key."""


class Observations:
    """Observes a training run, and passes facts about it to `note` as tags of `advisor.contract`.

    `on_rows` and `sample` run in the writer thread, all other methods in the training thread. An error in a method causes one
    warning and is not raised.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        note: NoteTagsFunction,
        warn: WarnFunction,
        steps: int | None,
    ) -> None:
        """steps: planned number of optimizer steps."""
        self._model, self._optimizers, self._steps = model, list(optimizers), steps
        self._log_tags, self._warn = note, warn
        self._has_classes = self._has_scheduler = False
        self._chance: ChanceLevels | None = None
        self._batches: int | None = None
        self._micro_batches = 1
        self._has_discovered = False
        self.wants_loss = True
        self._tags: dict[str, str] = {}
        self._device = machine.device_sampler_of_model(model)
        with self._warn_on_error("the model"):
            self._log_tags(run_tags.setup_tags(model, optimizers))

    def describe_setup(self, scheduler: Any, classes: int | None) -> None:
        self._has_classes, self._has_scheduler = classes is not None, scheduler is not None
        with self._warn_on_error("the scheduler"):
            if (class_count := classes or architecture.number_of_classes(self._model)) is not None:
                self._set_classes(class_count)
            if scheduler is not None:
                schedulers = list(scheduler) if isinstance(scheduler, Sequence) else [scheduler]
                self._log_new_tags(_json_tag(contract.TAG_SCHEDULE, schedules.describe_schedule(schedulers, self._steps)))

    def loaders(self, train: object = None, valid: object = None) -> None:
        with self._warn_on_error("a loader"):
            if train is not None:
                self._batches = data.batches_per_epoch(train)
                self._log_new_tags(run_tags.training_loader_tags(train))
            if valid is not None:
                self._log_new_tags(run_tags.validation_loader_tags(valid))
            classes = data.number_of_classes(train) or data.number_of_classes(valid)
            if classes is not None and not self._has_classes:
                self._set_classes(classes)

    def inspect_loss(self, loss: object) -> None:
        self.wants_loss = False
        with self._warn_on_error("the position of normalisation layers"):
            if isinstance(loss, torch.Tensor) and loss.grad_fn is not None:
                self._inspect_graph(AutogradGraph([loss]))
            elif (order := architecture.declared_norm_order(self._model)) is not None:
                self._log_new_tags({contract.TAG_NORM_ORDER: order})

    def on_optimizer_replaced(self, k: int, optimizer: torch.optim.Optimizer) -> None:
        """Observe the new optimizer; the run's tags still describe the replaced optimizer."""
        self._optimizers[k] = optimizer

    def on_observed_tag(self, tag: str, value: str) -> None:
        if tag == contract.TAG_MICRO_BATCHES:
            self._micro_batches = max(int(value), 1)

    def tags(self) -> dict[str, str]:
        """Search once more for schedulers and averaged weights. Then return all facts observed so far as tags."""
        self._log_found_objects()
        return dict(self._tags)

    def _inspect_graph(self, graph: AutogradGraph) -> None:
        order = norm_order(graph, self._model) or architecture.declared_norm_order(self._model)
        tags = {} if order is None else {contract.TAG_NORM_ORDER: order}
        if (dtype := compute_dtype(graph)) is not None:
            tags[contract.TAG_PRECISION] = json.dumps({"parameters": run_tags.parameter_dtype(self._model), "compute": dtype})
        if graph.is_compiled() or architecture.is_compiled(self._model):
            tags[contract.TAG_COMPILED] = "true"
        self._log_new_tags(tags)

    # The writer thread calls the methods below.

    def on_rows(self, table: MetricTable) -> None:
        if self._chance is not None and self._chance.update({name: v[-1] for name, v in table.columns.items()}):
            self._log_new_tags({contract.TAG_CHANCE_LEVEL: json.dumps(self._chance.levels)})

    def sample(self, last: bool) -> Mapping[str, float] | None:
        """Called about once per second, and with `last=True` at the end of the run."""
        if not self._has_discovered and not last:
            self._has_discovered = True
            self._log_found_objects()
        if self._device is None:
            return None
        return self._device.read() if last else self._device.sample()

    def _log_found_objects(self) -> None:
        with self._warn_on_error("the learning-rate schedule and the weight averaging"):
            objects = discovery.find_schedule_and_averaging(self._model, self._optimizers, self._steps)
            schedule = None if self._has_scheduler else objects.schedule
            tags = _json_tag(contract.TAG_SCHEDULE, schedule) | _json_tag(contract.TAG_AVERAGING, objects.averaging)
            if self._batches is not None:
                tags[contract.TAG_STEPS_PER_EPOCH] = str(max(self._batches // self._micro_batches, 1))
            self._log_new_tags(tags)

    def _set_classes(self, classes: int) -> None:
        self._chance = ChanceLevels(classes)
        self._log_new_tags({contract.TAG_CLASSES: str(classes)})

    def _log_new_tags(self, tags: Mapping[str, str]) -> None:
        new = {tag: value for tag, value in tags.items() if self._tags.get(tag) != value}
        self._tags |= new
        if new:
            self._log_tags(new)

    @contextmanager
    def _warn_on_error(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._warn(what, f"{what} could not be described ({one_line_error(error)}); training continues")


def _json_tag(tag: str, value: Mapping[str, str] | None) -> dict[str, str]:
    return {} if value is None else {tag: json.dumps(value)}
