"""Summarises the diagnosis of the first non-finite value in about five lines."""

from __future__ import annotations

import math
from dataclasses import dataclass

from advisor.engine.autopsy.diagnosis import Diagnosis
from advisor.model.autopsy import AutopsyRecord, HistoryRow

REPLAY = "ADVISOR_AUTOPSY=replay"
"""Environment variable that makes the training hook check each value at once (`advisor_pytorch.autopsy.watch`)."""


@dataclass(frozen=True)
class RunFacts:
    """Facts about the run that the record of the training hook does not contain."""

    name: str
    run_id: str
    command: str = ""
    seed: str = ""
    checkpoint: str = ""
    """Path and step of the last checkpoint before the first non-finite value."""
    has_batches: bool = False


def summary_lines(record: AutopsyRecord, diagnosis: Diagnosis, run: RunFacts) -> list[str]:
    return [
        f"{run.name} ({run.run_id}): {_event_text(record)}.",
        f"{diagnosis.culprit} ({_CERTAINTY_TEXTS[diagnosis.certainty]})",
        f"Before: {_state_text(record)}.",
        f"Do: {diagnosis.advice}",
        f"Replay: {replay(record, run)}.",
    ]


_CERTAINTY_TEXTS = {"certain": "certain", "likely": "likely, not certain", "open": "open"}


def _event_text(record: AutopsyRecord) -> str:
    metric = {"loss": "the loss", "grad_norm": "the gradient norm"}.get(record.metric, "the loss or the gradient norm")
    value = record.value or "not finite"
    of = f" of {record.max_train_steps:,}" if record.max_train_steps else ""
    seen = f", known {record.lag:,} steps later" if record.late else ", seen before the update" * (record.metric == "grad_norm")
    return f"{metric} became {value} at step {record.step:,}{of}{seen}"


def _state_text(record: AutopsyRecord) -> str:
    rows = record.history.before
    parts = [_history_row_text(rows[-1]), _describe_norm_trend(rows)] if rows else ["no step had a finite loss"]
    if record.gradients is not None:
        parts.append(f"{record.gradients.bad} of {record.gradients.tensors} gradients not finite")
    when = f" {record.lag:,} steps later" if record.late else ""
    parts.append(f"{record.parameters.bad} of {record.parameters.tensors} parameters not finite{when}")
    return "; ".join(part for part in parts if part)


def _history_row_text(row: HistoryRow) -> str:
    values = {"loss": row.loss, "gradient norm": row.grad_norm, "rate": row.learning_rate, "loss scale": row.loss_scale}
    shown = ", ".join(f"{name} {value:.3g}" for name, value in values.items() if value is not None)
    return f"step {row.step:,} had {shown}"


def _describe_norm_trend(rows: tuple[HistoryRow, ...]) -> str:
    norms = [row.grad_norm for row in rows if row.grad_norm is not None and row.grad_norm > 0]
    if len(norms) < 5:
        return ""
    usual, last = sorted(norms)[len(norms) // 2], norms[-1]
    if last < 10 * usual:
        return f"the gradient norm was steady (median {usual:.3g} over {len(norms)} steps), so the failure was sudden"
    steps = next((i for i, norm in enumerate(reversed(norms)) if norm < 10 * usual), len(norms))
    return f"the gradient norm grew {last / usual:.3g}-fold within {max(steps, 1)} steps"


def replay(record: AutopsyRecord, run: RunFacts) -> str:
    """Return instructions to repeat the training run up to the step of the record."""
    start = f"from {run.checkpoint}" if run.checkpoint else "from the start"
    seed = f", with seed {run.seed}" if run.seed else ""
    command = f"{REPLAY} {run.command}" if run.command else f"the same command with {REPLAY}"
    batches = "; torch.load reads its batches from the artifact advisor/autopsy-batch.pt" if run.has_batches else ""
    return f"{start}{seed}, to step {record.step:,}: {command}{batches}"


def diagnosis_as_json(record: AutopsyRecord, diagnosis: Diagnosis, run: RunFacts) -> dict[str, object]:
    last = record.history.before[-1] if record.history.before else None
    known = {} if last is None else {k: v for k, v in last.model_dump().items() if v is not None and math.isfinite(v)}
    return {
        "run_id": run.run_id,
        "step": record.step,
        "cause": diagnosis.cause,
        "certainty": diagnosis.certainty,
        "culprit": diagnosis.culprit,
        "advice": diagnosis.advice,
        "replay": replay(record, run),
        "last_good": known,
    }
