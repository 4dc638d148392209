"""Finds the cause of the first non-finite value of a training run. Each check looks for one cause, and returns None if the
autopsy record, which the training hook wrote, does not show this cause."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from advisor.computed import computed
from advisor.model.autopsy import AutopsyRecord, DamagedAutopsyError, ForwardFault, HistoryRow, read_autopsy_record
from advisor.model.errors import AdvisorError
from advisor.model.study import Study, Trial
from advisor.model.words import count, share, shorten

Certainty = Literal["certain", "likely", "open"]

MIN_OUTLIER_BATCH_RATIO = 1e3
"""Minimum ratio of the largest value of a faulty batch to the largest value of the following batches."""
MIN_DIVERGED_GROWTH = 100.0
"""Minimum ratio of a diverged loss, gradient norm or weight to its usual value."""
MIN_RISING_STEPS = 2
"""A value that diverged must be high in this number of last steps: above `MIN_DIVERGED_GROWTH` / 10 times its usual value."""
MAX_UPDATE_NORM_RATIO = 3.0
"""Maximum ratio of the norm of an update to the norm of all parameters at a suitable learning rate."""
MAX_INITIAL_WEIGHT_GAIN = 10.0
"""Maximum `TensorFacts.weight_gain` of a correctly initialised weight matrix."""
MAX_STEP_WITHOUT_GROWTH = 3
"""Maximum step at which a wrong initialisation causes non-finite values before the loss or gradient norm visibly grows."""
MAX_INITIALISATION_STEP = 100
"""Maximum step at which a wrong initialisation causes non-finite values at all."""
MAX_RATE_TIMES_DECAY = 1.0
"""Maximum product of learning rate and weight decay; above it, weight decay alone changes the sign of weights in each step."""
MIN_LOSS_SCALE_RATIO = 16.0
"""Minimum ratio of the loss in the backward pass to the logged loss that shows that the loss was scaled."""
MAX_SENTENCE_CHARS = 800
"""Maximum characters of a diagnosis's explanation or advice."""
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
    explanation: str
    """Sentence that states the cause and the evidence for it."""
    advice: str


@computed
def diagnosed_trials(study: Study) -> tuple[tuple[Trial, Diagnosis], ...]:
    """Return each trial that has a readable autopsy record, with its diagnosis."""
    diagnoses = []
    for trial in study.trials:
        with contextlib.suppress(AdvisorError):  # a trial may have a damaged record, or the tag but no readable file
            if "autopsy" in trial.facts:
                diagnoses.append((trial, diagnose(read_autopsy_record(trial.facts["autopsy"]))))
    return tuple(diagnoses)


def diagnose(record: AutopsyRecord) -> Diagnosis:
    """Raises DamagedAutopsyError if the record contains impossible values."""
    try:
        found = next((d for check in _DIAGNOSTIC_CHECKS if (d := check(record)) is not None), None) or _unknown_cause(record)
    except (ArithmeticError, LookupError, ValueError) as error:
        raise DamagedAutopsyError(error) from None
    # Names in a record may be of any length.
    explanation, advice = (shorten(text, MAX_SENTENCE_CHARS) for text in (found.explanation, found.advice))
    return replace(found, explanation=explanation, advice=advice)


# The batch.


def _diagnose_batch(record: AutopsyRecord) -> Diagnosis | None:
    for place in (record, *record.spikes):
        for tensor in place.batch or ():
            batch_text = f"step {place.step:,} (batch {place.number or 0:,} of epoch {place.epoch or 0:,}, from 0)"
            tensor_text = f"{(f'tensor {tensor.name}' if tensor.name else 'the tensor')} of {batch_text}"
            later_tensors = [one for batch in place.following for one in batch if one.name == tensor.name]
            if tensor.bad and not any(one.bad for one in later_tensors):
                text = f"The batch: {tensor_text} has {count(tensor.bad, 'non-finite value')}."
                advice = "Repair or drop the non-finite examples, and check the data for more."
                return Diagnosis("batch", "certain", text, advice)
            if tensor.ignored == 1 and place is record:
                text = f"The batch: all labels in {tensor_text} are -100, so the mean loss divides by 0."
                return Diagnosis("batch", "certain", text, "Skip batches in which all labels are ignored.")
            largest = max((one.max or 0.0 for one in later_tensors), default=0.0)
            if tensor.max and largest and tensor.max > MIN_OUTLIER_BATCH_RATIO * largest:
                text = f"The batch: {tensor_text} has a value of size {tensor.max:.3g}; later batches reach {largest:.3g}."
                return Diagnosis("batch", "certain", text, "Repair the examples with huge values, or clip the inputs.")
    return None


