"""Elements that all figures share."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given, settings, strategies as st

from advisor.report.figures.svg import trial_indices_attribute
from tests.advisor.report.figures.reading import trials


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), unique=True).map(sorted))
def test_ranges_of_trials_hold_each_trial_once(chosen: list[int]) -> None:
    path = ET.Element("path", {"data-t": trial_indices_attribute(chosen)})
    assert list(trials(path)) == chosen
