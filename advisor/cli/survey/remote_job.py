"""Packs the options, rules and environment variables of an analysis that runs on another machine. Ray's runtime environments are
unsuitable, because Ray logs their variables, which may hold passwords."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from advisor import __version__
from advisor.engine.registry import load_rules
from advisor.engine.settings import find_settings
from advisor.model.errors import AdvisorError
from advisor.tracking.stores.location import absolute_uri, parse_tracking_uri
from advisor.tracking.stores.reading import list_experiments

_SENT_VARIABLE_PREFIXES = ("MLFLOW_", "ADVISOR_", "DATABRICKS_", "AWS_", "PG")
"""Prefixes of environment variables that hold store credentials or affect a report."""
_LOCAL_FILE_SUFFIXES = ("FILE", "PATH", "CERT", "SSLKEY", "CRL", "BUNDLE", "DIR", "CACHE")
"""Suffixes of environment variables that name local files. Such variables are not sent to other machines."""


@dataclass(frozen=True, repr=False)
class RemoteJob:
    """An analysis to run on another machine. The class has no repr, because its fields may hold passwords."""

    version: str
    options: Mapping[str, Any]
    """Arguments of `advisor.analyze`, including the settings of rules and the store's absolute URI."""
    environment: Mapping[str, str]
    rules: Sequence[Mapping[str, bytes]]
    """For each folder of rules, the contents of its files by relative path."""
    experiments: frozenset[str]
    """Names of the experiments to analyze. The remote machine looks for these names to check that its store is the same."""

    @contextmanager
    def unpack(self) -> Iterator[dict[str, Any]]:
        """Yield the arguments of `advisor.analyze`. Raises AdvisorError for another version or an unreachable store."""
        if self.version != __version__:
            raise AdvisorError(
                f"node {platform.node()} has tuning-advisor {__version__}, this machine {self.version}; "
                "install the same version on both"
            )
        os.environ.update(self.environment)  # no other job runs in this process
        _check_store_identity(self.options["tracking_uri"], self.experiments)
        with TemporaryDirectory(prefix="advisor-rules-") as parent:
            for i, files in enumerate(self.rules):
                for path, content in files.items():
                    file = Path(parent, str(i), path)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content)
            yield {**self.options, "rules": [Path(parent, str(i)) for i in range(len(self.rules))]}


def pack_remote_job(options: Mapping[str, Any], experiments: Iterable[str]) -> RemoteJob:
    """Return a job that calls `advisor.analyze` with these arguments. Raises AdvisorError for invalid settings or rules."""
    folders = [Path(folder) for folder in options.get("rules", ())]
    settings = find_settings(Path.cwd())
    load_rules(settings=settings, directories=folders)
    return RemoteJob(
        version=__version__,
        options={
            **options,
            "tracking_uri": absolute_uri(parse_tracking_uri(options.get("tracking_uri"))),
            "settings": settings,
        },
        environment={
            name: value
            for name, value in os.environ.items()
            if name.startswith(_SENT_VARIABLE_PREFIXES) and not name.endswith(_LOCAL_FILE_SUFFIXES)
        },
        rules=[_read_rule_files(folder) for folder in folders],
        experiments=frozenset(experiments),
    )


def _read_rule_files(folder: Path) -> dict[str, bytes]:
    try:
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.py"))}
    except OSError as error:
        raise AdvisorError(f"cannot read the rules folder {str(folder)!r}: {error.strerror}: {error.filename}") from error


@lru_cache(maxsize=1)
def _check_store_identity(tracking_uri: str, experiments: frozenset[str]) -> None:
    """Raise AdvisorError if this machine cannot open the store, or if the URI leads to a different store on this machine."""
    advice = "pass a --tracking-uri that every node can reach: a tracking server, a database, or a file on a shared disk"
    node = platform.node()
    try:
        visible_experiments = experiments.intersection(list_experiments(tracking_uri))
    except AdvisorError as error:
        raise AdvisorError(f"node {node} cannot open the store; {advice} ({error})") from None
    # A few names may be missing, because experiments may have been deleted since the job was packed.
    if 2 * len(visible_experiments) < len(experiments):
        raise AdvisorError(
            f"node {node} sees a different store, with {len(visible_experiments)} of the {len(experiments)} experiments; {advice}"
        )
