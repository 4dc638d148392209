"""Reads and writes study files, which store a `StudySpec` as readable YAML. Reading a written file returns an equal
`StudySpec`.

Values follow YAML 1.2, in which `1e-3` is a number, and `yes` and `on` are words.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Container, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from advisor.model.errors import AdvisorError, convert_os_errors
from advisor.model.prediction import describe_prediction
from advisor.model.spec import SAME_IN_ALL_TRIALS, Objective, Parameter, Sampler, SpecEntryError, StudySpec
from advisor.model.words import capitalise, clean, short_text

_MAX_FILE_BYTES = 2_000_000
_MAX_SHOWN_CHARACTERS = 60
"""Maximum length of a wrong value that an error shows."""


class _StudyFileLoader(yaml.SafeLoader):
    """YAML loader with YAML 1.2 scalars. The loader rejects tags, unpaired surrogates, and aliases, with which a small file
    could expand to a huge text."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        refusal = None
        if isinstance(event, yaml.AliasEvent):
            refusal = "aliases are not allowed"
        elif event.tag is not None:
            refusal = f"tags such as {event.tag} are not allowed"
        elif isinstance(event, yaml.ScalarEvent) and _SURROGATE_PATTERN.search(event.value):
            refusal = "a text contains an unpaired surrogate"
        if refusal is not None:
            raise yaml.constructor.ConstructorError(None, None, refusal, event.start_mark)
        return super().compose_node(parent, index)


