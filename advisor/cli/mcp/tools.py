"""The tools of `advisor mcp`; agents read their docstrings. The store is chosen when the server starts, so no call can name a
host or a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import Field

from advisor.analysis import analyze
from advisor.cli import compare as comparing, explain, gate, history
from advisor.cli.analyze import short_report_json as brief_report
from advisor.cli.brief import Json, bounded_answer_json
from advisor.cli.mcp.quoting import name_in_backticks, quote_store_texts, without_invisible_characters
from advisor.engine.registry import load_rules
from advisor.engine.settings import find_settings
from advisor.history.answer import GateQuestion
from advisor.history.lineages import read_lineages
from advisor.model.errors import AdvisorError
from advisor.model.reading import Reading
from advisor.model.spec import Direction
from advisor.model.spec_yaml import describe_parameter, parse_study_file
from advisor.model.words import count
from advisor.report.save import save_report
from advisor.report.text.headline import headline
from advisor.tracking.stores.reading import active_experiments

MAX_STUDY_CHARS = 40_000
"""Maximum characters of a study file in a tool call or an answer, several times the length of a file with 40 hyperparameters."""
NOT_RECORDED_NOTE = (
    "This answer is valid, but not recorded, because the server is read-only. A kept setting becomes the next default incumbent, "
    "and counts in later questions, only after its answer is recorded: ask a person to run advisor gate, or to start the server "
    "with --allow-run. Until then, later answers are stricter; pass `against`, and name settings by the same tags each time."
)
STUDY_NOT_WRITTEN_NOTE = "No file was written, because the server is read-only."

ExperimentArgument = Annotated[str, Field(description="Name or id of an experiment; use the id if the name is unusual.")]
MetricArgument = Annotated[str | None, Field(description="Objective. Default: as logged, else inferred.")]
DirectionArgument = Annotated[Direction | None, Field(description="Direction in which the objective improves.")]
LimitsArgument = Annotated[tuple[str, ...], Field(description="METRIC=VALUE: discard the candidate if METRIC is beyond VALUE.")]
SETTING_TEXT = "A run's name or id, a git commit, or NAME=VALUE,... of parameters and tags"
SettingArgument = Annotated[str, Field(description=f"{SETTING_TEXT}.")]


@dataclass(frozen=True)
class StoreTools:
    tracking_uri: str | None
    allow_run: bool
    """Whether `gate` records its answers in the store and `next_study` writes its report."""
    out: Path

    def list_experiments(self, pattern: Annotated[str, Field(description="Pattern such as cifar-*.")] = "*") -> str:
        """List the experiments of the store, newest first, with the ids that all tools accept."""
        matching = [e for e in active_experiments(self.tracking_uri) if fnmatchcase(e.name, pattern)]
        entries = [{"id": e.id, "name": e.name} for e in reversed(matching)]
        return _quoted_answer(bounded_answer_json({"action": f"{count(len(matching), 'experiment')}.", "experiments": entries}))

    def analyze_experiment(
        self, experiment: ExperimentArgument, objective: MetricArgument = None, direction: DirectionArgument = None
    ) -> str:
        """Judge an experiment by the rules of the Deep Learning Tuning Playbook: the next action, and the findings behind it."""
        report = analyze(experiment, tracking_uri=self.tracking_uri, objective=objective, direction=direction)
        return _quoted_answer(brief_report(report, None, name_in_backticks))

    def next_study(
        self,
        experiment: ExperimentArgument,
        number: Annotated[int, Field(ge=1, description="Number of the planned study; run study 1 first.")] = 1,
        objective: MetricArgument = None,
        direction: DirectionArgument = None,
        budget: Annotated[str | None, Field(description="Maximum total cost of all studies: 40h, or 2e6 steps.")] = None,
    ) -> str:
        """Plan the next study of an experiment, and return it as a study file (YAML) for `advisor run`."""
        report = analyze(experiment, tracking_uri=self.tracking_uri, objective=objective, direction=direction, budget=budget)
        planned = report.next_studies
        if not planned:
            return _quoted_answer(bounded_answer_json({"action": headline(report).render(name_in_backticks), "studies": 0}))
        if number > len(planned):
            raise AdvisorError(f"number {number} is too large: {count(len(planned), 'study', 'studies')} planned")
        study = planned[number - 1]
        if len(study.yaml) > MAX_STUDY_CHARS or parse_study_file(without_invisible_characters(study.yaml)) != study.spec:
            raise AdvisorError("the study file is too long, or names in it are not printable; use: advisor analyze EXPERIMENT")
        plan_data: dict[str, Json] = {"goal": study.spec.goal, "studies": len(planned), "file": study.file, "yaml": study.yaml}
        if not self.allow_run:
            return quote_store_texts(plan_data, STUDY_NOT_WRITTEN_NOTE)
        save_report(report, self.out)
        plan_data["file"] = str(self.out / "next" / study.file)
        return quote_store_texts(plan_data, "The file was written, with its report.")

    def gate(
        self,
        experiment: ExperimentArgument,
        candidate: SettingArgument,
        against: Annotated[
            str | None,
            Field(description=f"Setting to replace. {SETTING_TEXT}. Default: the last kept one, else the best with repeats."),
        ] = None,
        worthwhile: Annotated[
            str | None, Field(description="Smallest gain that is worth finding: 0.002 (in units of the objective) or 1%.")
        ] = None,
        at_most: LimitsArgument = (),
        at_least: LimitsArgument = (),
        objective: MetricArgument = None,
        direction: DirectionArgument = None,
    ) -> str:
        """Decide about a proposal: keep the candidate, discard it, or run the named seeds first. Call this tool after every
        run."""
        question = GateQuestion(candidate, against, worthwhile, at_most, at_least)
        experiments = comparing.ExperimentCache(self.tracking_uri, objective, direction, Reading(population="all"))
        answer = gate.answer_gate_question(experiments, question, experiment, record=self.allow_run)
        return _quoted_answer(gate.short_gate_json(answer), None if self.allow_run else NOT_RECORDED_NOTE)

    def explain_rule(self, rule: Annotated[str, Field(description="Id of a rule, as in a finding.")]) -> str:
        """Explain a rule: what it looks at, why it matters, what to do, and its thresholds."""
        return _quoted_answer(explain.short_rule_json(explain.find_rule(rule)))

    def history(
        self,
        experiment: Annotated[str | None, Field(description="Experiment or study. Default: all in the store.")] = None,
        near: Annotated[str | None, Field(description=f"{SETTING_TEXT}: list earlier trials near it, and failures.")] = None,
    ) -> str:
        """Show the rounds of a study and how often the advice was right, or what was tried near a setting."""
        if near is None:
            rules = load_rules(settings=find_settings(Path.cwd()))
            return _quoted_answer(history.short_history_json(read_lineages(experiment, rules, tracking_uri=self.tracking_uri)))
        if experiment is None:
            raise AdvisorError("`near` needs `experiment`")
        return _quoted_answer(history.short_history_json(history.find_settings_near(experiment, near, self.tracking_uri)))

    def compare(
        self,
        candidate: Annotated[
            str, Field(description=f"{SETTING_TEXT}; without `experiment`: an experiment, or EXPERIMENT:SETTING.")
        ],
        incumbent: Annotated[str, Field(description="Setting to replace, named like the candidate.")],
        experiment: Annotated[str | None, Field(description="Experiment that contains both settings.")] = None,
        complexity: Annotated[str | None, Field(description="Minimum gain that justifies the candidate: 0.002 or 1%.")] = None,
        objective: MetricArgument = None,
        direction: DirectionArgument = None,
    ) -> str:
        """Compare two settings or studies once. To judge many proposals in a loop, use `gate` instead, which counts the
        proposals."""
        experiments = comparing.ExperimentCache(self.tracking_uri, objective, direction)
        result = comparing.compare_settings(experiments, candidate, incumbent, experiment, complexity)
        return _quoted_answer(comparing.brief_comparison(result))

    def check_study(self, text: Annotated[str, Field(description="The study file itself, not its path.")]) -> str:
        """Check the text of a study file (YAML); an error has the line and the key."""
        if len(text) > MAX_STUDY_CHARS:
            raise AdvisorError(f"the text is longer than {MAX_STUDY_CHARS:,} characters")
        spec = parse_study_file(text)
        space_texts = {name: describe_parameter(parameter, "search") for name, parameter in spec.parameters.items()}
        study_data = {"action": "The study file is valid.", "study": spec.study, "trials": spec.trials, "space": space_texts}
        return _quoted_answer(bounded_answer_json(study_data))


def _quoted_answer(brief_answer: str, note: str | None = None) -> str:
    return quote_store_texts(json.loads(brief_answer), note)
