"""The command `advisor compare`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import click

from advisor.cli.brief import bounded_answer_json as brief_json, brief_option
from advisor.cli.options import direction_option, objective_option, tracking_option
from advisor.history.compare import ComparedTrials, Comparison, Summary, Variance, compare as decide
from advisor.history.proposals import find_trials
from advisor.model.errors import AdvisorError
from advisor.model.reading import Reading
from advisor.model.study import Study
from advisor.model.words import share
from advisor.tracking import read_study
from advisor.tracking.stores.reading import list_experiments

DEFAULT_POWER = 0.8
DEFAULT_MAX_SEEDS = 20


@click.command()
@click.argument("candidate")
@click.argument("incumbent")
@tracking_option
@click.option("--experiment", "-e", metavar="NAME", help="Experiment that contains both settings.")
@click.option(
    "--complexity",
    metavar="GAIN",
    help="Minimum gain that justifies CANDIDATE: 0.002 (in units of the objective) or 1% (of INCUMBENT's value). Default: 0.2% of "
    "INCUMBENT's value or of that value's distance from 1, whichever is less.",
)
@objective_option
@direction_option
@click.option(
    "--power",
    type=click.FloatRange(0.5, 0.99),
    default=DEFAULT_POWER,
    show_default=True,
    help="Probability that the advised seeds confirm a gain as large as the measured one.",
)
@click.option(
    "--max-seeds",
    type=click.IntRange(min=2, max=1000),
    default=DEFAULT_MAX_SEEDS,
    show_default=True,
    help="Maximum number of seeds to advise for a setting.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@brief_option
def compare(
    candidate: str,
    incumbent: str,
    tracking_uri: str | None,
    experiment: str | None,
    complexity: str | None,
    objective: str | None,
    direction: Literal["minimize", "maximize"] | None,
    power: float,
    max_seeds: int,
    as_json: bool,
    brief: bool,
) -> None:
    """Decide whether to adopt CANDIDATE in place of INCUMBENT, or to run more seeds first.

    CANDIDATE and INCUMBENT are each an experiment (the whole study), EXPERIMENT:TRIAL (a run's name or id; runs of the same
    setting with other seeds count as its repeats), or EXPERIMENT:NAME=VALUE,... (the trials with these values). With
    --experiment, give only the part after the colon.

    \b
    advisor compare wider baseline                            two studies
    advisor compare -e cifar trial-17 trial-3                 two trials and their repeats
    advisor compare -e cifar optimizer=adam optimizer=sgd     two configurations, each by its best
    advisor compare new:trial-4 cifar:trial-3 --complexity 0.5%
    """
    experiments = ExperimentCache(tracking_uri, objective, direction)
    result = compare_settings(experiments, candidate, incumbent, experiment, complexity, power, max_seeds)
    click.echo(brief_comparison(result) if brief else result.ascii_json() if as_json else _comparison_text(result))


def compare_settings(
    experiments: ExperimentCache,
    candidate: str,
    incumbent: str,
    experiment: str | None = None,
    complexity: str | None = None,
    power: float = DEFAULT_POWER,
    max_seeds: int = DEFAULT_MAX_SEEDS,
) -> Comparison:
    """Compare two settings, named as in the arguments of `advisor compare`. Raises AdvisorError if either setting is unknown."""
    compared_settings = _parse_setting(candidate, experiment, experiments), _parse_setting(incumbent, experiment, experiments)
    required_gain = _parse_gain(complexity, compared_settings[1]) if complexity is not None else None
    return decide(*compared_settings, complexity=required_gain, power=power, max_seeds=max_seeds)


def brief_comparison(result: Comparison) -> str:
    return brief_json({"action": _comparison_text(result).splitlines()[0], **result.model_dump()})


@dataclass
class ExperimentCache:
    tracking_uri: str | None
    objective: str | None
    direction: Literal["minimize", "maximize"] | None
    reading: Reading | None = None
    study_by_name: dict[str, Study] = field(default_factory=dict)
    experiment_names: tuple[str, ...] | None = None

    def read_once(self, name: str) -> Study:
        if name not in self.study_by_name:
            self.study_by_name[name] = read_study(
                name, tracking_uri=self.tracking_uri, objective=self.objective, direction=self.direction, reading=self.reading
            )
        return self.study_by_name[name]

    def split_setting(self, text: str) -> tuple[str, str]:
        """Split `EXPERIMENT:SETTING`; without a setting, the second part is "". Experiment names may contain colons."""
        if self.experiment_names is None:
            self.experiment_names = list_experiments(self.tracking_uri)
        if text in self.experiment_names:
            return text, ""
        colons = [i for i, c in enumerate(text) if c == ":"]
        at = next((i for i in reversed(colons) if text[:i] in self.experiment_names), colons[0] if colons else len(text))
        return text[:at], text[at + 1 :]


def _parse_setting(text: str, experiment: str | None, experiments: ExperimentCache) -> ComparedTrials:
    name, part = (experiment, text) if experiment is not None else experiments.split_setting(text)
    study = experiments.read_once(name)
    return ComparedTrials(name=text, study=study, trials=find_trials(study, part, name) if part else study.trials)


def _parse_gain(text: str, incumbent: ComparedTrials) -> float:
    percent = text.strip().endswith("%")
    try:
        parsed_gain = float(text.strip().rstrip("%"))
    except ValueError:
        parsed_gain = -1.0
    if not 0 <= parsed_gain < float("inf"):
        raise AdvisorError(f"--complexity takes a gain of 0 or more, such as 0.002 or 1%, not {text!r}")
    if not percent:
        return parsed_gain
    best_trials = incumbent.study.ranked(incumbent.trials)[:1]
    return parsed_gain / 100 * abs(float(incumbent.study.costs[best_trials[0].index])) if best_trials else parsed_gain


def _comparison_text(result: Comparison) -> str:
    interval_text = f" (95 % interval {result.interval[0]:.3g} to {result.interval[1]:.3g})" if result.interval else ""
    required_gain_text = f", {result.complexity:.3g} required" if result.complexity > 0 else ""
    decision_text: str = result.decision
    if decision_text == "run more seeds":
        one, other = result.more_seeds
        advised_seeds = [f"{n} of {s.name}" for n, s in ((one, result.candidate), (other, result.incumbent)) if n]
        decision_text = f"run more seeds: {' and '.join(advised_seeds)}"
    lines = [
        f"{decision_text[0].upper()}{decision_text[1:]}. {result.reason}",
        "",
        f"candidate       {_setting_summary_text(result.candidate)}",
        f"incumbent       {_setting_summary_text(result.incumbent)}",
        f"gain            {result.gain:.4g}{interval_text} in {result.metric}, {result.direction}d{required_gain_text}",
        f"trial variance  {_variance_text(result.trial_variance)}",
    ]
    if result.study_variance is not None:
        lines.append(f"study variance  {_variance_text(result.study_variance)}")
    lines.append(f"data variance   {_variance_text(result.data_variance)}")
    return "\n".join("".join(c if c.isprintable() else " " for c in line) for line in lines)


def _setting_summary_text(side: Summary) -> str:
    runs_text = "1 run" if side.runs == 1 else f"mean of {side.runs} runs"
    failed_text = f", {side.failed} more failed" if side.failed else ""
    of = f", best of {side.settings} settings" if side.settings > 1 else ""
    return f"{side.value:.5g}  {side.name} ({runs_text}{of}{failed_text})"


def _variance_text(variance: Variance) -> str:
    if variance.sd is None or variance.sure is None:
        return variance.note
    probability = share(min(max(variance.sure, 0.001), 0.999))
    return f"sd {variance.sd:.3g}, better with a probability of {probability} ({variance.note})"
