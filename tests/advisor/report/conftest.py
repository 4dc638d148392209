from __future__ import annotations

import pytest

from advisor.model.study import Study
from advisor.report import Report
from tests.advisor.report.studies import make_report, make_study


@pytest.fixture(scope="session")
def study() -> Study:
    return make_study()


@pytest.fixture(scope="session")
def report(study: Study) -> Report:
    return make_report(study)


@pytest.fixture(scope="session")
def page(report: Report) -> str:
    return report.to_html()
