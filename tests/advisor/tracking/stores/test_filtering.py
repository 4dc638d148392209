"""Filters match what MLflow's own search matches."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments import START_S, refused, same, through_client

from advisor.tracking.stores.reading import read_experiment


@pytest.mark.parametrize(
    "filter",
    [
        "params.lr = '0.1'",
        "metrics.`val/loss` < 0.5",
        "metrics.`val/loss` > 0",
        "tags.team LIKE 'vis%'",
        "attributes.status = 'KILLED'",
        f"attributes.start_time > {int(START_S * 1000) + 1500}",
        "run_name ILIKE 'FIRST' and params.lr != '7'",
        "tags.`mlflow.log-model.history` = 'long'",
    ],
)
def test_a_filter_matches_the_same_runs_as_in_mlflow(odd_database: Path, filter: str) -> None:
    uri = f"sqlite:///{odd_database}"
    by_sql = read_experiment("odd", tracking_uri=uri, filter=filter)
    assert 0 < len(by_sql.runs) < 4
    same(by_sql, through_client(uri, filter))


@pytest.mark.parametrize("filter", ["params.lr > 0.01", "params.lr > '0.01'", "metrics.x > 1 and parameters.lr < 1"])
def test_a_filter_compares_parameters_as_text(odd_database: Path, odd_files: Path, filter: str) -> None:
    for uri in (odd_database, odd_files):
        refused("parameters can only be compared as text", "odd", tracking_uri=str(uri), filter=filter)


def test_an_error_without_parameters_does_not_mention_them(odd_database: Path) -> None:
    message = refused("no filter that MLflow understands", "odd", tracking_uri=str(odd_database), filter="lr >")
    assert "parameters" not in message
