"""Converts the names and values in the runs of other tools to those that MLflow accepts, and adds tags that identify imported
runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from advisor import contract
from advisor.interop.importers import files
from advisor.interop.importers.points import DEFAULT_RUN_START_MS, MetricPoints
from advisor.interop.importers.runs import RunContent, SourceRun
from advisor.model.errors import AdvisorError
from advisor.tracking.points.collect import MIN_REAL_TIME_MS
from advisor.tracking.runs import RunStatus

SOURCE_RUN_TAG = "advisor.imported_from"
"""Name of the tag that identifies a run in its source by a JSON list. `UNFINISHED_RUN_PREFIX` precedes the list while the run is
being written."""
UNFINISHED_RUN_PREFIX = "unfinished "
"""Prefix of the tag `SOURCE_RUN_TAG` while a run is being written. The next import deletes runs whose tag has this prefix, and
writes them again."""
SOURCE_DIGEST_TAG = "advisor.imported_state"
"""Name of the tag with a digest of the run's source files at the time of the import. If this digest has changed, the next
import adds new data to the run."""
MAX_VALUE_CHARACTERS = 5000
"""Maximum number of characters in the value of a parameter or tag; the smallest limit of all supported MLflow versions."""
MAX_NAME_CHARACTERS = 250
"""Maximum number of characters of the name of a parameter, metric or tag."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to write, with names and values that MLflow accepts."""

    source: tuple[str, ...]
    """Identifier of the run in the tool that wrote it, unique within its experiment."""
    name: str
    status: RunStatus
    started_ms: int
    ended_ms: int | None
    params: Mapping[str, str]
    tags: Mapping[str, str]
    points: Mapping[str, MetricPoints] = field(default_factory=dict)
    stored_run_id: str | None = None
    """Id of the MLflow run to complete; None for a new run."""

    @property
    def all_tags(self) -> dict[str, str]:
        """All tags of the run in the tracking store, including those with its name and source."""
        return {**self.tags, "mlflow.runName": self.name, SOURCE_RUN_TAG: source_text(self.source)}


def source_text(source: Sequence[str]) -> str:
    """Return the text of the tag `SOURCE_RUN_TAG`, which identifies a run in its source."""
    return json.dumps(list(source), ensure_ascii=False)


class MlflowNames:
    """Replaces characters that MLflow rejects in names by "_", and collects a warning for each changed name."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._safe: dict[str, str] = {}

    def mlflow_name(self, name: str) -> str:
        """Return a name that MLflow accepts for a parameter, metric or tag. Different names remain different."""
        if name not in self._safe:
            safe = re.sub(r"[^\w.\-/ :]", "_", name)
            safe = "/".join(part for part in safe.split("/") if part not in ("", ".", "..")) or "_"
            safe, n = safe[:MAX_NAME_CHARACTERS], 2
            while safe in self._safe.values():
                safe, n = f"{safe[: MAX_NAME_CHARACTERS - 4]}_{n}", n + 1
            self._safe[name] = safe
            if safe != name:
                self.warnings.append(f"MLflow does not accept the name {name!r}; it was imported as {safe!r}.")
        return self._safe[name]

    def rename_in_tags(self, tags: Mapping[str, str]) -> dict[str, str]:
        """Return the tags. Return the tags, with the name of the objective replaced by one that MLflow accepts."""
        objective = tags.get(contract.TAG_OBJECTIVE)
        return {**tags} if objective is None else {**tags, contract.TAG_OBJECTIVE: self.mlflow_name(objective)}


def convert_run(
    run: SourceRun,
    content: RunContent,
    names: MlflowNames,
    number: int,
    *,
    objective: Mapping[str, str] | None = None,
    continues: str | None = None,
) -> NewRun:
    """Convert a run to names and values that MLflow accepts.

    number: index of the run in its source. Runs without dates start one second apart in the order of this index. objective:
    tags with the objective and direction that the user chose. Raises AdvisorError if the parameters of the run are too many or
    too deeply nested.
    """
    try:
        params = files.flatten_mapping(content.params, ".")
    except AdvisorError as error:
        raise AdvisorError(f"{run.name}: {error}") from None
    tags = {**_tags_from_params(params), **names.rename_in_tags(content.tags), **(objective or {})}
    if run.state is not None:
        tags[SOURCE_DIGEST_TAG] = run.state
    first, last = _time_range(content)
    started = content.started_ms if content.started_ms is not None else first
    ended = content.ended_ms if content.ended_ms is not None else last
    return NewRun(
        source=tuple(valid_text(part) for part in run.source),
        name=valid_text(run.name)[:MAX_NAME_CHARACTERS],
        status=content.status,
        started_ms=DEFAULT_RUN_START_MS + 1000 * number if started is None else started,
        ended_ms=None if content.status == "RUNNING" else ended,
        params={names.mlflow_name(valid_text(k)): param_text(v) for k, v in params.items() if v is not None},
        tags={tag: valid_text(value)[:MAX_VALUE_CHARACTERS] for tag, value in tags.items()},
        points={names.mlflow_name(valid_text(metric)): p for metric, p in content.points.items() if len(p.steps)},
        stored_run_id=continues,
    )


def _time_range(content: RunContent) -> tuple[int | None, int | None]:
    """Return the earliest and latest time of the run's metric points in ms since 1970; (None, None) without any time."""
    times = [p.times_ms[p.times_ms >= MIN_REAL_TIME_MS] for p in content.points.values()]
    times = [t for t in times if len(t)]
    return (min(int(t.min()) for t in times), max(int(t.max()) for t in times)) if times else (None, None)


def valid_text(text: str) -> str:
    """Return the text in a form that every tracking store accepts: lone Unicode surrogates are escaped, and zero bytes become
    spaces."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", " ")


def param_text(value: Any) -> str:
    """Return the value of a parameter as the text that MLflow logs, truncated to `MAX_VALUE_CHARACTERS` characters. Numbers
    keep all digits."""
    if not isinstance(value, list | tuple):
        text = "a huge number" if isinstance(value, int) and abs(value) >= 10**4000 else str(value)
        return valid_text(text)[:MAX_VALUE_CHARACTERS]
    text = ""
    try:
        for piece in json.JSONEncoder(default=str).iterencode(list(value)):
            text += piece
            if len(text) >= MAX_VALUE_CHARACTERS:
                break
    except (ValueError, RecursionError, TypeError):
        return "a list that contains itself"
    return valid_text(text)[:MAX_VALUE_CHARACTERS]


_PARAMETERS_OF_FACTS: Mapping[str, tuple[str, ...]] = {
    contract.TAG_SEED: ("seed", "random_seed", "random_state"),
    contract.TAG_BATCH_SIZE: ("batch_size", "train_batch_size", "total_train_batch_size"),
    contract.TAG_MAX_TRAIN_STEPS: ("max_train_steps", "max_steps", "total_steps", "num_train_steps", "training_steps"),
}


def _tags_from_params(params: Mapping[str, Any]) -> dict[str, str]:
    """Return tags for facts about the run, such as its seed, from parameters with common names.

    If several parameters state different values of a fact, the fact is omitted.
    """
    facts = {}
    for tag, usual in _PARAMETERS_OF_FACTS.items():
        values = {str(v) for k, v in params.items() if k.rsplit(".", 1)[-1] in usual and _is_count(v)}
        if len(values) == 1:
            facts[tag] = values.pop()
    return facts


def _is_count(value: Any) -> bool:
    if isinstance(value, str):
        return value.isdecimal() and len(value) < 19
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
