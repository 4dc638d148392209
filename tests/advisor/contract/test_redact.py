"""Secrets of addresses are hidden by value, whatever characters they hold and whichever way they come in."""

from __future__ import annotations

import json
import random
import shlex
import time
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

import pytest

from advisor.contract import redact as module
from advisor.contract.redact import (
    denotes_secret,
    one_line_error,
    redact,
    redact_arguments,
    redact_code,
    redact_value,
    register_address_secrets,
)

_CHARACTERS = "abcXYZ019'\"@#/?:&=%+ \t\\!$*()[]{};,.~^|<>é"
SCHEMES = ("postgresql", "postgresql+psycopg2", "mysql+pymysql", "mssql+pyodbc")


def passwords(count: int) -> Iterator[str]:
    """Generated passwords, after those that were seen to leak."""
    yield from ("pa'ss12", 'pa"ss12', "pa ss12", "pa\tss12", "5/abc", "pa@ss12", "pa#ss12", "a/b:c@d")
    rng = random.Random(7)
    for _ in range(count):
        yield "".join(rng.choice(_CHARACTERS) for _ in range(rng.randint(6, 24))).strip() or "secret"


PASSWORDS = tuple(passwords(200))


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_secret_replacements", {})


def fresh() -> Iterator[str]:
    """The passwords; before each, nothing is known of the one before."""
    for password in PASSWORDS:
        module._secret_replacements.clear()
        yield password


def address(password: str, scheme: str = "postgresql") -> str:
    return f"{scheme}://bob:{password}@host:5432/db"


def forms(password: str) -> list[str]:
    quoted = [quote(password, safe=""), quote(password), quote_plus(password)]
    return [password, *quoted, json.dumps(password)[1:-1], repr(password)[1:-1]]


def texts(password: str, uri: str) -> list[str]:
    """Sentences in which a message, a log or a file may hold the password or its address."""
    quoted = address(quote(password, safe=""))
    given = [f"cannot reach {uri}: refused", f"uri={uri!r}", shlex.join(["run", uri]), json.dumps({"uri": uri}), f"`{quoted}`"]
    return [*given, *(f"password authentication failed: {form} is wrong" for form in forms(password))]


def assert_hidden(password: str, *said: str) -> None:
    for text in said:
        for form in forms(password):
            assert form not in text, text


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_address_by_option_hides_its_password_everywhere(scheme: str) -> None:
    for password in fresh():
        uri = address(password, scheme)
        assert register_address_secrets(uri) == f"{scheme}://***@host:5432/db"
        assert_hidden(password, *map(redact, texts(password, uri)), *map(one_line_error, texts(password, uri)))


def test_an_address_by_parameter_hides_its_password() -> None:
    for password in fresh():
        uri = address(password)
        assert_hidden(password, redact_value(uri), *map(redact, texts(password, uri)))


@pytest.mark.parametrize("words", [["--uri", "{}"], ["--uri={}"], ["db={}"], ["{}"]])
def test_an_address_on_the_command_line_hides_its_password(words: list[str]) -> None:
    for password in fresh():
        uri = address(password)
        command = redact_arguments(["train.py", *(word.format(uri) for word in words)])
        assert_hidden(password, *command, shlex.join(command), *map(redact, texts(password, uri)))


def test_an_address_in_the_environment_hides_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for password in fresh():
        if len(password) < 6:
            continue
        monkeypatch.setenv("DATABASE", address(password))
        assert_hidden(password, *map(redact, texts(password, address(password))))


@pytest.mark.parametrize(
    "name", ["MYSQL_PWD", "SSH_KEY", "WANDB_KEY", "AZURE_STORAGE_KEY", "GITHUB_PAT", "MLFLOW_TRACKING_TOKEN", "DB_PASS"]
)
def test_variables_that_are_called_secrets_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "planted-secret")
    assert redact("got planted-secret, 'planted-secret'") == "got ***, '***'"


def test_the_working_directory_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWD", "/home/me/project")
    monkeypatch.setenv("OLDPWD", "/home/me/elsewhere")
    assert redact("in /home/me/project, /home/me/elsewhere") == "in /home/me/project, /home/me/elsewhere"


def test_a_secret_of_several_lines_is_hidden_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "-----BEGIN KEY-----\nabcdefgh1234\nijklmnop5678\n-----END KEY-----"
    monkeypatch.setenv("SSH_KEY", key)
    for text in (f"got {key}", "line abcdefgh1234 of it", " ".join(key.split())):
        assert "abcdefgh1234" not in redact(text)
        assert "ijklmnop5678" not in one_line_error(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://localhost:5000/#/models/foo@champion",
        "https://host/path?to=me@example.org",
        "sqlite:///mlflow.db",
        "sqlite:////home/me@corp/mlflow.db",
        "file:///C:/Users/me@corp/x",
        "s3://bucket/data@v1",
        "gs://b/ckpt@1000/x",
        "hf://org/m@main",
        "http://[::1]:5000/#/models/foo@champion",
        "https://host/x?sort_key=name",
        "see me@host",
        "0.001",
    ],
)
def test_what_holds_no_secret_stays(text: str) -> None:
    assert register_address_secrets(text) == text
    assert redact(text) == text


def test_a_web_address_is_parsed_as_urllib_does() -> None:
    assert register_address_secrets("https://me:planted@host/x") == "https://***@host/x"
    assert redact("Bearer planted") == "Bearer ***"
    assert register_address_secrets("https://host/x?password=hidden12") == "https://host/x?password=***"
    assert redact("it was hidden12") == "it was ***"


