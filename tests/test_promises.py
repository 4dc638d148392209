"""No rule raises significantly more false alarms than it promises, over simulated studies in which nothing is wrong."""

import nulls
import promises
import pytest
from promise import ALL

pytestmark = pytest.mark.xdist_group("promises")  # they share the counts
STUDIES = 10 if ALL else 2
"""Studies of each family; `benchmarks/quality/promises.py` judges many more."""
SIGNIFICANT = 0.005


@pytest.fixture(scope="module")
def counts():
    return [c for family in nulls.FAMILIES for c in promises.count_alarms(family, STUDIES)]


def test_every_rule_keeps_its_promise(counts):
    promised = promises.promises()
    for rule in {c.rule for c in counts}:
        everywhere = promises.sum_of_counts([c for c in counts if c.rule == rule])
        assert everywhere.p(promised[rule]) > SIGNIFICANT, everywhere


def test_nearly_every_promise_is_tested(counts):
    judged = {c.rule for c in counts if c.judged >= STUDIES // 2}
    assert len(set(promises.promises()) - judged) <= 2
