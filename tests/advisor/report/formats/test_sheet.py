"""The description of the study."""

from __future__ import annotations

from dataclasses import replace

from advisor.model.study import Study
from advisor.report.formats import sheet
from tests.advisor.report.studies import make_report, make_study


def test_the_study_sheet_tells_how_to_reproduce_the_best_trial() -> None:
    study = make_study(trials=5)
    facts = {"command": "python train.py", "git_commit": "0123456789abcdef", "git_dirty": "false"}
    noted = Study(
        spec=study.spec,
        trials=tuple(replace(t, facts=facts) for t in study.trials),
        metrics=study.metrics,
        signals=study.signals,
    )
    rows = dict(sheet.study_description_rows(make_report(noted)))
    assert rows["Best trial's command"] == "python train.py"
    assert rows["Best trial's code"] == "commit 0123456789ab"
    assert not any(what.startswith("Best trial's") for what, _ in sheet.study_description_rows(make_report(study)))
