"""Hooks that MkDocs calls to build the site. Most pages are generated from the code, so both always agree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from posixpath import dirname, relpath
from typing import Any

import reference
import worked
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


@cache
def pages() -> Mapping[str, str]:
    """Return the generated pages and style sheet by path."""
    return {**reference.pages(), **worked.pages()}


@cache
def pages_by_id() -> Mapping[str, str]:
    """Return the pages of rules and plans by id, without one-word ids: `seeds` is also a key of a study file."""
    matches = (re.fullmatch(r"(?:rules|plans)/(\w+-[\w-]+)\.md", path) for path in pages())
    return {match[1]: match[0] for match in matches if match is not None}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation."""
    config.nav = [
        {"Start": ["index.md", "tutorial.md"]},
        {
            "How to": [
                "logging.md",
                "importing.md",
                "analyzing.md",
                "running.md",
                "rounds.md",
                "guard.md",
                "autopsy.md",
                "gate.md",
                "ladder.md",
                "agents.md",
                "ci.md",
                "own-rules.md",
            ]
        },
        {
            "Understand": [
                "reports.md",
                "reading.md",
                "accuracy.md",
                "not-found.md",
                "threat-model.md",
                "architecture.md",
                "decisions.md",
            ]
        },
        {"Worked examples": sorted(worked.nav())},
        {"Rules": ["rules/index.md", *reference.rules_nav()]},
        {"Plans": ["plans/index.md", *reference.plans_nav()]},
        {"Reference": ["study.md", "commands.md", "signals.md", "optimizers.md", "compatibility.md", "contributing.md"]},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Link the names of rules and plans to their pages, outside of code and headings."""
    here = page.file.src_uri
    parts = re.split(r"(^```(?s:.*?)^```$|^    .*$|^#.*$|\[[^\]\n]*\]\([^)\n]*\))", markdown, flags=re.MULTILINE)
    return "".join(part if i % 2 else _linked(part, here) for i, part in enumerate(parts))


def _linked(text: str, here: str) -> str:
    def link(match: re.Match[str]) -> str:
        path = pages_by_id().get(match[1])
        return match[0] if path in (None, here) else f"[`{match[1]}`]({relpath(str(path), dirname(here) or '.')})"

    return re.sub(r"(?<!`)`([a-z][a-z-]+)`(?!`)", link, text)
