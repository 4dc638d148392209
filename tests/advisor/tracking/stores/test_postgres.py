"""Reading PostgreSQL, a real one: by several connections that see one state, and by one where more are not to be had."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from experiments import refused, same, same_by_sql_and_through_the_client, through_client

from advisor.model.errors import AdvisorError
from advisor.tracking.stores import postgres
from advisor.tracking.stores.location import parse_tracking_uri
from advisor.tracking.stores.reading import read_experiment

pytestmark = pytest.mark.xdist_group("postgres")  # they share a server

psycopg = pytest.importorskip("psycopg")


@pytest.fixture
def shared(odd_postgres: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its address for the driver, of a database that is shared among connections however few runs it has."""
    monkeypatch.setattr(postgres, "_MIN_RUNS_PER_CONNECTION", 1)
    return odd_postgres.replace("+psycopg2", "")


def test_postgresql_gives_the_same_by_sql_and_through_the_client(odd_database: Path, odd_postgres: str) -> None:
    assert postgres.can_read(parse_tracking_uri(odd_postgres))
    same_by_sql_and_through_the_client(odd_postgres, odd_database)


def test_connections_to_postgresql_share_the_reading_and_see_one_state(shared: str) -> None:
    same(read_experiment("odd", tracking_uri=shared), through_client(shared.replace("postgresql:", "postgresql+psycopg2:")))
    count = "SELECT count(*) FROM experiment_tags"
    with (
        psycopg.connect(shared, autocommit=True) as writer,
        postgres.connect(parse_tracking_uri(shared)) as first,
        ExitStack() as others,
    ):
        before = first.execute(count).fetchall()
        writer.execute("INSERT INTO experiment_tags (key, value, experiment_id) VALUES ('late', '', 1)")
        try:
            helpers = postgres._helper_connections(first, parse_tracking_uri(shared), others)
            assert [helper.execute(count).fetchall() for helper in helpers] == [before] * 2
            assert writer.execute(count).fetchall() != before
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                helpers[0].execute("DELETE FROM metrics")
        finally:
            writer.execute("DELETE FROM experiment_tags WHERE key = 'late'")


def test_a_postgresql_that_grants_one_connection_is_read_by_one(shared: str) -> None:
    with psycopg.connect(shared) as admin:
        admin.execute("CREATE ROLE guest LOGIN CONNECTION LIMIT 1")
        admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest")
    guest = shared.replace("mlflow:pa55word", "guest")
    same(read_experiment("odd", tracking_uri=guest), read_experiment("odd", tracking_uri=shared))


def test_a_postgresql_without_snapshots_is_read_by_one_connection(shared: str) -> None:
    expected = read_experiment("odd", tracking_uri=shared)
    with psycopg.connect(shared, autocommit=True) as admin:
        admin.execute("CREATE ROLE stranger LOGIN")
        admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO stranger")
        admin.execute("REVOKE EXECUTE ON FUNCTION pg_export_snapshot() FROM PUBLIC")
        try:
            same(read_experiment("odd", tracking_uri=shared.replace("mlflow:pa55word", "stranger")), expected)
        finally:
            admin.execute("GRANT EXECUTE ON FUNCTION pg_export_snapshot() TO PUBLIC")


def test_nobody_waits_for_connections_whose_work_is_not_wanted_any_more(shared: str) -> None:
    with postgres.connect(parse_tracking_uri(shared)) as first, psycopg.connect(shared) as second:
        database = postgres._PostgresDatabase(first, lambda: [second])

        def read(connection: Any, ids: list[str]) -> list[str]:
            if connection is first:
                time.sleep(0.3)
                raise KeyboardInterrupt
            connection.execute("SELECT pg_sleep(60)")
            return ids

        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            database._divide_among_connections(read, ["id"] * postgres._MIN_RUNS_PER_CONNECTION)
        assert time.monotonic() - began < 30


def test_a_postgresql_that_cannot_be_read_is_one_line(odd_postgres: str) -> None:
    server, _, _ = odd_postgres.rpartition("/")
    assert "pa55word" not in refused("holds no MLflow store", "odd", tracking_uri=f"{server}/postgres")
    refused("cannot reach", "odd", tracking_uri=f"{server}/no_such_database")
    refused("has no experiment|no experiment", "none", tracking_uri=odd_postgres)
    with pytest.raises(AdvisorError, match="read-only"), postgres.connect(parse_tracking_uri(odd_postgres)) as connection:
        connection.execute("DELETE FROM metrics")
    for sql, said in (
        ("SET LOCAL statement_timeout = 20; SELECT pg_sleep(20)", "^cannot read .*: canceling statement due to"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", "^cannot reach .* is the database running"),
    ):
        with (
            pytest.raises(AdvisorError, match=said) as caught,
            postgres.connect(parse_tracking_uri(odd_postgres)) as connection,
        ):
            connection.execute(sql)
        assert "\n" not in str(caught.value)
