"""Counts the cases, and makes the command line raise unexpected errors instead of reporting them as a bug."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz import outcome


@pytest.fixture(autouse=True)
def count_the_cases(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ADVISOR_DEBUG", "1")
    monkeypatch.setenv("COLUMNS", "200")
    outcome.counted()
    yield
    request.node.user_properties.append(("fuzz cases", outcome.counted()))
