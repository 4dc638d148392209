"""Which study is where, and which follows from which, in real stores of each kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from advisor import analyze, contract
from advisor.cli import main
from advisor.model.errors import AdvisorError
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.tracking import read_rounds, read_study, study_tags
from advisor.tracking.lineage import find_study, lineages, places

pytestmark = pytest.mark.xdist_group("tracking server")  # they share servers

LOSS = Objective(metric="loss", direction="minimize")


def spec(name: str, parent: str | None = None, number: int = 1, **more: object) -> StudySpec:
    space = {"x": Parameter(type="float", low=0.0, high=1.0)}
    return StudySpec(study=name, parent=parent, round=number, parameters=space, **{"objective": LOSS, **more})


def experiment(client: MlflowClient, name: str, *specs: StudySpec, runs: tuple[tuple[float, str | None], ...]) -> None:
    tags = {k: v for s in specs for k, v in study_tags.study_file_tags(s).items()}
    id = client.create_experiment(name, tags=tags)
    for x, study in runs:
        add_run(client, id, x, study)


def add_run(client: MlflowClient, experiment: str, x: float, study: str | None) -> None:
    run = client.create_run(experiment, tags={contract.TAG_STUDY: study} if study else {}).info.run_id
    client.log_param(run, "x", x)
    for step in range(3):
        client.log_metric(run, "loss", x + 1 / (1 + step), step=step)
    client.set_terminated(run)


def fill(uri: str) -> None:
    client = MlflowClient(uri)
    experiment(client, "plain", runs=((0.1, None), (0.5, None)))
    experiment(client, "second", spec("second", "plain", 2), runs=((0.2, "second"), (0.3, "second")))
    experiment(client, "both", spec("a"), spec("b", "a", 2), runs=((0.1, "a"), (0.4, "b"), (0.6, "b"), (0.9, None)))


@pytest.fixture(params=["database", "files", "server", "empty_postgres", "empty_mariadb"])
def store(request: pytest.FixtureRequest, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    if request.param == "server":
        uri = request.getfixturevalue("serve")(empty_store).address
    else:
        uri = (tmp_path / "mlruns").as_uri() if request.param == "files" else request.getfixturevalue(request.param)
    fill(uri)
    return uri


def test_studies_are_found_and_follow_from_each_other(store: str) -> None:
    found = places(store)
    assert {(p.study, p.experiment, p.parent) for p in found if p.study != "Default"} == {
        ("plain", "plain", None),
        ("second", "second", "plain"),
        ("both", "both", None),
        ("a", "both", None),
        ("b", "both", "a"),
    }
    named = [[p.study for p in group] for group in lineages(found)]
    assert ["plain", "second"] in named
    assert ["a", "b"] in named
    assert find_study(found, "gone") is None

    read = read_rounds("second", tracking_uri=store)
    assert [s.name for s in read.earlier_studies] == ["plain"]
    assert sorted(float(t.params["x"]) for t in read.earlier_studies[0].trials) == [0.1, 0.5]
    assert read.notes == ()

    shared = read_rounds("both", tracking_uri=store)
    assert sorted(float(t.params["x"]) for t in shared.own.trials) == [0.4, 0.6]
    assert [float(t.params["x"]) for t in shared.earlier_studies[0].trials] == [0.1]
    assert "2 runs are of other studies in this experiment" in " ".join(shared.own.warnings)


def test_a_circle_ends_and_another_objective_is_left_out(database: str) -> None:
    uri, client = database, MlflowClient(database)
    other = Objective(metric="loss", direction="maximize")
    experiment(client, "one", spec("one", "two"), runs=((0.1, "one"), (0.2, "one")))
    experiment(client, "two", spec("two", "one", 2), runs=((0.3, "two"), (0.4, "two")))
    experiment(client, "three", spec("three", "two", 3, objective=other), runs=((0.3, "three"), (0.4, "three")))
    assert [s.name for s in read_rounds("two", tracking_uri=uri).earlier_studies] == ["one"]
    read = read_rounds("three", tracking_uri=uri, direction="maximize")
    assert read.earlier_studies == ()
    assert read.notes[0] == "The earlier round two is omitted: the study's objective was to minimize loss."
    assert sorted(len(g) for g in lineages(places(uri)))[-1] == 3


def test_without_a_study_file_all_runs_are_of_the_study(database: str) -> None:
    experiment(MlflowClient(database), "mixed", runs=((0.1, "a"), (0.2, "b"), (0.3, None)))
    assert len(read_study("mixed", tracking_uri=database).trials) == 3


@pytest.mark.parametrize("read", [read_study, read_rounds])
def test_an_unknown_option_is_an_error(database: str, read) -> None:
    """A misspelled option must not make the default store the source."""
    experiment(MlflowClient(database), "mixed", runs=((0.1, "a"),))
    with pytest.raises(TypeError, match="tracking_url"):
        read("mixed", tracking_uri=database, tracking_url=database)


@pytest.mark.parametrize("tagged", [True, False])
def test_a_study_without_runs_yet_has_no_trials_of_another_one(database: str, capsys, tagged: bool) -> None:
    uri = database
    runs = tuple((x, "r2" if tagged else None) for x in (0.1, 0.3, 0.5, 0.7))
    experiment(MlflowClient(uri), "e", spec("r2", None, 2), spec("r3", "r2", 3), runs=runs)
    if not tagged:  # nobody says whose the runs are: they are of the study that is asked for
        assert len(read_study("e", tracking_uri=uri).trials) == 4
        return
    for declared in (None, spec("r3", "r2", 3)):
        with pytest.raises(AdvisorError, match=r"no run of experiment 'e' belongs to the study 'r3' yet.* to 'r2'"):
            analyze("e", tracking_uri=uri, study=declared, settings={})
    assert len(read_study("e", tracking_uri=uri, spec=spec("a name of one's own")).trials) == 4
    main(["history", "--tracking-uri", uri, "--format", "json", "-q"])
    (line,) = json.loads(capsys.readouterr().out)["lineages"]
    assert [(r["study"], r["trials"]) for r in line["rounds"]] == [("r2", 4)]
    assert line["said"] == [
        "r3 is left out: no run of experiment 'e' belongs to the study 'r3' yet; the last runs belong to 'r2'."
    ]

    client = MlflowClient(uri)
    add_run(client, client.get_experiment_by_name("e").experiment_id, 0.6, "r3")
    report = analyze("e", tracking_uri=uri, settings={})
    assert (report.spec.study, report.counts.total, report.counts.earlier) == ("r3", 5, 4)
