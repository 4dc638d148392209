"""The benchmark of fine-tuning: its studies, and TRL's history as our callback logs it. Nothing is trained here."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from finetuning import counts, labelled_studies, lacking, scores, trained
from recordings.finetuning.trl_run import curves

from advisor import contract


def test_without_trl_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "recordings.finetuning.trl_studies", None)
    with pytest.raises(SystemExit) as error:
        labelled_studies("trl")
    assert "pip install trl" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_tables_count_studies_by_their_labels() -> None:
    judged = [s for s in labelled_studies("hand") if s.name in ("grpo-healthy", "grpo-limit-short")]
    rule = "completions-truncated"
    seen = Counter(
        {
            ("grpo-limit-short", rule, "fired"): 3,
            ("grpo-limit-short", rule, "not-assessed"): 1,
            ("grpo-healthy", rule, "fired"): 1,
            ("grpo-healthy", rule, "quiet"): 1,
            ("grpo-healthy", rule, "not-assessed"): 2,
        }
    )
    table = scores([trained(rule, judged, seen, "finetuning.py")], lacking(judged, seen))
    assert [cell.strip() for cell in table.splitlines()[-1].split("|")[2:5]] == ["0.75 (4)", "0.500 (2)", "3"]
    assert "3 (must)" in counts(judged, [rule], seen, 4)


def test_a_history_becomes_the_curves_of_our_callback() -> None:
    history = [
        {"eval_reward": 0.4, "eval_runtime": 0.1, "epoch": 0, "step": 0},
        {"loss": 0.1, "grad_norm": 2.0, "learning_rate": 1e-3, "reward": 0.5, "kl": None, "epoch": 0.5, "step": 1},
        {"train_runtime": 1.0, "train_loss": 0.1, "step": 1},
    ]
    assert curves(history) == {
        "eval_reward": [(0, 0.4)],
        "eval_runtime": [(0, 0.1)],
        contract.TRAIN_LOSS: [(0, 0.1)],
        contract.GRAD_NORM: [(0, 2.0)],
        "train/reward": [(0, 0.5)],
    }
