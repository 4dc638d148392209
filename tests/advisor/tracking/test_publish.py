"""A run that holds files about an experiment, on every kind of store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.artifacts import list_artifacts

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.tracking import runs_url
from advisor.tracking.publish import ReportRun, publish_report_run
from advisor.tracking.stores.reading import read_experiment

FILES = {"report.html": "<p>näh</p>", "findings.json": "{}", "next/1-a.yaml": "a: 1\n", "next/2-b.yaml": "b: 2\n"}
TAGS = {"advisor.verdict.space-boundary": "quiet", "advisor.verdict.seeds": "fired: note: x", "mlflow.note.content": "n"}


@pytest.fixture(params=["sqlite", "files", "server"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    if request.param == "server":
        return str(request.getfixturevalue("serve")(empty_store).address)
    return str(request.getfixturevalue("database") if request.param == "sqlite" else tmp_path / "runs")


def trial(client: MlflowClient, experiment: str) -> str:
    run = client.create_run(experiment, run_name="trial").info.run_id
    client.log_metric(run, "loss", 1.0, step=1)
    client.set_terminated(run)
    return str(run)


def artifacts(uri: str, run: str) -> set[str]:
    paths: set[str] = set()
    for folder in (None, "next"):
        found = list_artifacts(run_id=run, artifact_path=folder, tracking_uri=uri)
        paths |= {a.path for a in found if not a.is_dir}
    return paths


def test_it_is_logged_once_replaced_later_and_never_read_as_a_trial(uri: str) -> None:
    client = MlflowClient(uri)
    experiment = client.create_experiment("sweep")
    mine = trial(client, experiment)

    first = publish_report_run("sweep", files=FILES, tags=TAGS, tracking_uri=uri)
    assert first.changed
    run = client.get_run(first.run)
    assert run.info.status == "FINISHED"
    assert {k: run.data.tags[k] for k in TAGS} == TAGS
    assert artifacts(uri, first.run) == set(FILES)
    text = client.download_artifacts(first.run, "report.html")
    assert Path(text).read_text("utf-8") == FILES["report.html"]

    again = publish_report_run("sweep", files=FILES, tags=TAGS, tracking_uri=uri)
    assert again == ReportRun(first.run, first.url, changed=False)

    fewer = {k: v for k, v in FILES.items() if k != "next/2-b.yaml"} | {"report.html": "<p>new</p>"}
    later = publish_report_run("sweep", files=fewer, tags={"advisor.verdict.seeds": "quiet"}, tracking_uri=uri)
    assert later == ReportRun(first.run, first.url, changed=True)
    tags = client.get_run(first.run).data.tags
    assert {k: v for k, v in tags.items() if k.startswith("advisor.verdict.")} == {"advisor.verdict.seeds": "quiet"}
    assert artifacts(uri, first.run) == set(fewer)

    read = read_experiment("sweep", tracking_uri=uri)
    assert [r.id for r in read.runs] == [mine]
    assert set(read.points) == {"loss"}
    assert len(client.search_runs([experiment])) == 2


def test_one_that_was_cut_off_is_done_again(uri: str) -> None:
    client = MlflowClient(uri)
    experiment = client.create_experiment("sweep")
    trial(client, experiment)
    begun = client.create_run(experiment, tags={contract.TAG_REPORT: "begun"}).info.run_id
    done = publish_report_run("sweep", files=FILES, tags=TAGS, tracking_uri=uri)
    assert (done.run, done.changed) == (begun, True)
    assert artifacts(uri, begun) == set(FILES)


def test_an_experiment_of_reports_alone_has_no_trials(uri: str) -> None:
    client = MlflowClient(uri)
    client.create_experiment("bare")
    publish_report_run("bare", files=FILES, tags={}, tracking_uri=uri)
    with pytest.raises(AdvisorError, match="has no runs"):
        read_experiment("bare", tracking_uri=uri)


@pytest.mark.xdist_group("tracking server")
def test_runs_have_a_page_where_the_store_is_a_server(serve: Callable[[Path], Any], empty_store: Path) -> None:
    database, address = serve(empty_store)
    id = MlflowClient(address).create_experiment("sweep")
    assert runs_url("sweep", tracking_uri=address) == f"{address}/#/experiments/{id}/runs/"
    secret = address.replace("http://", "http://me:secret@")
    assert runs_url("sweep", tracking_uri=secret + "/") == f"{address}/#/experiments/{id}/runs/"
    assert runs_url("sweep", tracking_uri=database) is None
    with pytest.raises(AdvisorError, match="no experiment named 'other'"):
        runs_url("other", tracking_uri=address)


def test_the_description_of_the_experiment_links_to_the_report_and_keeps_what_others_wrote(uri: str) -> None:
    client = MlflowClient(uri)
    experiment = client.create_experiment("sweep")
    trial(client, experiment)

    def note() -> str:
        return str(client.get_experiment(experiment).tags[contract.TAG_DESCRIPTION])

    client.set_experiment_tag(experiment, contract.TAG_DESCRIPTION, "Our digits.")
    run = publish_report_run("sweep", files=FILES, tags=TAGS, summary="Search higher.", tracking_uri=uri).run
    link = f"[Report](#/experiments/{experiment}/runs/{run}/artifacts/report.html): Search higher."
    assert note() == f"Our digits.\n\n<!-- advisor -->\n{link}\n<!-- end of advisor -->"
    client.set_experiment_tag(experiment, contract.TAG_DESCRIPTION, f"{note()}\nAsk Ann.")
    publish_report_run("sweep", files=FILES, tags=TAGS, summary="Stop.", tracking_uri=uri)
    assert note().startswith("Our digits.\n\n<!-- advisor -->\n[Report](")
    assert note().endswith("<!-- end of advisor -->\nAsk Ann.")
    assert note().count("advisor -->") == 2
