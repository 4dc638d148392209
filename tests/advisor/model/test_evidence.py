from __future__ import annotations

from advisor.model.evidence import table
from advisor.model.message import Percent, Probability


def test_a_row_of_a_table_shows_the_limit_of_its_value() -> None:
    rows = table(
        ("trials", 3), ("p-value", Probability(0.2), 0.05), ("share", Percent(0.25), 0.1), ("all", Percent(1.0), 1)
    ).rows
    assert [str(value) for _, value in rows] == ["3", "0.2 (limit 0.05)", "25 % (limit 10 %)", "100 % (limit 100 %)"]
