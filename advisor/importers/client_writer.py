"""Writes runs through MLflow's client, for tracking servers and folders of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any

from advisor.errors import AdvisorError
from advisor.importers.writer import TAG_SOURCE, TAG_UNFINISHED, NewRun, source_text
from advisor.tracking.client import IMPATIENT, PATIENT, open_client, quiet_mlflow
from advisor.tracking.location import Location

_METRICS_A_CALL = 1000
_PARAMS_A_CALL = 100
_THREADS = 4


class ClientWriter:
    """A `Writer` over `MlflowClient`. A run that was cut off in the middle is deleted and written again by the next import."""

    def __init__(self, location: Location) -> None:
        with quiet_mlflow(IMPATIENT):
            self._client = open_client(location)
            self._client.search_experiments(max_results=1)
        self._threads = 1 if location.kind == "files" else _THREADS

    def imported(self, experiment: str) -> set[str]:
        """See `Writer.imported`."""
        found = self._existing(experiment)
        if found is None:
            return set()
        runs = list(self._runs(found.experiment_id))
        return {run.data.tags[TAG_SOURCE] for run in runs if TAG_SOURCE in run.data.tags}

    def write(
        self, experiment: str, tags: Mapping[str, str], runs: Iterable[NewRun], written: Callable[[], None]
    ) -> None:
        """See `Writer.write`."""
        with quiet_mlflow(PATIENT):
            found = self._existing(experiment)
            id = found.experiment_id if found else self._client.create_experiment(experiment, tags=dict(tags))
            for run in list(self._runs(id)) if found else ():
                if TAG_UNFINISHED in run.data.tags:
                    self._client.delete_run(run.info.run_id)
            with ThreadPoolExecutor(self._threads, thread_name_prefix="advisor-write") as pool:
                waiting = iter(runs)
                going: set[Future[None]] = {
                    pool.submit(self._write, id, run) for run in islice(waiting, 2 * self._threads)
                }
                while going:
                    ended, going = wait(going, return_when=FIRST_COMPLETED)
                    for future in ended:
                        future.result()
                        written()
                    going |= {pool.submit(self._write, id, run) for run in islice(waiting, len(ended))}

    def _existing(self, name: str) -> Any:
        found = self._client.get_experiment_by_name(name)
        if found is not None and found.lifecycle_stage != "active":
            raise AdvisorError(
                f"experiment {name!r} exists but was deleted; restore it with: "
                f"mlflow experiments restore -x {found.experiment_id}, or pass another --experiment"
            )
        return found

    def _runs(self, experiment: str) -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs([experiment], max_results=1000, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _write(self, experiment: str, run: NewRun) -> None:
        from mlflow.entities import Metric, Param

        source = source_text(run.source)
        tags = {**run.tags, TAG_UNFINISHED: source}
        id = self._client.create_run(experiment, start_time=run.started_ms, tags=tags, run_name=run.name).info.run_id
        for params in _chunks([Param(k, v) for k, v in run.params.items()], _PARAMS_A_CALL):
            self._client.log_batch(id, params=params)
        points = (
            Metric(metric, value, time, step)
            for metric, p in run.points.items()
            for value, time, step in zip(p.values.tolist(), p.times_ms.tolist(), p.steps.tolist(), strict=True)
        )
        for metrics in _chunks(points, _METRICS_A_CALL):
            self._client.log_batch(id, metrics=metrics)
        if run.ended_ms is not None:
            self._client.set_terminated(id, run.status, run.ended_ms)
        elif run.status not in ("RUNNING", "SCHEDULED"):
            self._client.update_run(id, status=run.status)
        self._client.set_tag(id, TAG_SOURCE, source)
        self._client.delete_tag(id, TAG_UNFINISHED)


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk
