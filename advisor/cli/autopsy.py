"""The command `advisor autopsy`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import click

from advisor import contract
from advisor.cli.options import tracking_option
from advisor.computed.stability.autopsy import Diagnosis, diagnose
from advisor.model.autopsy import AutopsyRecord, HistoryRow, read_autopsy_record
from advisor.model.words import clean
from advisor.tracking.autopsy import RunAutopsy, read_autopsy
from advisor.tracking.stores.location import parse_tracking_uri

REPLAY_SETTING = "ADVISOR_AUTOPSY=replay"
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
    run_autopsy = read_autopsy(run, parse_tracking_uri(tracking_uri))
    record = read_autopsy_record(run_autopsy.text)
    diagnosis = diagnose(record)
    if json_:
        click.echo(json.dumps(diagnosis_as_json(record, diagnosis, run_autopsy), ensure_ascii=True, indent=1))
        return
    for line in autopsy_summary_lines(record, diagnosis, run_autopsy):
        click.echo(clean(line))


def _last_checkpoint_phrase(tags: Mapping[str, str], step: int) -> str:
    try:
        saved = [(int(entry["step"]), str(entry["path"])) for entry in json.loads(tags[contract.TAG_CHECKPOINTS])["kept"]]
    except (KeyError, TypeError, ValueError):
        return ""
    last_saved = max(((at, path) for at, path in saved if at < step), default=None)
    return "" if last_saved is None else f"the checkpoint of step {last_saved[0]:,} ({last_saved[1]})"


def autopsy_summary_lines(record: AutopsyRecord, diagnosis: Diagnosis, run: RunAutopsy) -> list[str]:
    certainty = "likely, not certain" if diagnosis.certainty == "likely" else diagnosis.certainty
    return [
        f"{run.name} ({run.run_id}): {_event_text(record)}.",
        f"{diagnosis.explanation} ({certainty})",
        f"Before: {_state_text(record)}.",
        f"Do: {diagnosis.advice}",
        f"Replay: {replay_instructions(record, run)}.",
    ]


def _event_text(record: AutopsyRecord) -> str:
    metric_text = {"loss": "the loss", "grad_norm": "the gradient norm"}.get(record.metric, "the loss or the gradient norm")
    value_text = record.value or "not finite"
    of = f" of {record.max_train_steps:,}" if record.max_train_steps else ""
    early_text = ", seen before the update" if record.metric == "grad_norm" else ""
    delay = f", known {record.lag:,} steps later" if record.late else early_text
    return f"{metric_text} became {value_text} at step {record.step:,}{of}{delay}"


def _state_text(record: AutopsyRecord) -> str:
    rows = record.history.before
    clauses = ["no step had a finite loss"]
    if rows:
        row = rows[-1]
        values = {"loss": row.loss, "gradient norm": row.grad_norm, "rate": row.learning_rate, "loss scale": row.loss_scale}
        values_text = ", ".join(f"{name} {value:.3g}" for name, value in values.items() if value is not None)
        clauses = [f"step {row.step:,} had {values_text}", _describe_norm_trend(rows)]
    if record.gradients is not None:
        clauses.append(f"{record.gradients.bad} of {record.gradients.tensors} gradients not finite")
    delay_text = f" {record.lag:,} steps later" if record.late else ""
    clauses.append(f"{record.parameters.bad} of {record.parameters.tensors} parameters not finite{delay_text}")
    return "; ".join(part for part in clauses if part)


def _describe_norm_trend(rows: tuple[HistoryRow, ...]) -> str:
    norms = [row.grad_norm for row in rows if row.grad_norm is not None and row.grad_norm > 0]
    if len(norms) < 5:
        return ""
    median_norm, last_norm = sorted(norms)[len(norms) // 2], norms[-1]
    if last_norm < 10 * median_norm:
        return f"the gradient norm was steady (median {median_norm:.3g} over {len(norms)} steps), so the failure was sudden"
    rise_steps = next((i for i, norm in enumerate(reversed(norms)) if norm < 10 * median_norm), len(norms))
    return f"the gradient norm grew {last_norm / median_norm:.3g}-fold within {max(rise_steps, 1)} steps"


def replay_instructions(record: AutopsyRecord, run: RunAutopsy) -> str:
    start_text = f"from {_last_checkpoint_phrase(run.tags, record.step) or 'the start'}"
    seed, command = run.tags.get(contract.TAG_SEED), run.tags.get(contract.TAG_COMMAND)
    seed_text = f", with seed {seed}" if seed else ""
    command_text = f"{REPLAY_SETTING} {command}" if command else f"the same command with {REPLAY_SETTING}"
    batches_text = "; torch.load reads its batches from the artifact advisor/autopsy-batch.pt" if run.has_batches else ""
    return f"{start_text}{seed_text}, to step {record.step:,}: {command_text}{batches_text}"


def diagnosis_as_json(record: AutopsyRecord, diagnosis: Diagnosis, run: RunAutopsy) -> dict[str, object]:
    last = record.history.before[-1] if record.history.before else None
    finite = {} if last is None else {k: v for k, v in last.model_dump().items() if v is not None and math.isfinite(v)}
    return {
        "run_id": run.run_id,
        "step": record.step,
        "cause": diagnosis.cause,
        "certainty": diagnosis.certainty,
        "culprit": diagnosis.explanation,
        "advice": diagnosis.advice,
        "replay": replay_instructions(record, run),
        "last_good": finite,
    }
