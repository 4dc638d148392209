"""The server, as the SDK's own client sees it: each tool, the names of a hostile store, and who may write."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import signal
import sqlite3
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from commands import ADVISOR, start
from mcp import Client, StdioServerParameters, stdio_client
from mlflow.tracking import MlflowClient
from mlflow_studies import log_study

from advisor.cli.mcp.quoting import QUOTED_TEXT_NOTICE
from advisor.cli.mcp.tools import NOT_RECORDED_NOTE, STUDY_NOT_WRITTEN_NOTE
from advisor.model.spec_yaml import parse_study_file

from .hostile_names import HOSTILE, ORDER, log_hostile

TOOLS = "list_experiments analyze_experiment next_study gate explain_rule history compare check_study".split()
Call = Callable[..., Awaitable[tuple[bool, str]]]


@asynccontextmanager
async def session(uri: str, folder: Path) -> AsyncIterator[tuple[Client, Call]]:
    """A client of a server over standard input and output, and a function that calls a tool."""
    words = [*ADVISOR[1:], "mcp", "--tracking-uri", uri]
    server = StdioServerParameters(command=ADVISOR[0], args=words, env=dict(os.environ), cwd=folder)
    async with Client(stdio_client(server)) as client:
        yield client, caller(client)


def caller(client: Client) -> Call:
    """Return a function that calls a tool: (is an error, text)."""

    async def call(tool: str, **arguments: Any) -> tuple[bool, str]:
        result = await client.call_tool(tool, arguments)
        (content,) = result.content
        return bool(result.is_error), content.text  # type: ignore[union-attr]

    return call


def run(session: Callable[[], Awaitable[None]]) -> None:
    """Run a session in a thread of its own: a browser of other tests keeps an event loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(anyio.run, session).result()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def gate_tags(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [row[0] for row in database.execute("SELECT value FROM tags WHERE key = 'advisor.gate'")]


@pytest.fixture
def store(database: str, tmp_path: Path) -> Path:
    log_study(MlflowClient(database), "study", [0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0])
    return tmp_path / "mlflow.db"


def test_every_tool_answers_and_none_writes(store: Path, tmp_path: Path) -> None:
    before, names = digest(store), sorted(p.name for p in tmp_path.iterdir())

    async def ask() -> None:
        async with session(f"sqlite:///{store}", tmp_path) as (client, call):
            listed = (await client.list_tools()).tools
            assert [t.name for t in listed] == TOOLS
            assert all(t.annotations is not None and t.annotations.read_only_hint for t in listed)
            assert all(t.description for t in listed)
            assert client.instructions is not None
            assert QUOTED_TEXT_NOTICE in client.instructions
            yaml = ""
            for tool, arguments, key, value in (
                ("list_experiments", {}, "experiments", [{"id": "1", "name": "study"}, {"id": "0", "name": "Default"}]),
                ("list_experiments", {"pattern": "st*"}, "action", "1 experiment."),
                ("analyze_experiment", {"experiment": "study"}, "trials", 7),
                ("next_study", {"experiment": "1"}, "studies", 1),
                ("gate", {"experiment": "study", "candidate": "trial-3"}, "decision", "not decided"),
                ("explain_rule", {"rule": "space-boundary"}, "rule", "space-boundary"),
                ("history", {"experiment": "study"}, "judged", 1),
                ("history", {"experiment": "study", "near": "lr=0.3"}, "near", {"lr": 0.3}),
                ("compare", {"experiment": "study", "candidate": "trial-3", "incumbent": "trial-1"}, "metric", "val_loss"),
            ):
                failed, text = await call(tool, **arguments)
                answer = json.loads(text)
                assert not failed, text
                assert answer["quoted"][key] == value
                yaml = answer["quoted"].get("yaml", yaml)
                note = {"gate": NOT_RECORDED_NOTE, "next_study": STUDY_NOT_WRITTEN_NOTE}.get(tool)
                assert answer.get("note") == note
            assert parse_study_file(yaml).parent == "study"
            failed, text = await call("check_study", text=yaml)
            assert not failed
            assert json.loads(text)["quoted"]["study"] == "study-round-2"
            for tool, arguments, error in (
                ("check_study", {"text": yaml.replace("low:", "lowest:")}, "lowest: is not a key of a study file"),
                ("check_study", {"text": "a: b" * 20_000}, "longer than 40,000 characters"),
                ("check_study", {"text": str(store)}, "a study file is a mapping"),
                ("analyze_experiment", {"experiment": "../study"}, "no experiment named '../study'"),
                ("next_study", {"experiment": "study", "number": 9}, "1 study planned"),
                ("history", {"near": "lr=1"}, "`near` needs `experiment`"),
                ("explain_rule", {"rule": "space-boundry"}, "did you mean 'space-boundary'?"),
            ):
                failed, text = await call(tool, **arguments)
                assert failed
                assert error in json.loads(text)["quoted"]["error"]

    run(ask)
    assert digest(store) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == names


@pytest.fixture
def hostile(database: str, tmp_path: Path) -> tuple[str, str, Path]:
    """Address, id of the experiment, and file of a store of attacks."""
    return database, log_hostile(database), tmp_path / "mlflow.db"


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from texts(item)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), "a key stands twice, so it may be forged"
    return dict(pairs)


