"""The command `advisor autopsy`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import click

from advisor import contract
from advisor.cli.options import tracking_option
from advisor.computed.stability.autopsy import Diagnosis, diagnose
from advisor.model.autopsy import AutopsyRecord, HistoryRow, read_autopsy_record
from advisor.model.words import clean
from advisor.tracking.autopsy import read_autopsy
from advisor.tracking.stores.location import parse_tracking_uri

REPLAY = "ADVISOR_AUTOPSY=replay"
"""Environment variable that makes the training hook check each value at once (`advisor_pytorch.autopsy.watch`)."""


@click.command()
@click.argument("run")
@tracking_option
@click.option("--json", "json_", is_flag=True, help="Print the verdict as JSON.")
def autopsy(run: str, tracking_uri: str | None, json_: bool) -> None:
    """Say why the loss or the gradient of RUN, the id or name of an MLflow run, became NaN or infinite.

    \b
    advisor autopsy trial-7
    advisor autopsy 4f0c… --json

    At the first non-finite value, the training hook (TuningLogger or TuningCallback) stores a small file: the tensors that were
    not finite, the range of the batch's values, and the last finite steps. The answer names the cause (a batch, a layer, an
    operation, the learning rate, …) and says whether this cause is certain, likely or open. On a GPU, the hook sees values some
    steps late, so the cause is less certain than on a CPU. If the cause stays open, replay the step with
    ADVISOR_AUTOPSY=replay, or train with autopsy="batch", which stores the batch.

    The exit status is 2 if there is no such run or the run has no autopsy.
    """
    file = read_autopsy(run, parse_tracking_uri(tracking_uri))
    record = read_autopsy_record(file.text)
    tags = file.tags
    facts = RunFacts(
        name=file.name,
        run_id=file.run_id,
        command=tags.get(contract.TAG_COMMAND, ""),
        seed=tags.get(contract.TAG_SEED, ""),
        checkpoint=_last_checkpoint_phrase(tags, record.step),
        has_batches=file.has_batches,
    )
    diagnosis = diagnose(record)
    if json_:
        click.echo(json.dumps(diagnosis_as_json(record, diagnosis, facts), ensure_ascii=True, indent=1))
        return
    for line in summary_lines(record, diagnosis, facts):
        click.echo(clean(line))


def _last_checkpoint_phrase(tags: Mapping[str, str], step: int) -> str:
    try:
        kept = [(int(entry["step"]), str(entry["path"])) for entry in json.loads(tags[contract.TAG_CHECKPOINTS])["kept"]]
    except (KeyError, TypeError, ValueError):
        return ""
    earlier = max(((at, path) for at, path in kept if at < step), default=None)
    return "" if earlier is None else f"the checkpoint of step {earlier[0]:,} ({earlier[1]})"


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
