"""The table of rates on small trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.engine import trained as module
from advisor.engine.pages import beyond_playbook_table, rule_page
from advisor.engine.registry import load_rules
from advisor.engine.trained import TrainedCounts, replace_script_rows, table, trained_counts


@pytest.fixture
def empty_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "path_of_rule_table", lambda file: tmp_path / file)


@pytest.mark.usefixtures("empty_table")
def test_a_script_replaces_its_own_rows_only() -> None:
    assert table() == ()
    other = TrainedCounts("loss-scale", "b.py", 10, 9, 20, 0)
    replace_script_rows("a.py", [TrainedCounts("loss-scale", "a.py", 1, 1, 1, 1), TrainedCounts("adopt", "a.py", 2, 1, 3, 0)])
    replace_script_rows("b.py", [other])
    replace_script_rows("a.py", [new := TrainedCounts("loss-scale", "a.py", 4, 3, 5, 2)])
    assert trained_counts("loss-scale") == (new, other)
    assert trained_counts("adopt") == ()


@pytest.mark.usefixtures("empty_table")
def test_pages_state_what_a_rule_rests_on_and_its_rates() -> None:
    replace_script_rows("lm_rules.py", [TrainedCounts("loss-scale", "lm_rules.py", 21, 20, 30, 1)])
    rules = {rule.rule_id(): rule for rule in load_rules()}
    page = rule_page(type(rules["loss-scale"]))
    assert "The finding rests on how the algorithm works." in page
    assert "it fired in 20 of 21 studies with the cause and in 1 of 30 without it." in page
    lines = beyond_playbook_table(rules.values()).splitlines()
    assert any("`loss-scale` | mechanism |" in line and "20 of 21 | 1 of 30 | `lm_rules.py`" in line for line in lines)
    assert any("`forgetting` | test | literature |" in line and "| – | – | – |" in line for line in lines)
    assert not any("`adopt`" in line for line in lines)
