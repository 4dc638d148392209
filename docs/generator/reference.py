"""Generates pages from the code: docstrings, thresholds, help texts and the keys of a study file."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click

from advisor.cli.main import cli
from advisor.engine.pages import beyond_playbook_table, chapter_of_rule, rule_page, rule_tables
from advisor.engine.registry import load_rules
from advisor.engine.rule import Rule
from advisor.model import spec_yaml

ROOT = Path(__file__).resolve().parents[2]

SIGNALS = (
    ("PyTorch", "adapters/advisor_pytorch/__init__.py", None),
    ("Lightning", "adapters/advisor_lightning/callback.py", "TuningCallback"),
    ("The Transformers Trainer", "adapters/advisor_transformers/callback.py", "TuningCallback"),
    ("Probes", "adapters/advisor_pytorch/probes/__init__.py", None),
)
"""(heading, file, class) of the docstrings that describe what is logged; class None: the module's docstring."""


@cache
def rules() -> tuple[Rule, ...]:
    """Return the built-in rules."""
    return load_rules()


def pages() -> Mapping[str, str]:
    """Return all pages of this module by path."""
    return {
        "index.md": _readme(),
        "contributing.md": _moved((ROOT / "CONTRIBUTING.md").read_text("utf-8")),
        "rules/index.md": _rules(),
        **{f"rules/{rule.rule_id()}.md": rule_page(type(rule)) for rule in rules()},
        "plans/index.md": _plans(),
        **{f"plans/{name}.md": f"# {name}\n\n{text}" for name, text in plans().items()},
        "study.md": _study_file(),
        "commands.md": "\n".join(_commands()),
        "signals.md": "\n".join(_signals()),
        "examples/first_study.ipynb": (ROOT / "examples/first_study.ipynb").read_text("utf-8"),
        "optimizers.md": f"# Optimizers and the playbook\n\n{docstring('adapters/advisor_pytorch/facts/optimizers.py')}",
    }


def rules_nav() -> list[dict[str, list[str]]]:
    """Return the paths of the rules' pages by chapter."""
    chapters: dict[str, list[str]] = {}
    for rule in rules():
        chapters.setdefault(chapter_of_rule(rule), []).append(f"rules/{rule.rule_id()}.md")
    return [{name: paths} for name, paths in chapters.items()]


def plans_nav() -> list[str]:
    """Return the paths of the plans' pages."""
    return [f"plans/{name}.md" for name in plans()]


def docstring(path: str, cls: str | None = None) -> str:
    """Return the docstring of a module, or of a class in it, without importing it, which could need a framework."""
    tree: ast.Module | ast.ClassDef = ast.parse((ROOT / path).read_text("utf-8"))
    if cls is not None:
        tree = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls)
    return inspect.cleandoc(ast.get_docstring(tree) or "")


@cache
def plans() -> Mapping[str, str]:
    """Return the docstring of each plan, by the name that it starts with."""
    said = (docstring(str(p.relative_to(ROOT))) for p in sorted((ROOT / "advisor/planning/designs").glob("*.py")))
    return {match[1]: text for text in said if (match := re.match(r"The design `([\w-]+)`: ", text))}


def _rules() -> str:
    intro = "`advisor rules` prints this list; `advisor explain RULE` prints the page of a rule."
    return (
        f"# Rules\n\n{intro}\n{rule_tables(rules(), lambda rule: f'{rule.rule_id()}.md')}\n\n{beyond_playbook_table(rules())}\n"
    )


def _plans() -> str:
    rows = (
        f"| [`{name}`]({name}.md) | {' '.join(text.partition(': ')[2].partition('.')[0].split())} |"
        for name, text in plans().items()
    )
    return "\n".join(["# Plans", "", docstring("advisor/planning/__init__.py"), "", "| plan | what |", "|---|---|", *rows])


def _readme() -> str:
    return _moved((ROOT / "README.md").read_text("utf-8"))


def _moved(text: str) -> str:
    """Return the text with its links as they are on the site."""
    moved = {"CONTRIBUTING.md": "contributing.md"}
    return re.sub(r"\]\(([^)#:]+)(?=[)#])", lambda m: f"]({moved.get(m[1], m[1].removeprefix('docs/'))}", text)


def _signals() -> Iterator[str]:
    yield "# What the hooks log"
    for heading, path, cls in SIGNALS:
        yield f"\n## {heading}\n"
        yield docstring(path, cls)


def _commands() -> Iterator[str]:
    yield "# Commands\n"
    yield "The output of `advisor COMMAND --help`."
    for name, command in _all_commands("advisor", cli):
        with click.Context(command, info_name=name, max_content_width=100, terminal_width=100) as context:
            yield f"\n## {name}\n\n```text\n{command.get_help(context)}\n```"


def _all_commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in command.list_commands(context):
            subcommand = command.get_command(context, below)
            assert subcommand is not None
            yield from _all_commands(f"{name} {below}", subcommand)


# --- the study file ---------------------------------------------------------------------------------------------------------------


def _study_file() -> str:
    schema = spec_yaml.study_file_schema()
    parts = [
        "# The study file",
        "One study: one goal, the space it searches, and how its trials are run. `advisor` writes it, people edit it, and "
        "`advisor` reads it back. `advisor schema study` prints the JSON Schema; `advisor init` writes a first study file.",
        *_section("A study", schema),
    ]
    for name in ("Objective", "Parameter", "Region", "Bounds", "Sampler", "Checkpoints"):
        parts += _section(name, schema["$defs"][name])
    kinds = {n: d for n, d in schema["$defs"].items() if "kind" in d.get("properties", {}) and n != "Sampler"}
    parts.append("## Prediction\n\nWhat the advice behind a study predicts about it; `kind` selects one of the following.")
    for name, kind in kinds.items():
        parts += _section(name, kind, level=3)
    return "\n\n".join(parts)


def _section(title: str, schema: Mapping[str, Any], level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {title}"
    if description := schema.get("description"):
        yield str(description)
    rows = ["| key | value | |", "|---|---|---|"]
    for key, field in schema["properties"].items():
        must = " (required)" if key in schema.get("required", ()) else ""
        description = " ".join(str(field.get("description", "")).split())
        rows.append(f"| `{key}`{must} | {_words(field)} | {description} |".replace("||", "| |"))
    yield "\n".join(rows)


def _words(field: Mapping[str, Any]) -> str:
    """Describe the values of a key from its JSON Schema."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return "a [study](#a-study)" if name == "StudySpec" else f"[{name}](#{name.lower()})"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "discriminator" in field:
        return "a [prediction](#prediction)"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_words(f) for f in field["anyOf"] if f.get("type") != "null"))
    return _of_type(field)


def _of_type(field: Mapping[str, Any]) -> str:
    if "prefixItems" in field:
        return f"a list of {len(field['prefixItems'])}: {', '.join(map(_words, field['prefixItems']))}"
    if field["type"] == "array":
        return f"a list: {_words(field['items'])}"
    if field["type"] == "object":
        return f"a mapping of names to: {_words(field['additionalProperties'])}"
    names = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true` or `false`"}
    bounds = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "more than"}
    limits = (f"{words} {field[key]:g}" for key, words in bounds.items() if key in field)
    return ", ".join([names[field["type"]], *limits])
