"""The command `advisor autopsy`."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from advisor import contract
from advisor.cli.options import tracking_option
from advisor.engine.autopsy.diagnosis import diagnose
from advisor.engine.autopsy.summary import RunFacts, diagnosis_as_json, summary_lines
from advisor.model.autopsy import read_autopsy_record
from advisor.model.words import clean
from advisor.tracking.autopsy import read_autopsy
from advisor.tracking.stores.location import parse_tracking_uri


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