# The optimizer.


def _optimizer_groups(record: AutopsyRecord) -> Iterator[tuple[str, dict[str, float]]]:
    for optimizer in record.optimizers:
        for group in optimizer.groups:
            yield optimizer.name, {k: float(v) for k, v in group.items() if isinstance(v, (int, float))}


def _diagnose_epsilon(record: AutopsyRecord) -> Diagnosis | None:
    optimizer_names = [name for name, group in _optimizer_groups(record) if group.get("eps") == 0]
    if not optimizer_names or not record.parameters.bad:
        return None
    explained_share = max((o.state.explained or 0.0 for o in record.optimizers), default=0.0)
    certainty: Certainty = "certain" if explained_share > 0.99 else "likely"
    text = f"The optimizer: {optimizer_names[0]} has eps=0 and divides by the root of a second moment of 0."
    return Diagnosis("optimizer", certainty, text, "Set eps to 1e-8 or more.")


def _diagnose_accumulation(record: AutopsyRecord) -> Diagnosis | None:
    counts, versions = record.counts, record.grad_versions
    passes_per_step = max(counts.backwards / max(counts.steps, 1), 1) + (counts.clips > 0)
    if counts.steps < 4 or not versions or not _has_grown(record):
        return None
    if max(versions) + 2 >= counts.backwards and max(versions) < (passes_per_step + 0.5) * counts.steps:
        text = f"Gradient accumulation: the gradients of all {counts.backwards:,} backward passes were added up."
        return Diagnosis("accumulation", "likely", text, "Call optimizer.zero_grad() in each step.")
    return None


def _diagnose_loss_scale(record: AutopsyRecord) -> Diagnosis | None:
    passed, logged = record.losses
    ratio = passed / logged if math.isfinite(passed) and math.isfinite(logged) and logged else 0.0
    rows = record.history.before
    used_scale = ratio or record.scale or 0.0
    text = f"The loss scale: the backward pass used {used_scale:.4g} times the loss, and a step was made without unscaling."
    has_loss_overflowed = record.backward_loss is not None and record.metric == "grad_norm" and math.isinf(record.backward_loss)
    fault = record.forward_fault
    if max(ratio, record.scale or 0.0) >= MIN_LOSS_SCALE_RATIO and not any(row.loss_scale for row in rows):
        return Diagnosis("loss scale", "likely", text, "Call scaler.step(optimizer), then scaler.update().")
    if has_loss_overflowed and fault is None and not record.parameters.bad and _is_logged_loss_finite(record):
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
            text = f"The weight decay: rate x decay is {product:.3g}, so each step overshoots 0 by {share(product - 1)}."
            return Diagnosis("weight decay", "certain" if product > 2 else "likely", text, "Lower the weight decay.")
    return None


# Checks of the initialisation and of divergence.


def _diagnose_initialisation(record: AutopsyRecord) -> Diagnosis | None:
    tensor = max(record.start, key=lambda tensor: tensor.weight_gain, default=None)
    if tensor is None or not tensor.weight_gain > MAX_INITIAL_WEIGHT_GAIN or record.step > MAX_INITIALISATION_STEP:
        return None
    if record.step >= MAX_STEP_WITHOUT_GROWTH and not _has_grown(record):
        return None
    text = f"The initialisation: {tensor.name} began at size {tensor.rms:.3g}, {tensor.weight_gain:.3g} times a usual one."
    return Diagnosis("initialisation", "likely", text, "Initialise the layer with a gain near 1.")


def _has_grown(record: AutopsyRecord) -> bool:
    """Return True if the gradient norm or the absolute loss grew before the first non-finite value."""
    return any(_is_growing(values) for values in _loss_and_norm_series(record))


def _loss_and_norm_series(record: AutopsyRecord) -> Iterator[list[float]]:
    rows: tuple[HistoryRow, ...] = record.history.before
    yield [row.grad_norm for row in rows if row.grad_norm is not None]
    yield [abs(row.loss) for row in rows if row.loss is not None]


