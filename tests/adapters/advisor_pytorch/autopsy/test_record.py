from __future__ import annotations

import json
import math

import pytest

from advisor import contract
from advisor_logging.table import MetricTable
from advisor_pytorch.autopsy.record import MAX_AUTOPSY_BYTES, MAX_ROWS, ROWS_AFTER, MetricHistory, autopsy_json


def test_the_file_is_bounded_and_plain_json() -> None:
    text = autopsy_json({"step": 3, "value": math.nan, "spikes": ["x" * MAX_AUTOPSY_BYTES], "following": [(math.inf,)]})
    record = json.loads(text, parse_constant=pytest.fail)
    assert record == {"step": 3, "value": "nan", "following": [["inf"]], "left_out": ["spikes"]}


def test_the_history_ends_soon_after_the_first_bad_row() -> None:
    history = MetricHistory()
    history.add_rows(MetricTable([5], [0], {"val/error": [math.nan]}))  # an evaluation
    for first in range(0, 300, 100):
        losses = [math.inf if step == 250 else 1.0 for step in range(first, first + 100)]
        history.add_rows(MetricTable(list(range(first, first + 100)), [0] * 100, {contract.TRAIN_LOSS: losses}))
    facts = history.facts()
    assert history.first_bad_step == 250
    assert [row[0] for row in facts["first"]] == [0, 1, 2, 3, 4]
    assert [row[0] for row in facts["before"]] == list(range(250 - MAX_ROWS, 250))
    assert [row[:3] for row in facts["after"]] == [[250, math.inf, None], [251, 1.0, None], [252, 1.0, None]]
    assert len(facts["after"]) == ROWS_AFTER