@pytest.mark.parametrize(("name", "secret"), [("ssh_key", True), ("storage-key", True), ("db_pwd", True), ("sort_key", False)])
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert denotes_secret(name) is secret


@pytest.mark.parametrize(
    "line",
    [
        'cfg["api_key"] = "planted"',
        'os.environ["DB_PASSWORD"] = "planted"',
        'api_key: str = "planted"',
        'PGPASSWORD = "planted"',
        'connect(password=f"planted")',
        'secret = """planted"""',
        "password: planted9",
        "+ export PGPASSWORD=planted9",
    ],
)
def test_secrets_of_code_and_configuration_are_hidden(line: str) -> None:
    assert "planted" not in redact_code(line)


@pytest.mark.parametrize(
    "line", ["def f(token=None):", "    password: str", "key = args.key", "api_key = settings.api_key", "max_tokens = 5"]
)
def test_code_without_secrets_stays(line: str) -> None:
    assert redact_code(line) == line


@pytest.mark.parametrize(
    "text", ["password='planted'", "db_password=planted", "AWS_SECRET_ACCESS_KEY=planted", "https://h/x?sig=planted"]
)
def test_assignments_in_messages_are_hidden(text: str) -> None:
    assert "planted" not in redact(text)


def test_what_the_command_line_hides_is_hidden_later_too() -> None:
    assert redact_arguments(["run", "PGPASSWORD=planted", "--password", "-secret1"]) == [
        "run",
        "PGPASSWORD=***",
        "--password",
        "***",
    ]
    assert redact("refused: planted, -secret1") == "refused: ***, ***"
    assert register_address_secrets("https://h/x?access_token=planted-9") == "https://h/x?access_token=***"


@pytest.mark.parametrize(
    "words",
    [
        ["--config", '{"api_key": "planted-1"}'],
        ["--config", '{"lr": 1, "password": planted-1}'],
        ["+login={user: me, api_key: planted-1}"],
        ["--pass", "planted-1"],
        ["--pass=planted-1"],
        ["--db-pass", "planted-1"],
        ["-H", "Authorization: Bearer planted-1"],
        ["-H", "Authorization: planted-1"],
        ["--header=Authorization: Basic planted-1"],
        ["-H", "X-Api-Key: planted-1"],
        ["--headers", '{"Authorization": "Bearer planted-1"}'],
        ["-c", "wandb.login(key='planted-1')"],
        ["-c", 'import wandb\nwandb.login(relogin=True, key = "planted-1")'],
        ["--authorization", "planted-1"],
        ["bearer planted-1"],
    ],
)
def test_secrets_inside_arguments_are_hidden(words: list[str]) -> None:
    assert "planted" not in " ".join(redact_arguments(["train.py", *words]))


@pytest.mark.parametrize(
    "words",
    [
        ["--passes", "3"],
        ["--keys", "a,b"],
        ["--tokenizer", "gpt2"],
        ["--max-tokens", "5"],
        ["--bypass", "x"],
        ["--two-pass", "data.csv"],
        ["--config", '{"lr": 0.1, "key": "loss", "max_tokens": 5, "tokenizer": "gpt2"}'],
        ["-c", "sorted(rows, key=len)"],
        ["--monkey='x'"],
        ["C:/data", "a:b", "s3://bucket/data"],
    ],
)
def test_arguments_without_secrets_stay(words: list[str]) -> None:
    assert redact_arguments(words) == words


LONG = (
    "y",
    "y.",
    "a=",
    "password=",
    "'password",
    "password: ",
    "token ",
    "\n",
    " ",
    ".",
    "://",
    "://a:b",
    "a='",
    "-",
    '"password": "',
    "password:",
    "authorization: ",
    "bearer ",
    "key=",
    "key='",
)


@pytest.mark.parametrize("part", LONG)
def test_a_long_text_takes_time_in_proportion_to_its_length(part: str) -> None:
    """Backtracking over 200,000 such characters took minutes in the training thread."""
    text = part * (200_000 // len(part))
    assert redact(text)
    assert redact_code(text)
    assert redact_arguments([text])
    assert len(one_line_error(text)) <= 300


def test_a_name_may_follow_a_sign_or_a_digit() -> None:
    assert redact("--password=hunter22 _token=abcdef99 2fa.secret=xyzxyz7") == "--password=*** _token=*** 2fa.secret=***"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:a/b@c@host/db", "postgresql://***@host/db"),
        ("see http://host:5000/#/experiments and me@host", "see http://host:5000/#/experiments and me@host"),
        ("http://token@host, https://me:pw@host", "http://***@host, https://***@host"),
        (f"postgresql://iam:{'x' * 900}@host/db", "postgresql://***@host/db"),
        ("http://localhost:5000/#/models/foo@champion", "http://localhost:5000/#/models/foo@champion"),
        ("?sslpassword=x&sslmode=require", "?sslpassword=***&sslmode=require"),
        ("Bearer tok3n-of-mine.", "Bearer ***."),
        ("my tok3n-of-mines", "my tok3n-of-mines"),
        ("a short one", "a short one"),
    ],
)
def test_what_is_taken_out_of_a_text(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", " tok3n-of-mine\r\n")
    monkeypatch.setenv("OTHER_SECRET", "short")
    assert redact(text) == shown


def test_a_long_line_of_addresses_takes_no_time() -> None:
    line = "http://a:" * 20_000
    began = time.process_time()
    assert redact(line) == line
    assert time.process_time() - began < 5