SENTENCES = ("action", "why", "reason", "notes", "incumbent_is")


def sentences(value: Any) -> Iterator[str]:
    """Sentences of ours: values of these keys, at any depth. `why` of a setting that was tried is an error that a run logged."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from texts(item) if key in SENTENCES else sentences(item) if key != "tried" else ()


def assert_quoted(text: str) -> dict[str, Any]:
    """Assert that an answer is one JSON object of our shape without anything invisible, and return the quoted data."""
    assert text.isascii()
    assert text.isprintable()
    assert not set("<>") & set(text)
    answer: dict[str, Any] = json.loads(text, object_pairs_hook=unique)
    assert list(answer) in (["notice", "quoted"], ["notice", "note", "quoted"])
    assert answer["notice"] == QUOTED_TEXT_NOTICE
    assert answer.get("note") in (None, NOT_RECORDED_NOTE, STUDY_NOT_WRITTEN_NOTE)
    quoted: dict[str, Any] = answer["quoted"]
    study = quoted.pop("yaml", "")
    assert all(unicodedata.category(c)[0] != "C" for c in study.replace("\n", ""))
    for part in texts(quoted):
        assert len(part) <= 1200
        assert not [c for c in part if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")]
        assert not set("\u3164\u2800\u115f") & set(part)
        assert not [c for c in part if "\ufe00" <= c <= "\ufe0f" or c >= "\U000e0100"]
    for part in sentences(quoted):
        own = re.sub(r'`[^`]*`|"[^"]*"', "", part)
        assert ORDER not in own.lower(), part
    return quoted


def test_names_reach_nobody_as_instructions(hostile: tuple[str, str, Path], tmp_path: Path) -> None:
    uri, id, path = hostile
    before = digest(path)
    runs = [r.info.run_id for r in MlflowClient(uri).search_runs([id])]

    async def ask() -> None:
        async with session(uri, tmp_path) as (client, call):
            described = " ".join(t.model_dump_json() for t in (await client.list_tools()).tools)
            assert ORDER not in f"{described} {client.instructions}".lower()
            seen = ""
            calls: list[tuple[str, dict[str, Any]]] = [
                ("list_experiments", {}),
                ("list_experiments", {"pattern": "*previous*"}),
                ("analyze_experiment", {"experiment": id}),
                ("next_study", {"experiment": id}),
                ("history", {"experiment": id}),
                ("history", {"experiment": id, "near": runs[3]}),
                *(("gate", {"experiment": id, "candidate": run, "against": runs[0]}) for run in runs[1:]),
                *(("compare", {"experiment": id, "candidate": run, "incumbent": runs[0]}) for run in runs[1:]),
            ]
            for tool, arguments in calls:
                failed, text = await call(tool, **arguments)
                assert not failed or "no run of" in text, text  # some runs failed
                seen += json.dumps(assert_quoted(text))
            for tool, arguments in (
                ("analyze_experiment", {"experiment": "nothing"}),
                ("gate", {"experiment": id, "candidate": "nothing"}),
                ("gate", {"experiment": id, "candidate": "nothing=1"}),
            ):
                failed, text = await call(tool, **arguments)
                assert failed
                seen += assert_quoted(text)["error"]
            assert seen.lower().count(ORDER) > len(HOSTILE)  # the attack arrived, as data

    run(ask)
    assert digest(path) == before


def status(address: str, **headers: str) -> int:
    """Return the status of a request that opens a session, with these headers."""
    parts = urlsplit(address)
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"} | headers
    with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)) as connection:
        connection.request("POST", parts.path, body, sent)
        return connection.getresponse().status


def test_http_answers_this_machine_and_no_page_of_another_site_and_records_with_permission(store: Path, tmp_path: Path) -> None:
    options = ["--port", "0", "--allow-run", "--out", "out"]
    server = start(["mcp", "--tracking-uri", f"sqlite:///{store}", *options], tmp_path)
    try:
        assert server.stderr is not None
        address = server.stderr.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", address)

        async def ask() -> None:
            async with Client(address) as client:
                listed = (await client.list_tools()).tools
                assert [t.name for t in listed] == TOOLS
                writing = {t.name for t in listed if t.annotations is not None and not t.annotations.read_only_hint}
                assert writing == {"gate", "next_study"}
                call = caller(client)
                failed, text = await call("analyze_experiment", experiment="study")
                assert not failed
                assert json.loads(text)["quoted"]["trials"] == 7
                assert gate_tags(store) == []
                failed, text = await call("gate", experiment="study", candidate="trial-3")
                assert not failed
                assert json.loads(text)["quoted"]["recorded"] is True
                failed, text = await call("next_study", experiment="study")
                quoted = json.loads(text)["quoted"]
                assert (tmp_path / quoted["file"]).read_text("utf-8") == quoted["yaml"]

        run(ask)
        assert status(address) == 200
        assert status(address, Host="evil.example") == 421
        assert status(address, Origin="http://evil.example") == 403
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)
    assert server.returncode == 130
    assert len(gate_tags(store)) == 1
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["findings.json", "findings.sarif", "next", "report.html"]
