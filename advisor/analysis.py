"""The analysis from end to end: an MLflow experiment in, a `Report` out. The command line and Python both go through here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from advisor.engine.judge import judge
from advisor.engine.registry import Settings, load_rules
from advisor.engine.rule import Rule
from advisor.engine.settings import find_settings
from advisor.history import history, pool, predicted
from advisor.model.change import Advise
from advisor.model.finding import Verdict
from advisor.model.spec import Direction, StudySpec
from advisor.model.spec_yaml import load
from advisor.model.study import Study
from advisor.planning import plan
from advisor.report import Report, build_report
from advisor.system.workers.processes import usable_cpus
from advisor.tracking import read_rounds, runs_url

Progress = Callable[[str, int, int], None]
"""Told (what is being done, how much is done, of how much)."""


def analyze(
    experiment: str,
    *,
    tracking_uri: str | None = None,
    objective: str | None = None,
    direction: Direction | None = None,
    study: StudySpec | Path | str | None = None,
    filter: str | None = None,
    rules: Iterable[Path | str] = (),
    settings: Settings | None = None,
    only_this_round: bool = False,
    command: str | None = None,
    alone: bool = False,
    on_progress: Progress | None = None,
) -> Report:
    """Hold an MLflow experiment against the playbook.

    experiment: name or id of the experiment. tracking_uri: where it is; default as MLflow resolves it. objective, direction: the
    metric to judge by and whether to minimize or maximize it; default from the study file, else from what the adapters noted, else
    inferred and said to be so. study: the study's spec or its file, which declares the search space. filter: an MLflow filter over
    runs. rules: folders with rules of your own. settings: thresholds by rule, `{"space-boundary": {"best": 7}}`; default from
    `advisor.toml` or `pyproject.toml` at or above the working directory. only_this_round: trials of earlier rounds that lie in the
    study's space do not count as data for it. alone: nothing else happens in this program, no other threads and nothing that is
    logged, so that copies of it may share the work.

    Raises AdvisorError, in one line that says what to do, where the input does not allow an analysis. Nothing is written.
    """
    tell = on_progress or _silent
    loaded = load_rules(
        settings=find_settings(Path.cwd()) if settings is None else settings,
        directories=[Path(folder) for folder in rules],
    )
    spec = load(Path(study)) if isinstance(study, str | Path) else study
    read = read_rounds(
        experiment,
        tracking_uri=tracking_uri,
        spec=spec,
        objective=objective,
        direction=direction,
        filter=filter,
        on_progress=lambda done, of: tell("Reading runs", done, of),
    )
    report = analyze_study(
        read.own,
        rules=loaded,
        earlier=read.earlier,
        said=read.notes,
        only_this_round=only_this_round,
        command=command,
        processes=usable_cpus() if alone else 1,
        on_progress=tell,
    )
    return report.model_copy(update={"runs_url": runs_url(experiment, tracking_uri=tracking_uri)})


def analyze_study(
    study: Study,
    *,
    rules: Iterable[Rule],
    earlier: Sequence[Study] = (),
    said: Sequence[str] = (),
    only_this_round: bool = False,
    command: str | None = None,
    processes: int = 1,
    on_progress: Progress | None = None,
) -> Report:
    """As `analyze`, for a study that is in memory already and rules that are loaded.

    earlier: the studies that it follows from, the first one first; said: what became of those that could not be read.
    """
    tell = on_progress or _silent
    loaded = tuple(rules)
    done = iter(range(1, len(loaded) + 1))
    pooled = pool(study, () if only_this_round else earlier)
    verdicts = judge(
        pooled.study,
        loaded,
        processes=processes,
        on_rule=lambda rule: tell(f"Checking {rule}", next(done), len(loaded)),
    )
    next_round = plan(pooled.study, verdicts)
    specs = predicted(pooled.study, verdicts, next_round.specs)
    past = None
    if earlier or said or study.spec.predictions:
        tell("Judging what was predicted", 0, 1)
        past = history([*earlier, study], loaded, pooled=pooled, said=said, open_findings=_asks_for_more(verdicts))
    tell("Drawing the report", 0, 1)
    return build_report(pooled.study, verdicts, specs, next_round.deferred, rules=loaded, command=command, history=past)


def _asks_for_more(verdicts: Sequence[Verdict]) -> bool:
    """Whether something worth doing is left that a next study would change."""
    found = [f for v in verdicts for f in v.findings if f.severity != "note"]
    return any(not isinstance(c, Advise) for f in found for c in f.changes)


def _silent(what: str, done: int, of: int) -> None:
    pass
