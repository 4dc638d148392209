"""Nothing that is written holds what signs somebody in: every command, on a real store whose address has a password.

Each command runs with its own home, cache and working folder below one folder. All files there, all texts in the store's tables
and all that was printed are searched for what was planted in addresses and in the environment.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from urllib.parse import quote

import pytest
from clusters import ray_cluster
from commands import contents, run_several
from fault_servers import Postgres, TrackingServer
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.tracking import MlflowClient
from mlflow_studies import log_study

from advisor.cli import main

pytestmark = pytest.mark.xdist_group("secrets")  # they share a server

PASSWORD = "pl/anted:pa55@word"  # as hard to find in an address as it may be
PLANTED = {
    "MLFLOW_TRACKING_TOKEN": "planted-token-1",
    "MLFLOW_TRACKING_PASSWORD": "planted-password-2",
    "AWS_SECRET_ACCESS_KEY": "planted/secret+key=3",
    "PGPASSWORD": "planted-pg-4",
    "WANDB_API_KEY": "planted-wandb-5",
}
FORMS = sorted({form for value in (PASSWORD, *PLANTED.values()) for form in (value, quote(value, safe=""), quote(value))})

STUDY = """
study: planted
goal: find a learning rate
objective: {metric: val/loss, direction: minimize}
parameters:
  learning_rate: {type: float, low: 0.001, high: 0.1, scale: log}
trials: 3
max_train_steps: 5
"""
TRAINING = """
import os, sys
uri, token = os.environ["MLFLOW_TRACKING_URI"], os.environ["MLFLOW_TRACKING_TOKEN"]
if os.environ["ADVISOR_TRIAL"] == "1":
    raise SystemExit(f"cannot log to {uri} with Bearer {token}")
if "PLANTED_HOOK" not in os.environ:
    if os.environ["ADVISOR_TRIAL"] == "2":
        raise SystemExit
    import mlflow
    mlflow.log_metric("val/loss", float(sys.argv[1]), step=5)
    raise SystemExit
import torch
from advisor_pytorch import TuningLogger
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
given = {"learning_rate": float(sys.argv[1]), "database": uri, "note": f"with {token}", "api_key": token}
with TuningLogger(model, optimizer, params=given, objective="val/loss", max_train_steps=5, close_timeout_s=60) as log:
    for step in range(5):
        loss = model(torch.ones(4, 2)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        log.step(loss)
        log.evaluate({"val/loss": float(loss)})
    if os.environ["ADVISOR_TRIAL"] == "2":
        raise RuntimeError(f"lost {uri}")
"""
RULE = '''
"""A rule that breaks."""
import os
from collections.abc import Iterator
from typing import ClassVar
from advisor.model.finding import Finding
from advisor.engine.rule import Rule
from advisor.model.study import Study

class Breaks(Rule):
    """Breaks.

    ## What it looks at
    Nothing.
    ## Why it matters
    It does not.
    ## What to do
    Nothing.
    """
    playbook: ClassVar[str] = "Choosing the model architecture"
    goal: ClassVar = "boundary"
    def check(self, study: Study) -> Iterator[Finding]:
        raise ValueError(f"{os.environ['AWS_SECRET_ACCESS_KEY']} at {os.environ['PLANTED_URI']}")
'''


class World:
    """A folder with all that commands write, their output, and the store."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder, self.uri, self.said = folder, uri, ""
        homes = {name: str(folder / name.lower()) for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "TMPDIR")}
        for home in homes.values():
            Path(home).mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_TRACKING", "MLFLOW_RUN", "ADVISOR"))}
        self.environment = {**kept, **homes, **PLANTED, "PLANTED_URI": uri, "MLFLOW_TRACKING_URI": uri}

    def run(self, *commands: Sequence[str]) -> list[int]:
        """Run commands of the advisor, one after another in one process; their exit statuses."""
        options = {"env": self.environment, "capture_output": True, "text": True, "timeout": 1500}
        done, statuses = run_several(commands, self.folder, **options)
        self.said += done.stdout + done.stderr
        assert done.returncode == 0, self.said
        return statuses

    def found(self) -> list[str]:
        """Where any of what was planted stands: in a file, its name, or what was printed."""
        texts = {"printed": self.said.encode()}
        for path in self.folder.rglob("*"):
            texts[f"name of {path}"] = str(path).encode()
            if path.is_file() and not path.is_symlink():
                texts[str(path)] = path.read_bytes()
        return [
            f"{form} in {where}: {text[max(0, at - 300) : at + 100]!r}"
            for where, text in texts.items()
            for form in FORMS
            if (at := text.find(form.encode())) >= 0
        ]


