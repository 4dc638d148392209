"""What all tests share."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ["ADVISOR_CACHE"] = "off"  # tests of the cache give it a folder of their own
_STARTS: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def same_random_numbers_in_any_order(request: pytest.FixtureRequest) -> None:
    """A module's generator `RNG` starts each test from the same state, whichever tests ran before it in this process."""
    rng = getattr(request.module, "RNG", None)
    if rng is not None:
        start = _STARTS.setdefault(request.module.__name__, copy.deepcopy(rng.bit_generator.state))
        rng.bit_generator.state = copy.deepcopy(start)


@pytest.fixture(autouse=True)
def same_environment_for_each_test() -> Iterator[None]:
    """What a test leaves in the environment ends with it: `mlflow.set_tracking_uri` sets MLFLOW_TRACKING_URI for good."""
    before = dict(os.environ)
    yield
    if dict(os.environ) != before:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
