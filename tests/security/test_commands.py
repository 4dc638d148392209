"""What a spec says reaches a training as words, never as a shell's: whatever the words are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from advisor.cli import main
from advisor.model.spec_yaml import load_study_file

HOSTILE = (
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned #",
    "| touch pwned",
    "&& touch pwned",
    "a\ntouch pwned\n",
    "' ; touch pwned ; '",
    '" ; touch pwned ; "',
    "> pwned",
    "{seed}{trial}{{x}}",
    "--help",
    "~/*",
    "$HOME %PATH%",
    "\\",
    "é \u202e 🧪",
    "",
)
TRAINING = """
import json, os, sys
with open("said.json", "w") as file:
    json.dump([sys.argv[1:], json.loads(os.environ["ADVISOR_PARAMS"])], file)
"""


@pytest.fixture
def study(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    parameters = {f"p{i:02}": {"role": "fixed", "value": text} for i, text in enumerate(HOSTILE)}
    spec = {
        "study": "hostile $(touch pwned)",
        "objective": {"metric": "val/loss; touch pwned", "direction": "minimize"},
        "parameters": {**parameters, "searched": {"type": "categorical", "choices": ["x", "y"]}},
        "trials": 1,
    }
    (tmp_path / "train.py").write_text(TRAINING)
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return path


def test_values_are_words(study: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:  # the training logs no result
        main(["run", str(study), "--", sys.executable, "train.py"])
    assert ended.value.code == 1
    words, params = json.loads((tmp_path / "said.json").read_text())
    assert [params[f"p{i:02}"] for i in range(len(HOSTILE))] == list(HOSTILE)
    assert words == [word for name, value in params.items() for word in (f"--{name}", value)]
    assert not list(tmp_path.rglob("pwned*"))


def test_a_dry_run_shows_what_a_shell_takes_as_the_same_words(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", str(study), "--dry-run", "--", sys.executable, "train.py"])
    script = tmp_path / "shown.sh"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    environment = {**os.environ, "ADVISOR_PARAMS": "{}"}
    subprocess.run(["sh", str(script)], cwd=tmp_path, check=True, capture_output=True, env=environment)
    words, _ = json.loads((tmp_path / "said.json").read_text())
    assert [word for word in words if word in HOSTILE] == [text for text in HOSTILE if text.isprintable()]
    assert not list(tmp_path.rglob("pwned*"))


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch pwned']",
        "study: !!python/object/new:subprocess.Popen [['touch', 'pwned']]",
        "study: !!python/name:os.system",
        "parameters: !!python/object/apply:builtins.eval [\"open('pwned', 'w')\"]",
    ],
)
def test_a_spec_makes_no_object(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from advisor.model.errors import AdvisorError

    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(AdvisorError):
        load_study_file(tmp_path / "study.yaml")
    assert not (tmp_path / "pwned").exists()