@pytest.fixture(scope="module")
def new_database() -> Iterator[Callable[[str], str]]:
    """Create an empty store in PostgreSQL that this password signs in to; return its address.

    The databases are copies of one that MLflow has set up, on one server that accepts any password.
    """
    import psycopg

    if Postgres.binaries() is None:
        pytest.skip("needs PostgreSQL: initdb is not there")
    postgres, number = Postgres(), count()
    try:
        SqlAlchemyStore(postgres.uri, "artifacts").engine.dispose()

        def create(password: str) -> str:
            name = f"store{next(number)}"
            server = postgres.uri.replace("postgresql+psycopg2", "postgresql").rpartition("/")[0]
            with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name} TEMPLATE mlflow")
            return postgres.uri.replace("pa55word", password).removesuffix("mlflow") + name

        yield create
    finally:
        postgres.remove()


@pytest.fixture
def database(new_database: Callable[[str], str]) -> str:
    """Address of a PostgreSQL store that a user with a password signs in to."""
    return new_database(quote(PASSWORD, safe=""))


@pytest.fixture(
    params=["database", *(pytest.param(where, marks=pytest.mark.slow) for where in ("database, hook", "server, hook"))]
)
def world(request: pytest.FixtureRequest, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    if "hook" in request.param:
        monkeypatch.setenv("PLANTED_HOOK", "1")
    if "database" in request.param:
        yield World(tmp_path, database)
        return
    outside = tmp_path / "server"
    outside.mkdir()
    server = TrackingServer(database.replace(quote(PASSWORD, safe=""), "other"), outside)
    server.start()
    (tmp_path / "world").mkdir()
    try:
        yield World(tmp_path / "world", server.uri.replace("//", f"//user:{quote(PASSWORD, safe='')}@"))
    finally:
        server.kill()


def in_tables(uri: str) -> str:
    """All texts of a PostgreSQL store."""
    import psycopg

    texts: list[str] = []
    with psycopg.connect(uri.replace("postgresql+psycopg2", "postgresql")) as connection:
        tables = connection.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        for (table,) in tables.fetchall():
            texts += [row for (row,) in connection.execute(f'SELECT t::text FROM "{table}" t')]  # type: ignore[arg-type]
    return "\n".join(texts)


def test_no_command_writes_what_signs_in(world: World, database: str) -> None:
    folder = world.folder
    (folder / "study.yaml").write_text(STUDY)
    (folder / "train.py").write_text(TRAINING)
    (folder / "rules" / "space").mkdir(parents=True)
    (folder / "rules" / "space" / "breaks.py").write_text(RULE)

    train = ["run", "study.yaml", "--keep-going", "-j", "3", "--", sys.executable, "train.py", "{learning_rate}"]
    analyze = ["analyze", "planted", "--rules", "rules", "--log-to-mlflow", "--out"]
    exports = [["export", kind, "study.yaml", "--out", f"{kind}.txt"] for kind in ("optuna", "ray", "wandb", "hydra")]
    seeded = ["export", "optuna", "study.yaml", "--experiment", "planted", "--out", "seeded.py"]
    compare = ["compare", "-e", "planted", "trial-0000", "trial-0002"]
    history = [["history"], ["history", "--format", "markdown"], ["history", "--format", "json"]]
    commands = [[*analyze, "one"], [*analyze, "again"], *history, compare, *exports, seeded, ["sync"]]
    first, *statuses, _ = world.run(train, *commands, train)
    assert first == 1
    assert [words for words, status in zip(commands, statuses, strict=True) if status and words != compare] == []
    assert "cannot log to" in world.said  # the last words of a training that failed, for all to read
    printed = list(folder.glob("advisor-runs/planted/*.log"))
    # What a training prints is its own affair, and nobody else's.
    assert any(form in log.read_text() for log in printed for form in FORMS)
    assert (folder / "advisor-runs" / "planted").stat().st_mode & 0o077 == 0
    for log in printed:
        log.unlink()
    verdicts = json.loads((folder / "one" / "findings.json").read_text())["verdicts"]
    shown = re.sub("//.*@", "//***@", world.uri)
    assert next(v for v in verdicts if v["rule"] == "breaks")["reason"] == f"ValueError: *** at {shown}"
    assert world.found() == []
    stored = in_tables(database)
    assert [form for form in FORMS if form in stored] == []
    assert f"cannot log to {shown} with Bearer ***" in stored


HARD = ('pa"ss12', "pa@ss12", "pa'ss12", "pa ss12", "pa\tss12", "5/abcd", "pa#ss12")
"""Passwords that patterns missed, as users put them into an address."""


@pytest.mark.parametrize("passwords", [HARD[:1], pytest.param(HARD[1:], marks=pytest.mark.slow)], ids=["one", "others"])
def test_addresses_that_only_an_option_gives_are_hidden_too(
    passwords: tuple[str, ...], new_database: Callable[[str], str], tmp_path: Path
) -> None:
    world = World(tmp_path, "")
    for name in ("PLANTED_URI", "MLFLOW_TRACKING_URI", *PLANTED):
        del world.environment[name]
    (tmp_path / "study.yaml").write_text(STUDY.replace("trials: 3", "trials: 1"))
    script = "import os, sys, mlflow; mlflow.log_metric('val/loss', 0.5, step=5); sys.exit(os.environ['MLFLOW_TRACKING_URI'])"
    (tmp_path / "train.py").write_text(script)
    databases = [new_database(quote(password, safe="")) for password in passwords]
    commands: list[list[str]] = []
    for number, (password, quoted) in enumerate(zip(passwords, databases, strict=True)):
        out = f"out-{number}"
        run = ["run", "study.yaml", "--keep-going", f"--tracking-uri={quoted}", "--out", f"{out}/runs"]
        uris = {"raw": quoted.replace(quote(password, safe=""), password), "quoted": quoted}
        commands += [
            [*run, "--", sys.executable, "train.py", "{learning_rate}"],
            *(["analyze", "planted", f"--tracking-uri={uri}", "--out", f"{out}/{kind}"] for kind, uri in uris.items()),
            ["survey", f"--tracking-uri={quoted}", "--out", f"{out}/all"],
        ]
    world.run(*commands)
    logs = list(tmp_path.glob("out-*/runs/**/*.log"))
    assert len(logs) == len(passwords)
    for log in logs:
        log.unlink()
    forms = {form for password in passwords for form in _forms(password)}
    assert [form for form in forms if form in world.said] == []
    written = [
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name not in ("train.py", "study.yaml")
    ]
    assert [form for form in forms for text in written if form.encode() in text] == []
    stored = [in_tables(uri) for uri in databases]
    assert all("val/loss" in text for text in stored)
    assert [form for form in forms for text in stored if form in text] == []


def _forms(password: str) -> set[str]:
    quoted = {quote(password), quote(password, safe="")}
    return {password, *quoted, json.dumps(password)[1:-1], repr(password)[1:-1]}


@pytest.mark.slow
def test_neither_a_cluster_nor_its_nodes_write_what_signs_in(database: str, tmp_path: Path) -> None:
    log_study(MlflowClient(database), "planted", [0.1, 0.2, 0.3])
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "breaks.py").write_text(RULE.replace("PLANTED_URI", "MLFLOW_TRACKING_URI"))
    survey = ["survey", "planted", "--rules", "rules", "--out"]
    with ray_cluster({"num_cpus": 1}) as cluster:
        on_ray = ["--on", "ray", "--ray-address", cluster.address]
        world = World(tmp_path, database)
        assert world.run([*survey, "here"], [*survey, "there", *on_ray]) == [0, 0]
        of_nodes = Path(cluster.head_node.get_session_dir_path())
        read = [path.read_bytes() for path in of_nodes.rglob("*") if path.is_file() and not path.is_symlink()]
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    assert b"ValueError: *** at postgresql" in next((tmp_path / "there").rglob("findings.json")).read_bytes()
    assert world.found() == []
    assert read
    assert [form for form in FORMS for text in read if form.encode() in text] == []


