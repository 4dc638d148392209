"""Defines the record that a training hook writes when a value of a run is non-finite for the first time."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from advisor.model.errors import AdvisorError


class _RecordPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class TensorFacts(_RecordPart):
    """One tensor. `bad` is the number of non-finite values; `max` and `rms` come from the finite values."""

    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    bad: int = 0
    bad_rows: tuple[int, ...] = ()
    max: float | None = None
    rms: float | None = None
    ignored: float = 0.0
    """Share of the labels with the value -100, which PyTorch's losses ignore."""
    training: bool = True

    @property
    def weight_gain(self) -> float:
        """Root mean square of the weights times the root of the number of inputs; about 1 in usual initialisations."""
        return (self.rms or 0.0) * math.sqrt(math.prod(self.shape[1:])) if len(self.shape) > 1 else 0.0


class TensorList(_RecordPart):
    """Summary of several tensors: names of the non-finite ones, and facts about the first non-finite and the largest ones."""

    tensors: int = 0
    bad: int = 0
    bad_names: tuple[str, ...] = ()
    first: tuple[TensorFacts, ...] = ()
    largest: tuple[TensorFacts, ...] = ()


class OptimizerState(_RecordPart):
    """`explained`: share of the non-finite parameter values whose estimated second moment of the gradient is 0."""

    explained: float | None = None


class OptimizerFacts(_RecordPart):
    """An optimizer with the hyperparameters of each parameter group."""

    name: str = Field("", alias="class")
    groups: tuple[dict[str, Any], ...] = ()
    state: OptimizerState = OptimizerState()


class ForwardFault(_RecordPart):
    """First operation of the forward pass with a non-finite result, and the parameters used just before and after it."""

    operation: str = ""
    why: str = ""
    dtype: str = ""
    after: str | None = None
    before: str | None = None
    masked: bool = False
    overflow: bool = False


class BackwardFault(_RecordPart):
    """The operations of the backward pass between the last non-finite and the next finite gradient."""

    operations: tuple[str, ...] = ()
    custom: tuple[str, ...] = ()
    after: str | None = None
    before: str | None = None


class BatchFacts(_RecordPart):
    """The batch of the first non-finite value (None if the hook did not keep the batch), and the following batches."""

    step: int = 0
    batch: tuple[TensorFacts, ...] | None = None
    epoch: int | None = None
    number: int | None = None
    following: tuple[tuple[TensorFacts, ...], ...] = ()


class CallCounts(_RecordPart):
    """Numbers of optimizer steps, backward passes and gradient clipping calls before the record was written."""

    steps: int = 0
    backwards: int = 0
    clips: int = 0


class HistoryRow(_RecordPart):
    """Values of one training step."""

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    loss_scale: float | None = None
    skipped: float | None = None


def _to_history_rows(history: Any) -> Any:
    names = tuple(HistoryRow.model_fields)
    return {part: [dict(zip(names, row, strict=False)) for row in history[part]] for part in ("first", "before", "after")}


class LoggedHistory(_RecordPart):
    """Logged values at the start of training, just before the first non-finite value, and just after it."""

    first: tuple[HistoryRow, ...] = ()
    before: tuple[HistoryRow, ...] = ()
    after: tuple[HistoryRow, ...] = ()


class AutopsyRecord(BatchFacts):
    """The whole record. `late`: non-finite values were detected `lag` steps late, after they had changed the model."""

    metric: str = ""
    value: str = ""
    late: bool = False
    lag: int = 0
    ranks: int = 1
    max_train_steps: int | None = None
    start: tuple[TensorFacts, ...] = ()
    """Weight tensors with the largest gains at the start of training."""
    start_norm: float = 0.0
    """L2 norm of all parameters at the start of training."""
    scale: float | None = None
    """Loss scale of the gradient scaler, if any."""
    parameters: TensorList = TensorList()
    gradients: TensorList | None = None
    buffers: tuple[TensorFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    grad_versions: tuple[int, ...] = ()
    """Number of in-place changes of each of the first few gradients."""
    forward_fault: ForwardFault | None = None
    graph: BackwardFault | None = None
    backward_loss: float | None = None
    losses: tuple[float, float] = (math.nan, math.nan)
    """(Last finite loss on which `backward` was called, loss logged for the same backward pass)."""
    spikes: tuple[BatchFacts, ...] = ()
    counts: CallCounts = CallCounts()
    history: Annotated[LoggedHistory, BeforeValidator(_to_history_rows)] = LoggedHistory()


class DamagedAutopsyError(AdvisorError):
    """Raised if a record is not JSON, lacks values, or contains impossible values. error: how this showed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the autopsy of this run is damaged ({type(error).__name__}); train it again")


def read_autopsy_record(text: bytes | str) -> AutopsyRecord:
    """Parse a record from JSON. Raises DamagedAutopsyError."""
    try:
        return AutopsyRecord.model_validate_json(text)
    except (ValidationError, KeyError, TypeError) as error:
        raise DamagedAutopsyError(error) from None
