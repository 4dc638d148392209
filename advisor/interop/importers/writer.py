"""Defines the base class of classes that write imported runs into a tracking store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from advisor import contract
from advisor.interop.importers.mlflow_runs import SOURCE_DIGEST_TAG, SOURCE_RUN_TAG, NewRun
from advisor.model.errors import AdvisorError

_OVERWRITTEN_TAGS = (contract.TAG_STUDY_FILE,)
"""Names of experiment tags whose values each import overwrites."""


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """An MLflow run that an earlier import wrote."""

    run_id: str
    state: str | None
    """Digest of the run's source files at the last import, from a tag of the run; None without this tag."""


RunWrittenCallback = Callable[[NewRun, int], None]
"""Callback that receives each stored run with the number of metric points written to it."""


class RunWriter(ABC):
    """Writes runs into a tracking store. The writer never keeps incomplete or duplicate runs."""

    def imported_runs(self, experiment: str) -> Mapping[str, ImportedRun]:
        """Return the runs that earlier imports wrote into the experiment, keyed by their source; empty if the experiment does
        not exist."""
        existing = self._active_experiment(experiment)
        tags = {} if existing is None else self._tags_of_runs(existing.experiment_id)
        return {t[SOURCE_RUN_TAG]: ImportedRun(run, t.get(SOURCE_DIGEST_TAG)) for run, t in tags.items() if SOURCE_RUN_TAG in t}

    def write(self, name: str, tags: Mapping[str, str], runs: Iterable[NewRun], on_written: RunWrittenCallback) -> None:
        """Write runs into an experiment, and create the experiment with `tags` if it does not exist."""
        existing = self._active_experiment(name)
        if existing is None:
            self._write_runs(self._create_experiment(name, tags), runs, on_written)
            return
        for tag in _OVERWRITTEN_TAGS:
            if tag in tags and existing.tags.get(tag) != tags[tag]:
                self._set_tag(existing.experiment_id, tag, tags[tag])
        self._delete_unfinished(existing.experiment_id)
        self._write_runs(existing, runs, on_written)

    def _active_experiment(self, name: str) -> Any:
        """Return the MLflow experiment; None if it does not exist. Raise AdvisorError if it was deleted."""
        experiment = self._find_experiment(name)
        if experiment is not None and experiment.lifecycle_stage != "active":
            raise AdvisorError(
                f"experiment {name!r} exists but was deleted; restore it with: "
                f"mlflow experiments restore -x {experiment.experiment_id}, or pass another --experiment"
            )
        return experiment

    @abstractmethod
    def _find_experiment(self, name: str) -> Any:
        """Return the MLflow experiment, even if it was deleted; None if it never existed."""

    @abstractmethod
    def _create_experiment(self, name: str, tags: Mapping[str, str]) -> Any:
        """Create an experiment and return it."""

    @abstractmethod
    def _set_tag(self, experiment_id: str, tag: str, value: str) -> None:
        """Set a tag of an experiment."""

    @abstractmethod
    def _tags_of_runs(self, experiment_id: str) -> Mapping[str, Mapping[str, str]]:
        """Return the tags of each run that is not deleted, keyed by run id."""

    @abstractmethod
    def _write_runs(self, experiment: Any, runs: Iterable[NewRun], on_written: RunWrittenCallback) -> None:
        """Write the runs into the experiment."""

    def _delete_unfinished(self, experiment_id: str) -> None:  # noqa: B027 - only some writers leave such runs
        """Delete the runs that an interrupted import left incomplete."""
