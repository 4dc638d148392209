"""Short answers: bounded, clean, in order."""

import json

from commands import status_of
from mlflow.tracking import MlflowClient
from mlflow_studies import log_study

from advisor.cli.brief import MAX_ANSWER_CHARS, bounded_answer_json


def test_order_is_kept_and_empty_values_are_left_out():
    text = bounded_answer_json(
        {"action": "Do it.", "b": None, "c": [], "d": {}, "e": "", "f": 0, "g": False, "h": 1.23456789, "i": float("nan")}
    )
    assert text == '{"action":"Do it.","f":0,"g":false,"h":1.235}'


def test_chosen_keys_are_printed_even_if_empty():
    assert bounded_answer_json({"action": "Do it.", "run": (), "notes": ()}, always=("run",)) == '{"action":"Do it.","run":[]}'


def test_long_lists_and_texts_are_cut_until_they_fit():
    data = {"action": "x" * 3000, "items": [{"name": "n" * 500, "values": list(range(100))} for _ in range(200)]}
    text = bounded_answer_json(data)
    assert len(text) <= MAX_ANSWER_CHARS
    assert json.loads(text)["items"][-1].endswith("more")
    assert json.loads(bounded_answer_json({"items": list(range(25))}))["items"][-1] == "… 5 more"


def test_very_many_keys_lose_the_last_ones():
    text = bounded_answer_json({f"key {i}": "v" * 100 for i in range(200)})
    assert len(text) <= MAX_ANSWER_CHARS
    assert "key 0" in json.loads(text)


def test_control_characters_never_arrive():
    text = bounded_answer_json({"action": "a\x1b[31mb\u202ec\nd", "\x1bkey": 1})
    assert text.isascii()
    assert "\\u001b" not in text
    assert "\\n" not in text


def test_commands_give_short_answers_with_the_action_first(database, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    log_study(MlflowClient(database), "study", [0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0])
    answers = []
    for words in (
        ("analyze", "study"),
        ("history", "study"),
        ("history", "study", "--near", "lr=0.3"),
        ("compare", "-e", "study", "trial-3", "trial-1"),
        ("explain", "space-boundary"),
        ("gate", "trial-3"),
    ):
        status_of(*words, "--brief")
        out, error = capsys.readouterr()
        assert error == ""
        assert len(out) <= MAX_ANSWER_CHARS + 1
        answers.append(json.loads(out))
        assert next(iter(answers[-1])) == "action"
        assert answers[-1]["action"]
    report = answers[0]
    assert report["next"]
    assert all((tmp_path / path).is_file() for path in [*report["more"], *(n["file"] for n in report["next"])])
