"""Commands with placeholders, and the checks of `advisor run` before it begins."""

import pytest
from launches import CONDITIONAL as SPEC

from advisor.cli import main
from advisor.execution import command
from advisor.execution.command import check_placeholders, fill_placeholders
from advisor.model.errors import AdvisorError
from advisor.model.spec import Sampler
from advisor.model.spec_yaml import format_study_file

PARAMS = {"lr": 0.1, "nesterov": True}


@pytest.mark.parametrize(
    ("words", "filled"),
    [
        (["t", "--lr={lr}", "{nesterov}"], ["t", "--lr=0.1", "true"]),
        (["t"], ["t", "--lr", "0.1", "--nesterov", "true"]),
        (["t", "{args}", "-v"], ["t", "--lr", "0.1", "--nesterov", "true", "-v"]),
        (["t", "{{lr}} is {lr}"], ["t", "{lr} is 0.1"]),
        # What names no hyperparameter gets them all.
        (["t", "{seed}", '{"a": 1}'], ["t", "7", '{"a": 1}', "--lr", "0.1", "--nesterov", "true"]),
        # A trial without momentum leaves out the option that asks for it, and nothing else.
        (["t", "--momentum", "{momentum}", "--lr", "{lr}"], ["t", "--lr", "0.1"]),
        (["t", "--momentum={momentum}", "{lr}"], ["t", "0.1"]),
        (["t", "--flag", "x{momentum}", "{lr}"], ["t", "--flag", "0.1"]),
    ],
)
def test_placeholders(words, filled):
    assert fill_placeholders(words, PARAMS, {"seed": "7"}) == filled


def test_no_hyperparameter_is_appended_on_request():
    assert fill_placeholders(["t"], PARAMS, {}, append=False) == ["t"]


def test_unknown_placeholders_are_refused():
    with pytest.raises(AdvisorError, match=r"\{l_r\}, which is no hyperparameter of the study; did you mean \{lr\}"):
        check_placeholders(["t", "{l_r}"], SPEC.parameters, ["seed"])
    with pytest.raises(AdvisorError, match="max_train_steps}, which the study does not say"):
        check_placeholders(["t", "{max_train_steps}"], SPEC.parameters, ["seed"])
    check_placeholders(["t", "{lr}", "{seed}", "{{anything}}"], SPEC.parameters, ["seed"])


def test_run_checks_the_command_first_and_dry_run_prints_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(format_study_file(SPEC.model_copy(update={"trials": 2})))
    for more in (["--dry-run"], []):
        with pytest.raises(SystemExit) as ended:
            main(["run", "s.yaml", *more, "--", "t", "--lr", "{lr}"])
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert "does not pass nesterov, momentum, which the study searches" in error
        assert error.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["s.yaml"]
    main(["run", "s.yaml", "--dry-run", "--", "t", "--seed", "{seed}"])
    assert all("--lr " in line and "--nesterov " in line for line in capsys.readouterr().out.splitlines())
    main(["run", "s.yaml", "--dry-run", "--no-args", "--", "t", "{lr}"])


def test_an_adaptive_study_has_no_dry_run(tmp_path, capsys):
    file = tmp_path / "s.yaml"
    file.write_text(format_study_file(SPEC.model_copy(update={"sampler": Sampler(kind="adaptive")})))
    with pytest.raises(SystemExit) as ended:
        main(["run", str(file), "--dry-run", "--", "t"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "to try one trial, pass --trials 1 instead of --dry-run" in error
    assert error.count("\n") == 1


def test_the_fingerprint_changes_with_the_command_and_its_scripts(tmp_path):
    script, words = tmp_path / "train.py", ["python", str(tmp_path / "train.py"), "--lr", "{lr}"]
    script.write_text("pass")
    before = command.command_fingerprint(words)
    assert command.command_fingerprint(words) == before
    assert command.command_fingerprint([*words, "--fast"]) != before
    script.write_text("print()")
    assert command.command_fingerprint(words) != before
    assert command.command_fingerprint(["a\0b", "x" * 9000, "\udc80"])  # no paths
