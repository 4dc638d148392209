"""Study files and settings: whatever is in them, a study or one clear line; and exports in which a name stays a name."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from advisor.engine.registry import load_rules
from advisor.engine.settings import find_settings
from advisor.interop.exports import EXPORT_FORMATS
from advisor.model import spec_yaml
from advisor.model.spec import Objective, Parameter, StudySpec
from tests.fuzz.inputs import damaged, text, twisted
from tests.fuzz.outcome import advisor, called, cases, place

SPEC: dict[str, Any] = {
    "study": "s",
    "goal": "find a learning rate",
    "round": 2,
    "parent": "r",
    "objective": {"metric": "val/loss", "direction": "minimize"},
    "parameters": {
        "lr": {"low": 1e-4, "high": 0.1, "scale": "log", "why": "as before"},
        "beta": {"low": 0.5, "high": 0.99, "scale": "reverse-log"},
        "layers": {"type": "int", "low": 1, "high": 8},
        "act": {"role": "scientific", "choices": ["relu", "gelu"]},
        "bn": {"type": "bool", "when": {"act": "relu"}},
        "width": {"role": "fixed", "value": 64, "searched_in": {"low": 8, "high": 128}},
        "product": {"role": "derived", "formula": "lr * (1 - beta)"},
    },
    "forbidden": [{"where": {"lr": {"low": 0.05}, "act": {"choices": ["gelu"]}}, "why": "it diverged there"}],
    "trials": 5,
    "sampler": {"kind": "halton", "seed": 1},
    "max_train_steps": 1000,
    "checkpoints": {"keep_best": 2, "every": 100},
    "schedule": {"kind": "cosine", "warmup_steps": 10},
    "notes": ["use one machine"],
    "baseline": {"study": "q", "objective": {"metric": "val/loss", "direction": "minimize"}},
}
PLAIN = {**SPEC, "parameters": {k: v for k, v in SPEC["parameters"].items() if k in ("lr", "layers", "act", "width")}}
PLAIN = {k: v for k, v in PLAIN.items() if k != "forbidden"}
RULES = load_rules()


def written(tree: Any) -> bytes:
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")


COMMANDS = (
    ("sample", "FILE"),
    ("sample", "FILE", "--format", "table"),
    ("run", "FILE", "--dry-run", "--", "train", "--lr={lr}", "{args}"),
    *(("export", kind, "FILE", *points) for kind in EXPORT_FORMATS for points in ((), ("--points", "-n", "2"))),
)


def ask(words: tuple[str, ...], content: bytes) -> None:
    with place() as folder:
        file = folder / "study.yaml"
        file.write_bytes(content)
        advisor(*(str(file) if word == "FILE" else word for word in words), folder=folder)


@cases(1300)
@given(st.sampled_from(COMMANDS), st.one_of(twisted(SPEC), twisted(PLAIN)))
def test_a_study_file_with_something_wrong(words: tuple[str, ...], tree: Any) -> None:
    ask(words, written(tree))


@cases(1300)
@given(st.sampled_from(COMMANDS[:2]), damaged(written(SPEC)))
def test_a_damaged_study_file(words: tuple[str, ...], content: bytes) -> None:
    ask(words, content)


@cases(800)
@given(twisted(SPEC))
def test_what_is_written_is_read_back(tree: Any) -> None:
    with place() as folder:
        spec = called(lambda: spec_yaml.parse_study_file(written(tree).decode("utf-8", "replace")), folder=folder)
        if spec is not None:
            again = spec_yaml.parse_study_file(spec_yaml.format_study_file(spec, parent=spec))
            assert repr(again) == repr(spec), "what is written is not read back"  # as text, since NaN is no NaN


SETTINGS = b"[rules.space-boundary]\nedge = 0.1\nbest = 5\n[tool.advisor.rules.x]\na = [1, 2]\nb = {c = 2020-01-01}\n"


@cases(1000)
@given(st.sampled_from(["advisor.toml", "pyproject.toml"]), damaged(SETTINGS))
def test_damaged_settings(name: str, content: bytes) -> None:
    with place() as folder:
        (folder / name).write_bytes(content)
        called(lambda: load_rules(settings=find_settings(folder)), folder=folder)


# --- hostile texts ----------------------------------------------------------------------------------------------------------------


def hostile(texts: list[str]) -> StudySpec | None:
    """A study that is plain but for its words."""
    name, study, why, one, two, note = texts
    try:
        return StudySpec(
            study=study,
            goal=why,
            parent=study,
            objective=Objective(metric=two, direction="minimize"),
            parameters={
                name: Parameter(low=1e-4, high=0.1, scale="log", why=why),
                "plain": Parameter(role="scientific", type="categorical", choices=(one, two), why=note),
                "word": Parameter(role="fixed", value=one),
            },
            trials=3,
            notes=(note,),
        )
    except ValueError:
        return None


ALLOWED = {"optuna", "trial", "params", "study", "storage", "tune", "space", "create", "objective", "suggest", "value"} | {
    *("PAST", "POINTS", "METRIC", "MODE", "NUM_SAMPLES", "NotImplementedError", "__name__")
}
"""All names that code of an export may have."""


def checked(kind: str, spec: StudySpec, exported: str) -> None:
    if kind in ("optuna", "ray"):
        tree = ast.parse(exported)
        assert {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} <= ALLOWED
        assert {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
        } <= {*("optuna", "tune")}
        return
    if kind == "algoperf":
        read = json.loads(exported)
        assert all(set(of) == set(spec.parameters) for of in (read if isinstance(read, list) else [read]))
        return
    read = yaml.safe_load(exported)
    top = {"wandb": {"name", "metric", "method", "parameters", "run_cap"}, "hydra": {"defaults", "hydra"}}
    assert set(read) <= top[kind]
    if kind == "wandb" and "plain" in read["parameters"]:
        assert read["name"] == spec.study
        assert list(read["parameters"]) == list(spec.parameters)
        assert read["parameters"]["plain"]["values"] == list(spec.parameters["plain"].options)


@cases(1000)
@given(st.sampled_from(EXPORT_FORMATS), st.booleans(), st.lists(text, min_size=6, max_size=6))
def test_words_in_an_export_stay_words(kind: str, points: bool, texts: list[str]) -> None:
    spec = hostile(texts)
    if spec is None:
        return
    with place() as folder:
        (folder / "s.yaml").write_text(spec_yaml.format_study_file(spec), encoding="utf-8")
        words = ["export", kind, str(folder / "s.yaml"), *(["--points"] if points else [])]
        outcome = advisor(*words, folder=folder)
        if outcome.status == 0:
            checked(kind, spec, outcome.out)


@cases(100)
@given(st.lists(text, min_size=6, max_size=6))
def test_words_in_a_command_stay_single_words(texts: list[str]) -> None:
    spec = hostile(texts)
    if spec is None:
        return
    with place() as folder:
        (folder / "s.yaml").write_text(spec_yaml.format_study_file(spec), encoding="utf-8")
        command = ["train", "--x={word}", "{plain}", "{args}"]
        outcome = advisor("run", str(folder / "s.yaml"), "--dry-run", "--", *command, folder=folder)
        if outcome.status == 0:
            script = "".join(f"printf '%s\\0' {line}\n" for line in outcome.out.splitlines())
            shell = subprocess.run(["bash", "-"], input=script.encode(), capture_output=True, cwd=folder, check=True)
            words = shell.stdout.decode().split("\0")[:-1]
            assert shell.stderr == b""
            assert [path.name for path in folder.iterdir()] == ["s.yaml"]
            word = spec.parameters["word"].value
            assert len(words) == 3 * 9
            assert words[::9] == ["train"] * 3
            assert words[1::9] == [f"--x={word}"] * 3
            assert set(words[2::9]) <= set(spec.parameters["plain"].options)


@pytest.mark.parametrize("kind", ["pyproject.toml", "advisor.toml"])
def test_settings_that_are_no_file(kind: str, tmp_path: Path) -> None:
    (tmp_path / kind).mkdir()
    assert called(lambda: find_settings(tmp_path), folder=tmp_path) is not None