def _is_growing(values: list[float]) -> bool:
    if len(values) < MIN_RISING_STEPS + 1:
        return False
    usual_value = min(statistics.quantiles(values, n=4)[0], statistics.median(values[:5]))
    # If a gradient scaler skipped a step, its norm may be NaN; a NaN does not end the growth.
    has_fallen = any(value <= usual_value * MIN_DIVERGED_GROWTH / 10 for value in values[-MIN_RISING_STEPS:])
    return max(values[-3:]) > MIN_DIVERGED_GROWTH * usual_value > 0 and not has_fallen


def _diagnose_divergence(record: AutopsyRecord) -> Diagnosis | None:
    has_grown, grown_weight = _has_grown(record), _find_grown_weight(record)
    if not has_grown and grown_weight is None:
        return None
    growing = next((series for series in _loss_and_norm_series(record) if _is_growing(series)), [])
    rates = [row.learning_rate for row in (*record.history.first, *record.history.before) if row.learning_rate]
    is_early = record.step <= (record.max_train_steps or 1000) / 5
    is_full_rate_early = rates and rates[0] >= max(rates) * 0.99 and is_early
    warmup_hint = ", or warm it up: the training began with the full rate" if is_full_rate_early else ""
    rate_text = f" {rates[-1]:.3g}" if rates else ""
    growth_text = f"{grown_weight} grew far beyond its initial value"
    if growing:
        growth_text = f"the gradient norm or loss grew from {min(growing):.3g} to {growing[-1]:.3g}"
    text = f"The rate: the training diverged at rate{rate_text}; {growth_text} before step {record.step:,}."
    return Diagnosis("rate", "likely", text, f"Lower the learning rate{warmup_hint}.")


def _find_grown_weight(record: AutopsyRecord) -> str | None:
    """Return the weight that grew by `MIN_DIVERGED_GROWTH` in the first steps, which are too few to show growth of the loss."""
    if record.step > MAX_STEP_WITHOUT_GROWTH:
        return None
    update_norms = [(row.learning_rate or 0.0) * (row.grad_norm or 0.0) for row in record.history.before]
    has_sgd = any(o.name == "SGD" for o in record.optimizers)
    if has_sgd and max(update_norms, default=0.0) > MAX_UPDATE_NORM_RATIO * record.start_norm > 0:
        return "the whole model"
    initial_sizes = {tensor.name: tensor.rms for tensor in record.start}
    for tensor in record.parameters.largest:
        initial_size = initial_sizes.get(tensor.name)
        if tensor.rms and initial_size and tensor.rms > MIN_DIVERGED_GROWTH * initial_size:
            return tensor.name
    return None


# Tensors and operations.


def _diagnose_layer(record: AutopsyRecord) -> Diagnosis | None:
    bad = record.parameters
    if record.late or not bad.first:
        return None
    layer_names = list(dict.fromkeys(name.rpartition(".")[0] or name for name in bad.bad_names))
    if len(layer_names) > 1 and bad.bad > bad.tensors / 2:
        text = f"The update: {bad.bad} of {bad.tensors} parameters became non-finite, though the last gradient norm was finite."
        return Diagnosis("optimizer", "likely", text, "Check the optimizer's hyperparameters and the learning rate.")
    tensor = bad.first[0]
    rows_text = f", in rows {', '.join(map(str, tensor.bad_rows))}" if tensor.bad_rows else ""
    values_text = count(tensor.bad, "non-finite value")
    text = f"The layer {layer_names[0]}: {tensor.name} has {values_text}{rows_text}, before any gradient was non-finite."
    advice = f"Find what wrote the non-finite values of {tensor.name}; the optimizer's last gradient was finite."
    return Diagnosis("layer", "certain", text, advice)


def _diagnose_buffer(record: AutopsyRecord) -> Diagnosis | None:
    if record.parameters.bad and not record.late:
        return None
    frozen = [buffer for buffer in record.buffers if not buffer.training]
    if not frozen:
        return None
    values_text = count(frozen[0].bad, "non-finite value")
    text = f"The buffer {frozen[0].name}: it has {values_text}, and its layer does not update it in training."
    advice = f"Restore the buffer {frozen[0].name} from a good checkpoint, or recompute it."
    return Diagnosis("buffer", "certain", text, advice)


