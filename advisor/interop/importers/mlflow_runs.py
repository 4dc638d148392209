"""Converts the names and values of other tools' runs to those that MLflow accepts, and identifies imported runs by tags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from advisor import contract
from advisor.interop.importers import files
from advisor.interop.importers.runs import DEFAULT_RUN_START_MS, MetricPoints, RunContent, SourceRun
from advisor.model.errors import AdvisorError
from advisor.tracking.points.collect import MIN_REAL_TIME_MS
from advisor.tracking.runs import RunStatus

SOURCE_RUN_TAG = "advisor.imported_from"
"""Name of the tag with a run's identifier in its source: a JSON list, after `UNFINISHED_RUN_PREFIX` in an unfinished run."""
UNFINISHED_RUN_PREFIX = "unfinished "
"""Prefix of the tag `SOURCE_RUN_TAG` while a run is being written. The next import replaces a run with this prefix."""
SOURCE_DIGEST_TAG = "advisor.imported_state"
"""Name of the tag with a digest of the run's source files. If the digest has changed, the next import adds new data to the run."""
MAX_VALUE_CHARACTERS = 5000
"""Maximum characters of the value of a parameter or tag: the smallest limit of all supported MLflow versions."""
MAX_NAME_CHARACTERS = 250


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
    """Id of the MLflow run to complete, or None for a new run."""

    @property
    def all_tags(self) -> dict[str, str]:
        return {**self.tags, "mlflow.runName": self.name, SOURCE_RUN_TAG: source_text(self.source)}


def source_text(source: Sequence[str]) -> str:
    return json.dumps(list(source), ensure_ascii=False)


class MlflowNames:
    """Replaces characters that MLflow rejects in names by "_", and collects a warning for each changed name."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._safe: dict[str, str] = {}

    def mlflow_name(self, name: str) -> str:
        """Return a name that MLflow accepts for a parameter, metric or tag. Different names remain different."""
        if name not in self._safe:
            safe_name = re.sub(r"[^\w.\-/ :]", "_", name)
            safe_name = "/".join(part for part in safe_name.split("/") if part not in ("", ".", "..")) or "_"
            safe_name, n = safe_name[:MAX_NAME_CHARACTERS], 2
            while safe_name in self._safe.values():
                safe_name, n = f"{safe_name[: MAX_NAME_CHARACTERS - 4]}_{n}", n + 1
            self._safe[name] = safe_name
            if safe_name != name:
                self.warnings.append(f"MLflow does not accept the name {name!r}; it was imported as {safe_name!r}.")
        return self._safe[name]

    def rename_in_tags(self, tags: Mapping[str, str]) -> dict[str, str]:
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
    """Convert a run for MLflow, or raise AdvisorError. objective: tags that the user chose. number: index of the run in its
    source; runs without dates start one second apart, in this order."""
    try:
        params = files.flatten_mapping(content.params, ".")
    except AdvisorError as error:
        raise AdvisorError(f"{run.name}: {error}") from None
    tags = {**_tags_from_params(params), **names.rename_in_tags(content.tags), **(objective or {})}
    if run.files_digest is not None:
        tags[SOURCE_DIGEST_TAG] = run.files_digest
    real_times = [known for p in content.points.values() if len(known := p.times_ms[p.times_ms >= MIN_REAL_TIME_MS])]
    started_ms = content.started_ms if content.started_ms is not None else min((int(t.min()) for t in real_times), default=None)
    ended_ms = content.ended_ms if content.ended_ms is not None else max((int(t.max()) for t in real_times), default=None)
    return NewRun(
        source=tuple(valid_text(part) for part in run.source),
        name=valid_text(run.name)[:MAX_NAME_CHARACTERS],
        status=content.status,
        started_ms=DEFAULT_RUN_START_MS + 1000 * number if started_ms is None else started_ms,
        ended_ms=None if content.status == "RUNNING" else ended_ms,
        params={names.mlflow_name(valid_text(k)): param_text(v) for k, v in params.items() if v is not None},
        tags={tag: valid_text(value)[:MAX_VALUE_CHARACTERS] for tag, value in tags.items()},
        points={names.mlflow_name(valid_text(metric)): p for metric, p in content.points.items() if len(p.steps)},
        stored_run_id=continues,
    )


def valid_text(text: str) -> str:
    """Return the text in a form that every tracking store accepts, without lone Unicode surrogates and zero bytes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", " ")


def param_text(value: Any) -> str:
    """Return the value of a parameter as the text that MLflow logs, truncated. Numbers keep all digits."""
    if not isinstance(value, list | tuple):
        value_text = "a huge number" if isinstance(value, int) and abs(value) >= 10**4000 else str(value)
        return valid_text(value_text)[:MAX_VALUE_CHARACTERS]
    value_text = ""
    try:
        for piece in json.JSONEncoder(default=str).iterencode(list(value)):
            value_text += piece
            if len(value_text) >= MAX_VALUE_CHARACTERS:
                break
    except (ValueError, RecursionError, TypeError):
        return "a list that contains itself"
    return valid_text(value_text)[:MAX_VALUE_CHARACTERS]


_PARAMETERS_OF_FACTS: Mapping[str, tuple[str, ...]] = {
    contract.TAG_SEED: ("seed", "random_seed", "random_state"),
    contract.TAG_BATCH_SIZE: ("batch_size", "train_batch_size", "total_train_batch_size"),
    contract.TAG_MAX_TRAIN_STEPS: ("max_train_steps", "max_steps", "total_steps", "num_train_steps", "training_steps"),
}


def _tags_from_params(params: Mapping[str, Any]) -> dict[str, str]:
    """Return tags for facts about the run, such as its seed, from parameters with common names if these parameters agree."""

    def is_count(value: Any) -> bool:
        if isinstance(value, str):
            return value.isdecimal() and len(value) < 19
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63

    facts = {}
    for tag, usual in _PARAMETERS_OF_FACTS.items():
        known_values = {str(v) for k, v in params.items() if k.rsplit(".", 1)[-1] in usual and is_count(v)}
        if len(known_values) == 1:
            facts[tag] = known_values.pop()
    return facts