# --- errors -----------------------------------------------------------------------------------------------------------------------

RAW = "postgresql://user:pl/anted:pa55@word@127.0.0.1:9/x"  # SQLAlchemy takes a password so


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        ("analyze x --tracking-uri http://user:planted@127.0.0.1:9", {}),
        ("analyze x --tracking-uri http://127.0.0.1:9", {"MLFLOW_TRACKING_TOKEN": "planted-token\r\n"}),
        ("analyze x --tracking-uri http://user:planted@[::1", {}),
        (f"analyze x --tracking-uri {RAW}", {}),
        ("analyze x --tracking-uri postgresql://user:planted@127.0.0.1:port/x", {}),
        ("analyze x --tracking-uri postgresql://user:planted@127.0.0.1:9/x?nonsense=1&password=planted", {}),
        ("analyze x --tracking-uri user:planted@127.0.0.1:9", {}),
        ("survey x --tracking-uri http://user:planted@127.0.0.1:9", {}),
        ("history --tracking-uri http://user:planted@127.0.0.1:9", {}),
        ("compare a b --tracking-uri http://user:planted@127.0.0.1:9", {}),
        (f"import optuna {RAW}", {}),
        ("import optuna nonsense://user:planted@127.0.0.1:9/x", {}),
        ("import tables nothing.csv none.csv --tracking-uri http://user:planted@127.0.0.1:9", {}),
        ("run study.yaml --tracking-uri http://user:planted@127.0.0.1:9 -- true", {}),
        ("run study.yaml --tracking-uri postgresql://user:planted@127.0.0.1:port/x -- true", {}),
    ],
)
def test_no_error_tells_what_signs_in(
    words: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    said = "".join(capfd.readouterr())
    assert ended.value.code == 2
    assert "pl/anted" not in said
    assert "planted" not in said.replace("'planted'", "")  # the study's name
    assert "bug" not in said
    assert len(said.splitlines()) == 1