def _forward_fault(record: AutopsyRecord) -> ForwardFault | None:
    """Return the first non-finite result of the forward pass; None if non-finite parameters caused it."""
    return None if record.parameters.bad else record.forward_fault


def _diagnose_precision(record: AutopsyRecord) -> Diagnosis | None:
    fault = _forward_fault(record)
    if fault is None or fault.dtype not in _HALF_PRECISION_DTYPES or fault.why not in ("result", "exp overflows"):
        return None
    largest_number = "65,504" if fault.dtype == "float16" else "3.4e38"
    place = _locate(fault.after, fault.before)
    text = f"The precision: {fault.operation}{place} exceeds {largest_number}, the limit of {fault.dtype}."
    advice = f"Compute {fault.operation} in float32, or use bfloat16 in place of float16."
    return Diagnosis("precision", "likely", text, advice)


def _diagnose_forward_pass(record: AutopsyRecord) -> Diagnosis | None:
    fault = _forward_fault(record)
    if fault is None:
        return None
    place = _locate(fault.after, fault.before)
    if fault.why not in ("result", "input"):
        text = f"The operation {fault.operation}{place}: {fault.why}."
        advice = f"Keep the argument of {fault.operation} in range: clamp it, or add a small constant."
        return Diagnosis("operation", "certain", text, advice)
    if fault.why == "input":
        return Diagnosis("batch", "likely", f"The input of {fault.operation}{place} is not finite.", "Check the data.")
    if "softmax" in fault.operation.lower() or "Attention" in fault.operation:
        reason_text = "a row is masked entirely" if fault.masked else "a row has no finite entry"
        text = f"The operation {fault.operation}{place}: {reason_text}."
        certainty: Certainty = "certain" if fault.masked else "likely"
        return Diagnosis("operation", certainty, text, "Leave one entry of each attention row unmasked.")
    text = f"The operation {fault.operation}{place} made the first non-finite value of the forward pass."
    return Diagnosis("operation", "likely", text, f"Check the arguments of {fault.operation}.")


def _diagnose_backward_pass(record: AutopsyRecord) -> Diagnosis | None:
    graph, gradients = record.graph, record.gradients
    if graph is None or gradients is None or (record.parameters.bad and not record.late):
        return None
    if not _is_logged_loss_finite(record):
        return None
    place = _locate(graph.after, graph.before)
    if graph.custom:
        text = f"The backward pass of {graph.custom[-1]}{place}, an operation of your own: gradients are finite up to it."
        return Diagnosis("operation", "likely", text, f"Test {graph.custom[-1]} with torch.autograd.gradcheck.")
    if not gradients.bad:
        names = [operation.partition("(")[0] for operation in graph.operations]
        growing = next((name for name in ("Exp", "Expm1", "Pow") if name in names), None)
        if growing is None:
            return None
        text = f"The operation {growing}{place}: its result is so large that the norm of the gradient overflows."
        return Diagnosis("operation", "likely", text, f"Bound the argument of {growing}.")
    for operation in reversed(graph.operations):
        if operation in _SINGULAR_DERIVATIVES:
            text = f"The backward pass of {operation}{place}: {_SINGULAR_DERIVATIVES[operation]}. The loss is finite."
            return Diagnosis("operation", "likely", text, f"Add a small constant to the argument of {operation}.")
    return None


def _locate(after: str | None, before: str | None) -> str:
    place_texts = [f"after {after}" if after else "", f"before {before}" if before else ""]
    return "".join(f" {place}" for place in place_texts if place) + ("" if before else " (in the loss)" if after else "")


def _unknown_cause(record: AutopsyRecord) -> Diagnosis:
    missing_records = ['the batch (autopsy="batch" keeps it)'] if record.batch is None else []
    missing_records += ["the batches of the other ranks"] if record.ranks > 1 else []
    missing_records += ["the forward pass (replay the step)"] if record.late else []
    text = f"The cause cannot be told: it needs {' and '.join(missing_records) or 'a replay of the step'}."
    if suspects := [o for o in (record.graph.operations if record.graph else ()) if o in _SINGULAR_DERIVATIVES]:
        text += f" The loss contains {', '.join(suspects)}, which have no finite value or derivative at some arguments."
    advice = "Replay the step as shown below. The replay checks each value when it is computed."
    return Diagnosis("unknown", "open", text, advice)


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
