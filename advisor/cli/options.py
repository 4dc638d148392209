"""Defines the options that several commands have in common."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import click

from advisor.model.errors import AdvisorError
from advisor.model.reading import WorkloadKind

SEVERITIES = ("note", "warning", "critical")

tracking_option = click.option(
    "--tracking-uri",
    metavar="URI",
    help="MLflow store: sqlite:///mlflow.db, http://…  [default: $MLFLOW_TRACKING_URI, ./mlruns or ./mlflow.db]",
)
ray_address_option = click.option(
    "--ray-address", metavar="ADDRESS", help="Ray cluster to use.  [default: $RAY_ADDRESS, or a new cluster on this machine]"
)
objective_option = click.option(
    "--objective", metavar="METRIC", help="Metric to judge trials by.  [default: as logged, else inferred]"
)
direction_option = click.option(
    "--direction", type=click.Choice(["minimize", "maximize"]), help="Direction in which the objective improves."
)
rules_option = click.option(
    "--rules", multiple=True, type=click.Path(path_type=Path), metavar="DIR", help="Folder with your own rules."
)
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
study_option = click.option(
    "--study", "study_file", type=click.Path(path_type=Path), help="Study file that declares the search space."
)
notify_option = click.option(
    "--notify",
    metavar="COMMAND",
    help="Run a command for each trial that fails, is stopped or cannot win, and at the end; its input is a line of JSON.",
)
log_option = click.option(
    "--log-to-mlflow",
    is_flag=True,
    help='Store the report in a run "advisor" of the experiment, with the verdicts as its tags.',
)
fail_on_option = click.option(
    "--fail-on", type=click.Choice(SEVERITIES), help="Exit with status 1 if a finding is at least this severe."
)


def check_separate_folder(out: Path) -> None:
    """Raise AdvisorError if `--out` is the working directory."""
    if str(out) in ("", "."):
        raise AdvisorError("--out must name a separate folder, such as advisor-report")


@dataclass(frozen=True)
class AnalysisOptions:
    tracking_uri: str | None
    objective: str | None
    direction: Literal["minimize", "maximize"] | None
    filter: str | None
    ignore: tuple[str, ...]
    population: str | None
    kind: WorkloadKind | None
    rules: tuple[Path, ...]
    only_this_round: bool
    budget: str | None
    out: Path
    quiet: bool

    def __post_init__(self) -> None:
        check_separate_folder(self.out)

    def analyze_arguments(self) -> dict[str, Any]:
        option_values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in option_values.items() if name not in ("out", "quiet")}

    def command_words(self, study: Path | None = None) -> list[str]:
        """Return the options that affect the report as arguments, but omit the tracking URI, which may contain a password."""
        flag_values = [
            ("--objective", self.objective),
            ("--direction", self.direction),
            ("--study", study),
            ("--filter", self.filter),
            *(("--ignore", name) for name in self.ignore),
            ("--population", self.population),
            ("--kind", self.kind),
            *(("--rules", folder) for folder in self.rules),
            ("--budget", self.budget),
        ]
        words = [str(word) for flag, value in flag_values if value is not None for word in (flag, value)]
        return [*words, *(["--only-this-round"] if self.only_this_round else [])]


def add_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds options to a command, in this order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def options_as_dataclass(name: str, target: type[Any], *options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds options to a command, which receives them as the argument `name` of the dataclass `target`."""

    def decorate(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def wrapper(**arguments: Any) -> Any:
            field_values = {field.name: arguments.pop(field.name) for field in dataclasses.fields(target)}
            return command(**{name: target(**field_values)}, **arguments)

        return add_options(*options)(wrapper)

    return decorate


analysis_options = options_as_dataclass(
    "options",
    AnalysisOptions,
    tracking_option,
    objective_option,
    direction_option,
    click.option("--filter", metavar="EXPR", help="Analyze only the runs that match: params.model = 'cnn'."),
    click.option(
        "--ignore", multiple=True, metavar="PARAM", help="Logged parameter to ignore, because it is no hyperparameter."
    ),
    click.option(
        "--population",
        metavar="RUNS",
        help="Runs to analyze if the experiment mixes several kinds: all, or PARAM=VALUE.  [default: the largest group]",
    ),
    click.option("--kind", type=click.Choice(get_args(WorkloadKind)), help="Kind of workload.  [default: inferred]"),
    click.option(
        "--out", type=click.Path(path_type=Path), default=Path("advisor-report"), show_default=True, help="Output folder."
    ),
    rules_option,
    click.option(
        "--only-this-round",
        is_flag=True,
        help="Ignore the trials of earlier rounds.  [default: use those in this study's space]",
    ),
    click.option("--budget", metavar="COST", help="Maximum total cost of the planned studies: 40h, or '2e6 steps'."),
    quiet_option,
)


def is_severe_enough(severity: str, level: str) -> bool:
    return SEVERITIES.index(severity) >= SEVERITIES.index(level)
