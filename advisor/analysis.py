"""Runs the complete analysis for the command line and for Python: reads an experiment, judges, plans and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from advisor.engine.judge import judge
from advisor.engine.registry import ThresholdSettings, load_rules
from advisor.engine.rule import Rule
from advisor.engine.settings import find_settings
from advisor.history.lineages import advice_records
from advisor.history.pool import add_earlier_trials
from advisor.history.predict import add_predictions
from advisor.history.rounds import build_history
from advisor.model.change import Advise
from advisor.model.finding import Verdict
from advisor.model.progress import Progress, ignore_progress
from advisor.model.reading import Reading, WorkloadKind
from advisor.model.spec import Direction, StudySpec
from advisor.model.spec_yaml import load_study_file
from advisor.model.study import Study
from advisor.planning import Plan, budget as planning_budget, new_scores, plan, price
from advisor.report import Report, build_report
from advisor.tracking import read_rounds, runs_url


def analyze(
    experiment: str,
    *,
    tracking_uri: str | None = None,
    objective: str | None = None,
    direction: Direction | None = None,
    study: StudySpec | Path | str | None = None,
    filter: str | None = None,
    ignore: Iterable[str] = (),
    population: str | None = None,
    kind: WorkloadKind | None = None,
    rules: Iterable[Path | str] = (),
    settings: ThresholdSettings | None = None,
    only_this_round: bool = False,
    budget: str | None = None,
    command: str | None = None,
    on_progress: Progress | None = None,
    unfinished: bool = False,
) -> Report:
    """Judge an MLflow experiment by the playbook's rules and plan the next study, without writing anything.

    experiment: name or id of the experiment. tracking_uri: default is MLflow's own. objective, direction: name of the metric,
    and "minimize" or "maximize"; taken from the study file by default, else from the adapters' tags, else inferred, and the
    report names this source. study: spec or path of a study file that declares the search space. filter: MLflow filter on runs.
    ignore, population, kind: how to read the experiment, see `Reading`; by default as the study file says, else inferred.
    rules: folders with custom rules. settings: thresholds by rule, `{"many-stopped": {"at_most": 0.5}}`; by default from
    `advisor.toml` or `pyproject.toml` in the working directory or its parents. only_this_round: ignore the trials of earlier
    rounds. budget: maximum total cost of the next studies, such as `40h` or `2e6 steps`. command: command line that the report
    shows. unfinished: whether to accept a study in which no trial has ended yet.

    If the input cannot be analysed, raises AdvisorError with one line that says what to do.
    """
    report_progress = on_progress or ignore_progress
    loaded_rules = load_rules(
        settings=find_settings(Path.cwd()) if settings is None else settings, directories=[Path(folder) for folder in rules]
    )
    rounds = read_rounds(
        experiment,
        tracking_uri=tracking_uri,
        spec=load_study_file(Path(study)) if isinstance(study, str | Path) else study,
        objective=objective,
        direction=direction,
        filter=filter,
        reading=Reading(ignore=tuple(ignore), population=population, kind=kind) if ignore or population or kind else None,
        on_progress=lambda done, total: report_progress("Reading runs", done, total),
        unfinished=unfinished,
    )
    report = analyze_study(
        rounds.own,
        rules=loaded_rules,
        earlier=rounds.earlier_studies,
        notes=rounds.notes,
        only_this_round=only_this_round,
        budget=budget,
        command=command,
        on_progress=report_progress,
    )
    report_context = {"runs_url": runs_url(experiment, tracking_uri=tracking_uri), "advice": advice_records(tracking_uri)}
    return report.model_copy(update=report_context)


def analyze_study(
    study: Study,
    *,
    rules: Iterable[Rule],
    earlier: Sequence[Study] = (),
    notes: Sequence[str] = (),
    only_this_round: bool = False,
    budget: str | None = None,
    command: str | None = None,
    on_progress: Progress | None = None,
) -> Report:
    """Judge a study that is already in memory by rules that are already loaded, and plan the next study. earlier: the studies
    of earlier rounds, oldest first. notes: reasons why studies of other earlier rounds could not be read."""
    report_progress = on_progress or ignore_progress
    limit = None if budget is None else planning_budget.parse_budget(budget)
    rules = tuple(rules)
    rule_numbers = iter(range(1, len(rules) + 1))

    pooled = add_earlier_trials(study, () if only_this_round else earlier)
    verdicts = judge(
        pooled.study, rules, on_rule=lambda rule: report_progress(f"Checking {rule}", next(rule_numbers), len(rules))
    )
    next_round = plan(pooled.study, verdicts, rules)
    specs = _complete_specs(pooled.study, verdicts, next_round, rules, limit)
    round_history = None
    if earlier or notes or study.spec.predictions:
        report_progress("Judging predictions", 0, 1)
        changes = (c for v in verdicts for f in v.findings if f.severity != "note" for c in f.changes)
        is_open = any(not isinstance(c, Advise) for c in changes)
        round_history = build_history([*earlier, study], rules, pooled=pooled, notes=notes, open_findings=is_open)
    report_progress("Drawing the report", 0, 1)
    stop, deferred = next_round.stop, next_round.deferred
    return build_report(pooled.study, verdicts, specs, deferred, rules=rules, stop=stop, command=command, history=round_history)


def _complete_specs(
    study: Study, verdicts: Sequence[Verdict], next_round: Plan, rules: Sequence[Rule], limit: planning_budget.CostLimit | None
) -> list[StudySpec]:
    """Return the next studies with their trial numbers, predicted effects and costs. limit: maximum total cost of the studies."""
    planned_specs = planning_budget.with_trial_numbers(study, next_round)
    if limit is not None:
        planned_specs = planning_budget.fit_into_budget(study, planned_specs, limit)
    if next_round.new_scores:  # the planned change makes new objective values incomparable with earlier ones
        planned_specs = (new_scores.with_best_setting_first(study, planned_specs[0]), *planned_specs[1:])
    else:
        planned_specs = add_predictions(study, verdicts, planned_specs, rules)
    return [price.with_cost_note(study, spec) for spec in planned_specs]


def first_study(
    study: Study, rules: Sequence[Rule], prepare: Callable[[StudySpec], StudySpec]
) -> tuple[StudySpec | None, tuple[Verdict, ...]]:
    """Return (next study with predicted effects, if any; verdicts). prepare: adapts the study before the prediction."""
    verdicts = judge(study, rules)
    specs = plan(study, verdicts).specs
    if not specs:
        return None, verdicts
    return add_predictions(study, verdicts, [prepare(specs[0])], rules)[0], verdicts
