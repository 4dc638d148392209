"""What an analysis on another machine needs of this one, whose folders and environment it does not see."""

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

from advisor.engine.registry import load_rules
from advisor.engine.settings import find_settings
from advisor.model.errors import AdvisorError
from advisor.tracking.stores.location import from_anywhere, locate
from advisor.tracking.stores.reading import list_experiments
from advisor.version import __version__

_SENT = ("MLFLOW_", "ADVISOR_", "DATABRICKS_", "AWS_", "PG")
"""How the names of variables begin that say how to sign in to a store, or what a report shows."""
_OF_HERE = ("FILE", "PATH", "CERT", "SSLKEY", "CRL", "BUNDLE", "DIR", "CACHE")
"""How those end that name files, of which each machine has its own."""


@dataclass(frozen=True, repr=False)
class Luggage:
    """What goes along; it may hold a password, so it has no text of its own that a message might show."""

    version: str
    options: Mapping[str, Any]
    """Of `advisor.analyze`, with what it would look for in the folders of this machine, but for the rules."""
    environment: Mapping[str, str]
    rules: Sequence[Mapping[str, bytes]]
    """The files of each folder of rules, by their paths below it."""
    experiments: frozenset[str]
    """The names of those to analyse, by which another store is noticed."""

    @contextmanager
    def unpacked(self) -> Iterator[dict[str, Any]]:
        """Within it, on another machine, the options are what this one means by them.

        Raises AdvisorError where that machine has another version of the advisor, or does not see the store.
        """
        if self.version != __version__:
            raise AdvisorError(
                f"the node {platform.node()} has tuning-advisor {__version__}, this machine {self.version}; install the same "
                "version on both"
            )
        # The process is ours: nobody else works in it before or after.
        os.environ.update(self.environment)
        _check_store(self.options["tracking_uri"], self.experiments)
        with TemporaryDirectory(prefix="advisor-rules-") as own:
            yield {**self.options, "rules": [_laid_out(Path(own, str(i)), files) for i, files in enumerate(self.rules)]}


def pack(options: Mapping[str, Any], experiments: Iterable[str]) -> Luggage:
    """What an analysis by these options needs. Raises AdvisorError for settings and rules that are wrong."""
    folders = [Path(folder) for folder in options.get("rules", ())]
    settings = find_settings(Path.cwd())
    load_rules(settings=settings, directories=folders)
    store = from_anywhere(locate(options.get("tracking_uri")))
    return Luggage(
        version=__version__,
        options={**options, "tracking_uri": store, "settings": settings},
        environment={name: value for name, value in os.environ.items() if _travels(name)},
        rules=[_files(folder) for folder in folders],
        experiments=frozenset(experiments),
    )


def _travels(variable: str) -> bool:
    return variable.startswith(_SENT) and not variable.endswith(_OF_HERE)


def _files(folder: Path) -> dict[str, bytes]:
    try:
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.py"))}
    except OSError as error:
        raise AdvisorError(
            f"cannot read the rules folder {str(folder)!r}: {error.strerror}: {error.filename}"
        ) from error


@lru_cache(maxsize=1)
def _check_store(tracking_uri: str, experiments: frozenset[str]) -> None:
    """Raises AdvisorError where this machine does not see the store, or sees another one in its place."""
    needed = "pass a --tracking-uri that every node reaches: of a tracking server, a database, a file on a shared disk"
    try:
        seen = experiments.intersection(list_experiments(tracking_uri))
    except AdvisorError as error:
        raise AdvisorError(f"the node {platform.node()} cannot open the store; {needed} ({error})") from None
    # One or the other may have been deleted meanwhile.
    if 2 * len(seen) < len(experiments):
        raise AdvisorError(
            f"the node {platform.node()} has another store in its place, with {len(seen)} of the {len(experiments)} "
            f"experiments; {needed}"
        )


def _laid_out(folder: Path, files: Mapping[str, bytes]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder
