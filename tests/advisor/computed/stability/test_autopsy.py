"""One record for each cause, a healthy reading of each limit, and the words for what cannot be told."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.cli.autopsy import autopsy_summary_lines
from advisor.computed.stability.autopsy import diagnose
from advisor.model.autopsy import AutopsyRecord
from advisor.tracking.autopsy import RunAutopsy


def rows(norms: list[float], loss: float = 1.0, rate: float = 0.1) -> dict[str, Any]:
    before = [[step, loss, norm, rate, None, None] for step, norm in enumerate(norms)]
    return {"first": before[:5], "before": before, "after": [[len(norms), 1.0, "inf", rate, None, None]]}


def record(**facts: Any) -> AutopsyRecord:
    known = {"step": 30, "metric": "grad_norm", "batch": [], "parameters": {"tensors": 4}, "history": rows([1.0] * 30)}
    return AutopsyRecord.model_validate({**known, **facts})


def optimizer(name: str = "SGD", state: dict[str, Any] | None = None, **options: float) -> list[dict[str, Any]]:
    return [{"class": name, "groups": [{"lr": 0.1, **options}], "state": state or {}}]


BAD_WEIGHT = {"name": "a.weight", "shape": [4, 3], "bad": 2, "bad_rows": [1]}
ONE_BAD = {"tensors": 4, "bad": 1, "bad_names": ["a.weight"], "first": [BAD_WEIGHT]}
GROWTH = rows([1.0, 1.1, 1.0, 9.0, 70.0, 5e3, 1e6, 1e9])
USUAL = [[{"name": "[0]", "max": 3.0}]]
HALF = {"operation": "Addmm", "why": "result", "dtype": "float16", "after": "a.weight"}
ALL_BAD = {"tensors": 4, "bad": 4, "bad_names": ["a.weight"]}


@pytest.mark.parametrize(
    ("cause", "certainty", "words", "facts"),
    [
        ("rate", "certain", "not finite", {"optimizers": optimizer(lr=float("nan"))}),
        ("batch", "certain", "[0]", {"batch": [{"name": "[0]", "bad": 1}], "following": USUAL}),
        ("batch", "certain", "size 1e+09", {"batch": [{"name": "[0]", "max": 1e9}], "following": USUAL}),
        ("batch", "certain", "-100", {"batch": [{"name": "[1]", "ignored": 1.0}]}),
        (
            "batch",
            "certain",
            "step 8",
            {"spikes": [{"step": 8, "batch": [{"name": "", "max": 1e9}], "following": [[{"max": 1}]]}]},
        ),
        ("optimizer", "certain", "eps=0", {"parameters": ONE_BAD, "optimizers": optimizer("Adam", {"explained": 1.0}, eps=0)}),
        ("weight decay", "certain", "rate x decay is 3", {"optimizers": optimizer(weight_decay=30.0)}),
        ("weight decay", "likely", "rate x decay is 1.5", {"optimizers": optimizer(weight_decay=15.0)}),
        ("loss scale", "likely", "65.54", {"losses": [65.536e3 * 1e-3, 1.0]}),
        ("loss scale", "likely", "1024", {"scale": 1024.0}),
        ("loss scale", "likely", "multiplies", {"gradients": ALL_BAD, "graph": {"operations": ["Mean", "Mul"]}}),
        (
            "accumulation",
            "likely",
            "8 backward",
            {"history": GROWTH, "counts": {"steps": 8, "backwards": 8}, "grad_versions": [7]},
        ),
        ("initialisation", "likely", "a.weight", {"step": 0, "start": [{"name": "a.weight", "rms": 30.0, "shape": [4, 4]}]}),
        ("rate", "likely", "diverged", {"history": GROWTH}),
        ("rate", "likely", "from 1 to 500", {"history": rows([1.0] * 9 + [float("nan"), 500.0])}),
        (
            "rate",
            "likely",
            "grew far beyond",
            {"step": 1, "optimizers": optimizer(), "start_norm": 2.0, "history": rows([1e3])},
        ),
        ("buffer", "certain", "bn.running_var", {"buffers": [{"name": "bn.running_var", "bad": 1, "training": False}]}),
        ("layer", "certain", "in rows 1", {"parameters": ONE_BAD}),
        ("optimizer", "likely", "4 of 4", {"parameters": {**ALL_BAD, "bad_names": ["a.w", "b.w"], "first": [BAD_WEIGHT]}}),
        ("precision", "likely", "65,504", {"forward_fault": HALF}),
        ("operation", "certain", "log of 0", {"forward_fault": {"operation": "Log", "why": "log of 0"}}),
        (
            "operation",
            "certain",
            "masked entirely",
            {"forward_fault": {"operation": "Softmax", "why": "result", "masked": True}},
        ),
        ("operation", "likely", "root", {"gradients": ALL_BAD, "graph": {"operations": ["Sqrt", "Mean"]}}),
        ("operation", "likely", "gradcheck", {"gradients": ALL_BAD, "graph": {"operations": ["Mine"], "custom": ["Mine"]}}),
        ("operation", "likely", "Exp", {"gradients": {"tensors": 4}, "graph": {"operations": ["Exp", "Mean"]}}),
        ("unknown", "open", "replay", {}),
        ("unknown", "open", 'autopsy="batch"', {"batch": None}),
        ("unknown", "open", "other ranks", {"ranks": 2}),
    ],
)
def test_each_cause_is_named(cause: str, certainty: str, words: str, facts: dict[str, Any]) -> None:
    found = diagnose(record(**facts))
    assert (found.cause, found.certainty) == (cause, certainty)
    assert words in found.explanation + found.advice


@pytest.mark.parametrize(
    "facts",
    [
        {"batch": [{"name": "[0]", "bad": 1}], "following": [[{"name": "[0]", "bad": 2}]]},  # usual in this data
        {"batch": [{"name": "[0]", "max": 40.0}], "following": USUAL},
        {"late": True, "parameters": ONE_BAD, "forward_fault": HALF},  # the bad update came before
        {"start": [{"name": "a", "rms": 30.0, "shape": [4, 4]}], "step": 500},
        {"optimizers": optimizer(weight_decay=0.1)},
        {"history": rows([1.0, 3.0, 0.5, 8.0, 2.0, 1.0])},
        {"graph": {"operations": ["Pow(2)", "Mean"]}, "gradients": ALL_BAD},
    ],
)
def test_a_weak_sign_names_no_cause(facts: dict[str, Any]) -> None:
    assert diagnose(record(**facts)).certainty == "open"


RUN = RunAutopsy("", "t", "0", {}, False)


def test_the_summary_has_five_lines_for_an_empty_record() -> None:
    lines = autopsy_summary_lines(AutopsyRecord(), diagnose(AutopsyRecord()), RUN)
    assert len(lines) == 5
    assert lines[2] == "Before: no step had a finite loss; 0 of 0 parameters not finite."


def test_growth_is_told_from_a_sudden_failure() -> None:
    sudden = autopsy_summary_lines(record(), diagnose(record()), RUN)[2]
    assert "so the failure was sudden" in sudden
    grown = record(history=GROWTH)
    assert "grew 1.43e+07-fold within 3 steps" in autopsy_summary_lines(grown, diagnose(grown), RUN)[2]
