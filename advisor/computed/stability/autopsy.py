"""Finds the cause of the first non-finite value of a training run. Each check looks for one cause, and returns None if the
record of the training hook does not show it."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from advisor.computed import computed
from advisor.model.autopsy import AutopsyRecord, ForwardFault, HistoryRow, read_autopsy_record
from advisor.model.errors import AdvisorError
from advisor.model.study import Study, Trial
from advisor.model.words import count, share

Certainty = Literal["certain", "likely", "open"]

MIN_OUTLIER_BATCH_RATIO = 1e3
"""Minimum ratio of the largest value of a faulty batch to that of the following ones."""
GROWTH, RISING_STEPS = 100.0, 2
"""A diverged norm exceeds `GROWTH` times the usual one, and a tenth of that for at least `RISING_STEPS` steps."""
MAX_UPDATE_NORM_RATIO = 3.0
"""Maximum ratio of the norms of an update and of all parameters at a suitable learning rate."""
MAX_INITIAL_WEIGHT_GAIN = 10.0
"""Maximum `TensorFacts.weight_gain` of a correctly initialised weight matrix."""
FIRST_STEPS, EARLY_STEPS = 3, 100
"""First steps in which a wrong initialisation alone causes non-finite values, or does so through growing values."""
MAX_RATE_TIMES_DECAY = 1.0
"""Above this product of learning rate and weight decay, a step changes the sign of weights."""
MIN_LOSS_SCALE_RATIO = 16.0
"""Minimum ratio of the loss of the backward pass to the logged loss that shows a loss scale."""
_SINGULAR_DERIVATIVES = {
    "Sqrt": "the derivative of the root is infinite at 0",
    "Pow": "the derivative of a power below 1 is infinite at 0",
    "Log": "the derivative of the logarithm is infinite at 0",
    "Div": "the derivative of a division is infinite at a denominator of 0",
    "Acos": "the derivative of acos is infinite at -1 and 1",
    "Asin": "the derivative of asin is infinite at -1 and 1",
    "Atan2": "the derivative of atan2 does not exist at (0, 0)",
}
_HALF_PRECISION_DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Diagnosis:
    """The cause of the first non-finite value of a training run."""

    cause: str
    """batch, rate, initialisation, optimizer, accumulation, loss scale, weight decay, buffer, layer, precision, operation or
    unknown."""
    certainty: Certainty
    culprit: str
    """Sentence that states the cause and the evidence for it."""
    advice: str


@computed
def diagnosed_trials(study: Study) -> tuple[tuple[Trial, Diagnosis], ...]:
    """Return each trial that has a readable autopsy record, with its diagnosis."""
    diagnosed = []
    for trial in study.trials:
        with contextlib.suppress(AdvisorError):  # a trial may have a damaged record, or the tag but no readable file
            if "autopsy" in trial.facts:
                diagnosed.append((trial, diagnose(read_autopsy_record(trial.facts["autopsy"]))))
    return tuple(diagnosed)


def diagnose(record: AutopsyRecord) -> Diagnosis:
    for check in _DIAGNOSTIC_CHECKS:
        if (found := check(record)) is not None:
            return found
    return _unknown_cause(record)


# The batch.


def _diagnose_batch(record: AutopsyRecord) -> Diagnosis | None:
    for place in (record, *record.spikes):
        for tensor in place.batch or ():
            batch_text = f"step {place.step:,} (batch {place.number or 0:,} of epoch {place.epoch or 0:,}, from 0)"
            where = f"{(f'tensor {tensor.name}' if tensor.name else 'the tensor')} of {batch_text}"
            usual = [one for batch in place.following for one in batch if one.name == tensor.name]
            if tensor.bad and not any(one.bad for one in usual):
                bad = f"The batch: {where} has {count(tensor.bad, 'non-finite value')}."
                return Diagnosis(
                    "batch", "certain", bad, "Repair or drop the non-finite examples, and check the data for more."
                )
            if tensor.ignored == 1 and place is record:
                ignored = f"The batch: all labels in {where} are -100, so the mean loss divides by 0."
                return Diagnosis("batch", "certain", ignored, "Skip batches in which all labels are ignored.")
            largest = max((one.max or 0.0 for one in usual), default=0.0)
            if tensor.max and largest and tensor.max > MIN_OUTLIER_BATCH_RATIO * largest:
                huge = f"The batch: {where} has a value of size {tensor.max:.3g}; later batches reach {largest:.3g}."
                return Diagnosis("batch", "certain", huge, "Repair the examples with huge values, or clip the inputs.")
    return None


# The optimizer.


def _optimizer_groups(record: AutopsyRecord) -> Iterator[tuple[str, dict[str, float]]]:
    for optimizer in record.optimizers:
        for group in optimizer.groups:
            yield optimizer.name, {k: float(v) for k, v in group.items() if isinstance(v, (int, float))}


def _diagnose_epsilon(record: AutopsyRecord) -> Diagnosis | None:
    names = [name for name, group in _optimizer_groups(record) if group.get("eps") == 0]
    if not names or not record.parameters.bad:
        return None
    explained = max((o.state.explained or 0.0 for o in record.optimizers), default=0.0)
    certainty: Certainty = "certain" if explained > 0.99 else "likely"
    culprit = f"The optimizer: {names[0]} has eps=0 and divides by the root of a second moment of 0."
    return Diagnosis("optimizer", certainty, culprit, "Set eps to 1e-8 or more.")


def _diagnose_accumulation(record: AutopsyRecord) -> Diagnosis | None:
    counts, versions = record.counts, record.grad_versions
    per_step = max(counts.backwards / max(counts.steps, 1), 1) + (counts.clips > 0)
    if counts.steps < 4 or not versions or not _has_grown(record):
        return None
    if max(versions) + 2 >= counts.backwards and max(versions) < (per_step + 0.5) * counts.steps:
        culprit = f"Gradient accumulation: the gradients of all {counts.backwards:,} backward passes were added up."
        return Diagnosis("accumulation", "likely", culprit, "Call optimizer.zero_grad() in each step.")
    return None


def _diagnose_loss_scale(record: AutopsyRecord) -> Diagnosis | None:
    passed, logged = record.losses
    ratio = passed / logged if math.isfinite(passed) and math.isfinite(logged) and logged else 0.0
    rows = record.history.before
    used = ratio or record.scale or 0.0
    scale = f"The loss scale: the backward pass used {used:.4g} times the loss, and a step was made without unscaling."
    overflowed = record.backward_loss is not None and record.metric == "grad_norm" and math.isinf(record.backward_loss)
    fault = record.forward_fault
    unscaled = record.scale is not None and record.scale >= MIN_LOSS_SCALE_RATIO and not any(row.loss_scale for row in rows)
    if unscaled or (ratio >= MIN_LOSS_SCALE_RATIO and not any(row.loss_scale for row in rows)):
        return Diagnosis("loss scale", "likely", scale, "Call scaler.step(optimizer), then scaler.update().")
    if overflowed and fault is None and not record.parameters.bad and _is_logged_loss_finite(record):
        text = "The loss scale: the scaled loss overflowed, and the logged loss is finite."
        return Diagnosis("loss scale", "likely", text, "Lower the scale, or let torch.amp.GradScaler choose it.")
    return None


def _is_logged_loss_finite(record: AutopsyRecord) -> bool:
    return any(row.step == record.step and row.loss is not None and math.isfinite(row.loss) for row in record.history.after)


def _diagnose_fixed_loss_scale(record: AutopsyRecord) -> Diagnosis | None:
    graph, gradients = record.graph, record.gradients
    if graph is None or gradients is None or gradients.bad < gradients.tensors or not _is_logged_loss_finite(record):
        return None
    if graph.custom or graph.operations[-1:] not in (("Mul",), ("Div",)) or _SINGULAR_DERIVATIVES.keys() & graph.operations:
        return None
    text = "The loss scale: the loss is finite, no gradient is finite, and the last operation multiplies the loss."
    return Diagnosis("loss scale", "likely", text, "Lower the loss scale, or let torch.amp.GradScaler choose it.")


def _diagnose_learning_rate(record: AutopsyRecord) -> Diagnosis | None:
    if any(not math.isfinite(group.get("lr", 0.0)) for _, group in _optimizer_groups(record)):
        return Diagnosis("rate", "certain", "The learning rate is not finite.", "Repair the schedule.")
    return None


def _diagnose_weight_decay(record: AutopsyRecord) -> Diagnosis | None:
    for _, group in _optimizer_groups(record):
        product = group.get("lr", 0.0) * group.get("weight_decay", 0.0)
        if product > MAX_RATE_TIMES_DECAY:
            culprit = f"The weight decay: rate x decay is {product:.3g}, so each step overshoots 0 by {share(product - 1)}."
            return Diagnosis("weight decay", "certain" if product > 2 else "likely", culprit, "Lower the weight decay.")
    return None


# Checks of the initialisation and of divergence.


def _diagnose_initialisation(record: AutopsyRecord) -> Diagnosis | None:
    largest = max(record.start, key=lambda tensor: tensor.weight_gain, default=None)
    if largest is None or not largest.weight_gain > MAX_INITIAL_WEIGHT_GAIN or record.step > EARLY_STEPS:
        return None
    if record.step >= FIRST_STEPS and not _has_grown(record):
        return None
    culprit = (
        f"The initialisation: {largest.name} began at size {largest.rms:.3g}, {largest.weight_gain:.3g} times a usual one."
    )
    return Diagnosis("initialisation", "likely", culprit, "Initialise the layer with a gain near 1.")


def _has_grown(record: AutopsyRecord) -> bool:
    """Return whether the gradient norm or the absolute loss grew before the first non-finite value."""
    return any(_is_growing(values) for values in _loss_and_norm_series(record))


def _loss_and_norm_series(record: AutopsyRecord) -> Iterator[list[float]]:
    rows: tuple[HistoryRow, ...] = record.history.before
    yield [row.grad_norm for row in rows if row.grad_norm is not None]
    yield [abs(row.loss) for row in rows if row.loss is not None]


def _is_growing(values: list[float]) -> bool:
    if len(values) < RISING_STEPS + 1:
        return False
    usual = min(statistics.quantiles(values, n=4)[0], statistics.median(values[:5]))
    # A norm of a step that a gradient scaler skipped may be NaN; it does not end the growth.
    fallen = any(value <= usual * GROWTH / 10 for value in values[-RISING_STEPS:])
    return max(values[-3:]) > GROWTH * usual > 0 and not fallen


def _diagnose_divergence(record: AutopsyRecord) -> Diagnosis | None:
    grew, weight = _has_grown(record), _find_grown_weight(record)
    if not grew and weight is None:
        return None
    values = next((series for series in _loss_and_norm_series(record) if _is_growing(series)), [])
    rates = [row.learning_rate for row in (*record.history.first, *record.history.before) if row.learning_rate]
    early = rates and rates[0] >= max(rates) * 0.99 and record.step <= (record.max_train_steps or 1000) / 5
    hint = ", or warm it up: the training began with the full rate" if early else ""
    rate = f" {rates[-1]:.3g}" if rates else ""
    growth = (
        f"the gradient norm or loss grew from {min(values):.3g} to {values[-1]:.3g}"
        if values
        else f"{weight} grew far beyond its initial value"
    )
    culprit = f"The rate: the training diverged at rate{rate}; {growth} before step {record.step:,}."
    return Diagnosis("rate", "likely", culprit, f"Lower the learning rate{hint}.")


def _find_grown_weight(record: AutopsyRecord) -> str | None:
    """Return the name of a weight that grew `GROWTH`-fold within the first steps, too few to show growth of the norm or loss."""
    if record.step > FIRST_STEPS:
        return None
    rows = [(row.learning_rate or 0.0) * (row.grad_norm or 0.0) for row in record.history.before]
    if (
        any(o.name == "SGD" for o in record.optimizers)
        and max(rows, default=0.0) > MAX_UPDATE_NORM_RATIO * record.start_norm > 0
    ):
        return "the whole model"
    start = {tensor.name: tensor.rms for tensor in record.start}
    for tensor in record.parameters.largest:
        before = start.get(tensor.name)
        if tensor.rms and before and tensor.rms > GROWTH * before:
            return tensor.name
    return None


# Tensors and operations.


def _diagnose_layer(record: AutopsyRecord) -> Diagnosis | None:
    bad = record.parameters
    if record.late or not bad.first:
        return None
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in bad.bad_names))
    if len(layers) > 1 and bad.bad > bad.tensors / 2:
        text = f"The update: {bad.bad} of {bad.tensors} parameters became non-finite, though the last gradient norm was finite."
        return Diagnosis("optimizer", "likely", text, "Check the optimizer's hyperparameters and the learning rate.")
    first = bad.first[0]
    rows = f", in rows {', '.join(map(str, first.bad_rows))}" if first.bad_rows else ""
    values = count(first.bad, "non-finite value")
    text = f"The layer {layers[0]}: {first.name} has {values}{rows}, before any gradient was non-finite."
    return Diagnosis(
        "layer",
        "certain",
        text,
        f"Find what wrote the non-finite values of {first.name}; the optimizer's last gradient was finite.",
    )


def _diagnose_buffer(record: AutopsyRecord) -> Diagnosis | None:
    if record.parameters.bad and not record.late:
        return None
    frozen = [buffer for buffer in record.buffers if not buffer.training]
    if not frozen:
        return None
    values = count(frozen[0].bad, "non-finite value")
    text = f"The buffer {frozen[0].name}: it has {values}, and its layer does not update it in training."
    return Diagnosis("buffer", "certain", text, f"Restore the buffer {frozen[0].name} from a good checkpoint, or recompute it.")


def _forward_fault(record: AutopsyRecord) -> ForwardFault | None:
    """Return the first non-finite result of the forward pass; None if non-finite parameters caused it."""
    return None if record.parameters.bad else record.forward_fault


def _diagnose_precision(record: AutopsyRecord) -> Diagnosis | None:
    fault = _forward_fault(record)
    if fault is None or fault.dtype not in _HALF_PRECISION_DTYPES or fault.why not in ("result", "exp overflows"):
        return None
    limit = "65,504" if fault.dtype == "float16" else "3.4e38"
    text = f"The precision: {fault.operation}{_locate(fault.after, fault.before)} exceeds {limit}, the limit of {fault.dtype}."
    return Diagnosis("precision", "likely", text, f"Compute {fault.operation} in float32, or use bfloat16 in place of float16.")


def _diagnose_forward_pass(record: AutopsyRecord) -> Diagnosis | None:
    fault = _forward_fault(record)
    if fault is None:
        return None
    around = _locate(fault.after, fault.before)
    if fault.why not in ("result", "input"):
        text = f"The operation {fault.operation}{around}: {fault.why}."
        return Diagnosis(
            "operation", "certain", text, f"Keep the argument of {fault.operation} in range: clamp it, or add a small constant."
        )
    if fault.why == "input":
        return Diagnosis("batch", "likely", f"The input of {fault.operation}{around} is not finite.", "Check the data.")
    if "softmax" in fault.operation.lower() or "Attention" in fault.operation:
        mask = "a row is masked entirely" if fault.masked else "a row has no finite entry"
        text = f"The operation {fault.operation}{around}: {mask}."
        return Diagnosis(
            "operation", "certain" if fault.masked else "likely", text, "Leave one entry of each attention row unmasked."
        )
    text = f"The operation {fault.operation}{around} made the first non-finite value of the forward pass."
    return Diagnosis("operation", "likely", text, f"Check the arguments of {fault.operation}.")


def _diagnose_backward_pass(record: AutopsyRecord) -> Diagnosis | None:
    graph, gradients = record.graph, record.gradients
    if graph is None or gradients is None or (record.parameters.bad and not record.late):
        return None
    if not _is_logged_loss_finite(record):
        return None
    around = _locate(graph.after, graph.before)
    if graph.custom:
        text = f"The backward pass of {graph.custom[-1]}{around}, an operation of your own: gradients are finite up to it."
        return Diagnosis("operation", "likely", text, f"Test {graph.custom[-1]} with torch.autograd.gradcheck.")
    if not gradients.bad:
        grows = next((one for one in ("Exp", "Expm1", "Pow") for op in graph.operations if op.partition("(")[0] == one), None)
        if grows is None:
            return None
        text = f"The operation {grows}{around}: its result is so large that the norm of the gradient overflows."
        return Diagnosis("operation", "likely", text, f"Bound the argument of {grows}.")
    for operation in reversed(graph.operations):
        if operation in _SINGULAR_DERIVATIVES:
            text = f"The backward pass of {operation}{around}: {_SINGULAR_DERIVATIVES[operation]}. The loss is finite."
            return Diagnosis("operation", "likely", text, f"Add a small constant to the argument of {operation}.")
    return None


def _locate(after: str | None, before: str | None) -> str:
    places = [f"after {after}" if after else "", f"before {before}" if before else ""]
    return "".join(f" {place}" for place in places if place) + ("" if before else " (in the loss)" if after else "")


def _unknown_cause(record: AutopsyRecord) -> Diagnosis:
    needs = ['the batch (autopsy="batch" keeps it)'] if record.batch is None else []
    needs += ["the batches of the other ranks"] if record.ranks > 1 else []
    needs += ["the forward pass (replay the step)"] if record.late else []
    text = f"The cause cannot be told: it needs {' and '.join(needs) or 'a replay of the step'}."
    if suspects := [o for o in (record.graph.operations if record.graph else ()) if o in _SINGULAR_DERIVATIVES]:
        text += f" The loss contains {', '.join(suspects)}, which have no finite value or derivative at some arguments."
    return Diagnosis(
        "unknown", "open", text, "Replay the step as shown below. The replay checks each value when it is computed."
    )


_DIAGNOSTIC_CHECKS: tuple[Callable[[AutopsyRecord], Diagnosis | None], ...] = (
    _diagnose_learning_rate,
    _diagnose_batch,
    _diagnose_epsilon,
    _diagnose_weight_decay,
    _diagnose_loss_scale,
    _diagnose_accumulation,
    _diagnose_initialisation,
    _diagnose_divergence,
    _diagnose_buffer,
    _diagnose_layer,
    _diagnose_precision,
    _diagnose_forward_pass,
    _diagnose_backward_pass,
    _diagnose_fixed_loss_scale,
)
