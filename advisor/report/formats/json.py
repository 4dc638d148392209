"""findings.json, the machine-readable verdicts, and the JSON Schema of that file."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from advisor.engine.guard.hindsight import Hindsight
from advisor.history.model import History
from advisor.model.finding import Verdict
from advisor.model.frozen import FrozenModel
from advisor.model.reading import Decision
from advisor.model.spec import Objective
from advisor.model.words import replace_surrogates
from advisor.planning import Deferred
from advisor.report.model import Best, Provenance, ReportData, RunningTrial, StoppedTrials, TrialCounts, Unlock


class NextEntry(FrozenModel):
    """A study file in the folder `next/`, as findings.json lists it."""

    file: str
    goal: str


class FindingsFile(BaseModel):
    """The contents of findings.json. Other tools read the file, so keys may be added but never renamed or removed."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null", populate_by_name=True)

    schema_version: Annotated[Literal[1], Field(alias="schema")] = 1
    study: str
    objective: Objective
    trials: TrialCounts
    verdicts: tuple[Verdict, ...]
    next: tuple[NextEntry, ...]
    """The next studies in the order to run them; their files are in the folder `next/`."""
    deferred: tuple[Deferred, ...]
    best: Best | None
    inferred: dict[str, str]
    warnings: tuple[str, ...]
    decisions: tuple[Decision, ...] = ()
    unlocks: tuple[Unlock, ...] = ()
    provenance: Provenance
    history: History | None = None
    running: tuple[RunningTrial, ...] = ()
    stopped: StoppedTrials = StoppedTrials()
    hindsight: Hindsight | None = None


def render_json(report: ReportData) -> str:
    shared_fields = {name: getattr(report, name) for name in FindingsFile.model_fields if name in ReportData.model_fields}
    next_entries = tuple(NextEntry(file=n.file, goal=n.spec.goal) for n in report.next_studies)
    spec = report.spec
    data = FindingsFile(study=spec.study, objective=spec.objective, trials=report.counts, next=next_entries, **shared_fields)
    json_data = _replace_nonfinite_by_null(data.model_dump(mode="json", by_alias=True))
    return replace_surrogates(json.dumps(json_data, ensure_ascii=False, indent=1, allow_nan=False)) + "\n"


def _replace_nonfinite_by_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _replace_nonfinite_by_null(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_replace_nonfinite_by_null(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class _FindingsSchemaGenerator(GenerateJsonSchema):
    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        # A float field without bounds can be NaN or infinite. JSON has no such numbers, so the file contains null.
        number_schema = super().float_schema(schema)
        return {"anyOf": [number_schema, {"type": "null"}]} if number_schema == {"type": "number"} else number_schema


def findings_schema() -> dict[str, Any]:
    schema = FindingsFile.model_json_schema(by_alias=True, mode="serialization", schema_generator=_FindingsSchemaGenerator)
    return {**schema, "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Findings of the tuning advisor"}