class _StudyFileDumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or YAML 1.2 would read as another type."""


_SURROGATE_PATTERN = re.compile("[\ud800-\udfff]")
_INT_PATTERN = re.compile(r"^[-+]?[0-9]+$")
_FLOAT_PATTERN = re.compile(
    r"^(?:[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_StudyFileLoader.yaml_implicit_resolvers = {}
_StudyFileLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_StudyFileLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
for _reader in (_StudyFileLoader, _StudyFileDumper):
    _reader.add_implicit_resolver("tag:yaml.org,2002:int", _INT_PATTERN, list("-+0123456789"))
    _reader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_PATTERN, list("-+.0123456789"))


def load_study_file(path: Path) -> StudySpec:
    """Read a study file. Raises AdvisorError with one line that names the key and the line number of the error."""
    with convert_os_errors(f"cannot read the study file {str(path)!r}"), path.open("rb") as file:
        raw = file.read(_MAX_FILE_BYTES + 1)
    if len(raw) > _MAX_FILE_BYTES:
        raise AdvisorError(
            f"the study file {str(path)!r} is larger than {_MAX_FILE_BYTES // 1_000_000} MB; is this a study file?"
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise AdvisorError(f"the study file {str(path)!r} is not UTF-8 text") from None
    return parse_study_file(text, source=str(path))


def parse_study_file(text: str, *, source: str = "study file") -> StudySpec:
    """Parse the text of a study file. Raises AdvisorError with one line about the error, which begins with `source`."""
    try:
        loader = _StudyFileLoader(text)
        node = loader.get_single_node()
        data = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line_text = f", line {mark.line + 1}" if mark else ""
        raise AdvisorError(f"{source}{line_text}: {error.problem or error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise AdvisorError(f"{source}: not readable as YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise AdvisorError(f"{source}: a study file is a mapping that starts with 'study:'")
    _reject_duplicates(node, source)
    _add_constants(data, source)
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        first_error = error.errors()[0]
        entry_error = first_error.get("ctx", {}).get("error")
        keys = entry_error.keys if isinstance(entry_error, SpecEntryError) else ()
        location = (*(str(part) for part in first_error["loc"]), *keys)
        line = _line_of_key(node, location)
        key = " ".join(".".join(location).split()) or "study file"
        raise AdvisorError(f"{source}, line {line}, {key}: {_validation_message(first_error)}") from None


def _validation_message(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        similar_keys = get_close_matches(str(error["loc"][-1]), _keys_beside(error["loc"]), n=1)
        return f"is not a key of a study file{f'; did you mean {similar_keys[0]!r}?' if similar_keys else ''}"
    if error["type"] == "missing":
        return "is missing"
    expected_input = re.fullmatch(r"Input should be (?P<what>.*?)(?:, (?:unable|got) .*)?", error["msg"])
    if expected_input is None:
        return error["msg"].removeprefix("Value error, ")
    what, value = expected_input["what"], error["input"]
    for term, usual in (("valid dictionary", "mapping"), ("valid integer", "whole number"), ("valid ", "")):
        what = what.replace(term, usual)
    text = repr(value)
    text = text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"
    return f"must be {what}{f', not {text}' if isinstance(value, str | int | float) else ''}"


def _keys_beside(location: tuple[str | int, ...]) -> list[str]:
    models: dict[str, type[BaseModel]] = {"parameters": Parameter, "objective": Objective, "sampler": Sampler}
    model = models.get(str(location[0])) if len(location) > 1 else StudySpec
    return list(model.model_fields) if model is not None else []


def _add_constants(data: dict[Any, Any], source: str) -> None:
    constants, parameters = data.pop("constants", None), data.get("parameters")
    if constants is not None and not isinstance(constants, dict):
        raise AdvisorError(f"{source}, constants: write one line for each constant, such as 'adam_beta1: 0.9'")
    parameter_entries = parameters if isinstance(parameters, dict) else {}
    for name, value in (constants or {}).items():
        if not isinstance(value, bool | int | float | str):
            raise AdvisorError(f"{source}, constants.{name}: a constant is a number, a word, true or false")
        if name in parameter_entries:
            raise AdvisorError(f"{source}, constants.{name}: it is also a parameter; remove one of the two")
    entries = {name: {"role": "fixed", "value": value, "why": SAME_IN_ALL_TRIALS} for name, value in (constants or {}).items()}
    if entries and (parameters is None or isinstance(parameters, dict)):
        data["parameters"] = {**parameter_entries, **entries}
    if isinstance(data.get("baseline"), dict):
        _add_constants(data["baseline"], source)


def find_line_number(text: str, *keys: str) -> int:
    """Return the line number, from 1, of the innermost of the nested `keys` in the text of a study file."""
    return _line_of_key(_StudyFileLoader(text).get_single_node(), keys)


def _reject_duplicates(node: Any, source: str) -> None:
    if isinstance(node, yaml.MappingNode):
        seen_keys: set[str] = set()
        for key, value in node.value:
            if key.value in seen_keys:
                raise AdvisorError(f"{source}, line {key.start_mark.line + 1}: {key.value!r} appears twice")
            seen_keys.add(key.value)
            _reject_duplicates(value, source)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _reject_duplicates(item, source)


def _line_of_key(node: Any, location: tuple[str, ...]) -> int:
    line = int(node.start_mark.line) + 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            match = next(((k, v) for k, v in node.value if k.value == part), None)
            if match is None:
                return line
            line, node = int(match[0].start_mark.line) + 1, match[1]
        elif isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = int(node.start_mark.line) + 1
    return line


def study_file_schema() -> dict[str, Any]:
    full_schema = StudySpec.model_json_schema()
    # StudySpec refers to itself, so pydantic moves its schema to $defs; users expect its keys at the top level.
    study_schema = full_schema["$defs"]["StudySpec"]
    value = {"anyOf": [{"type": kind} for kind in ("boolean", "integer", "number", "string")]}
    text = "Parameters that are the same in every trial, with their values."
    study_schema["properties"]["constants"] = {"type": "object", "description": text, "additionalProperties": value}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **study_schema, "$defs": full_schema["$defs"]}


def format_study_file(spec: StudySpec, *, parent: StudySpec | None = None, inferred: Container[str] = ()) -> str:
    """Return the study as YAML, with a comment on each parameter that differs from the study `parent`. inferred: names of the
    parameters of `parent` whose ranges were inferred from trials."""
    if parent is None:
        return "\n".join(_study_file_lines(spec, {})) + "\n"
    parent_name = clean(short_text(parent.study))
    head_comment = (
        f"# Written by advisor to follow {parent_name}. Comments mark parameters that differ from that study.",
        "# Draw the trials: advisor sample THIS_FILE",
    )
    return "\n".join((*head_comment, *_study_file_lines(spec, _comments_on_differences(spec, parent, inferred)))) + "\n"


def _study_file_lines(spec: StudySpec, differences: Mapping[str, str]) -> Iterator[str]:
    data = {**spec.model_dump(mode="json", exclude_defaults=True), "sampler": spec.sampler.model_dump()}
    yield from (_yaml_entry(key, data[key]) for key in _HEAD_KEYS if key in data)
    yield from _search_space_lines(spec, differences)
    yield from (_yaml_entry(key, data[key]) for key in _TAIL_KEYS if key in data)
    if spec.notes:
        yield "notes:"
        for note in spec.notes:
            yield from _wrapped_lines([note], "  ") if note.isprintable() else [f"  - {_yaml_scalar(note)}"]
    if spec.predictions:
        yield "predictions:"
        yield "  # What this study is expected to show. `advisor analyze` compares them with the results."
        for prediction in spec.predictions:
            text = describe_prediction(prediction, spec.objective)
            yield from (f"  # {line}" for line in textwrap.wrap(clean(f"{capitalise(text)}."), _MAX_TEXT_COLUMNS))
            entries = prediction.model_dump(mode="json", exclude_none=True)
            yield f"  - {_yaml_entry('rule', entries.pop('rule'))}"
            yield from (f"    {_yaml_entry(key, value)}" for key, value in entries.items())
    if spec.baseline is not None:
        yield "baseline:"
        yield from (f"  {line}" for line in _study_file_lines(spec.baseline, {}))


def _search_space_lines(spec: StudySpec, differences: Mapping[str, str]) -> Iterator[str]:
    constants = {n: p.value for n, p in spec.parameters.items() if n not in differences and _is_constant(p)}
    if len(constants) < len(spec.parameters):
        yield "parameters:"
        for name, parameter in spec.parameters.items():
            if name not in constants:
                yield from _parameter_lines(name, parameter, differences.get(name))
    if constants:
        yield "constants:  # the same in every trial"
        for name, value in constants.items():
            yield f"  {_yaml_scalar(name)}: {_yaml_scalar(value)}"
    if spec.forbidden:
        yield "forbidden:"
        for region in spec.forbidden:
            yield "  - " + _yaml_entry("where", region.model_dump(mode="json", exclude_none=True)["where"])
            yield from _reason_lines(region.why) if region.why is not None else ()
    if spec.settings:
        yield "settings:"
        for setting in spec.settings:
            yield f"  - {_one_line_yaml(dict(setting))}"


def _is_constant(parameter: Parameter) -> bool:
    value = parameter.value
    return value is not None and parameter == Parameter(role="fixed", value=value, why=SAME_IN_ALL_TRIALS)


_HEAD_KEYS = ("study", "goal", "probe", "round", "parent", "objective")
_TAIL_KEYS = tuple(
    "trials sampler max_train_steps final_train_steps evaluate_every checkpoints seeds starts_from reading schedule".split()
)
_MAX_TEXT_COLUMNS = 105
"""Maximum number of columns of a line in a study file; longer texts are wrapped."""
_PARAMETER_KEYS = (
    "role", "type", "low", "high", "scale", "limits", "choices", "value", "searched_in", "formula", "equals", "when", "why",
)  # fmt: skip


def _parameter_lines(name: str, parameter: Parameter, difference: str | None) -> Iterator[str]:
    yield f"  {_yaml_scalar(name)}:"
    if difference is not None:
        yield f"    # {difference}"
    entries = parameter.model_dump(mode="json", exclude_none=True)
    if not parameter.numeric:
        del entries["scale"]
    if parameter.searched_in is not None:
        entries["searched_in"] = parameter.searched_in.model_dump(mode="json", exclude_defaults=True)
    for key in _PARAMETER_KEYS:
        if key in entries:
            value = entries[key]
            if key in ("low", "high") and parameter.type == "int" and float(value).is_integer():
                value = int(value)
            yield from _reason_lines(value) if key == "why" else ["    " + _yaml_entry(key, value)]


def _comments_on_differences(spec: StudySpec, parent: StudySpec, inferred: Container[str]) -> dict[str, str]:
    comments = {}
    for name, parameter in spec.parameters.items():
        old_parameter = parent.parameters.get(name)
        if old_parameter is None:
            comments[name] = "new in this round"
        elif old_parameter.model_dump(exclude={"why"}) != parameter.model_dump(exclude={"why"}):
            old_description = describe_parameter(old_parameter, "tried" if name in inferred else "searched")
            comments[name] = clean(f"the preceding round {old_description}")
    return comments


def describe_parameter(parameter: Parameter, verb: str = "searched") -> str:
    """Return one line such as `searched 1e-05 to 0.001 (log)` or `fixed it at 64`. verb: its first word if the parameter was
    searched."""
    if parameter.role == "fixed":
        return f"fixed it at {short_text(parameter.value)}"
    if parameter.formula is not None:
        return f"computed it as {short_text(parameter.formula)}"
    if parameter.numeric:
        return f"{verb} {short_text(parameter.low)} to {short_text(parameter.high)} ({parameter.scale})"
    return f"{verb} " + ", ".join(short_text(option) for option in parameter.options)


def _yaml_entry(key: str, value: Any) -> str:
    return f"{key}: {_one_line_yaml(value) if isinstance(value, dict | list | tuple) else _yaml_scalar(value)}"


def _reason_lines(text: str) -> Iterator[str]:
    yield from _wrapped_lines({"why": text}, "    ") if text.isprintable() else ["    " + _yaml_entry("why", text)]


def _wrapped_lines(value: Any, indent: str) -> Iterator[str]:
    yaml_text: str = yaml.dump(value, Dumper=_StudyFileDumper, width=_MAX_TEXT_COLUMNS - len(indent), allow_unicode=True)
    yield from (indent + line for line in yaml_text.splitlines())


def _one_line_yaml(value: Any) -> str:
    yaml_text: str = yaml.dump(value, Dumper=_StudyFileDumper, default_flow_style=True, width=10**6, sort_keys=False)
    return yaml_text.rstrip()


def _yaml_scalar(value: Any) -> str:
    """Return a value as one line of YAML, with quotes if needed and escape sequences for invisible characters."""
    visible = not isinstance(value, str) or value.isprintable()
    text = yaml.dump(value, Dumper=_StudyFileDumper, default_style=None if visible else '"', width=10**6, allow_unicode=visible)
    return text.removesuffix("\n").removesuffix("\n...")
