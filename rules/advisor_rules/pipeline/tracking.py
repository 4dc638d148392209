"""Implements the rule `tracking`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from advisor.computed.pipeline.reproduction import reproduction_facts
from advisor.engine.rule import Rule
from advisor.model.evidence import TableRow, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Code, Message, Name, list_message, say
from advisor.model.study import Study, Trial

_DEFAULT_STUDY_NAMES = {"", "0", "default", "test", "untitled", "experiment"}


class Tracking(Rule):
    """The information for finding and repeating this study is incomplete.

    ## What it looks at
    The rule reads the logged facts of the trials that ended. Each trial needs a logged command, a commit of the code
    (uncommitted changes are acceptable, because they are stored with the run) and a study name other than the default, and all
    trials need the same code. If any of this information is missing, the finding also mentions a missing goal: a sentence on
    the question that the study answers.

    ## Why it matters
    An experiment that cannot be found or repeated has little value. If the code changed between trials, the trials differ in
    more than their hyperparameters.

    ## What to do
    Run training from a git repository with the advisor's training hook. Name the study, and write its goal into the study file.
    The study sheet of the report lists all information for repeating the study.

    ## How sure
    The rule reads only logged facts, so no finding is due to chance. A commit does not show if a change of the code affected
    the training, so the finding about changed code has confidence 0.6.
    """

    playbook = "Setting up experiment tracking"
    goal = "pipeline"

    def check(self, study: Study) -> Iterator[Finding]:
        ended_trials = [t for t in study.trials if study.ended[t.index]]
        with_command = [t for t in ended_trials if "command" in t.facts]
        if not with_command:
            raise MissingData(
                "no trial logged the command that started it; the advisor's training hook does, and also logs the commit of "
                "the code",
                needs="facts",
            )
        yield from self._report_missing_facts(study, ended_trials)
        commits = Counter(t.facts["git_commit"] for t in with_command if t.facts.get("git_commit"))
        if len(commits) > 1:
            usual_commit = commits.most_common(1)[0][0]
            other_trials = [t for t in with_command if t.facts.get("git_commit") not in (usual_commit, None, "")]
            text = "{n} of {trials} trials ran other code than most trials. There are {commits} different commits in all."
            advice = "Compare trials of one commit, or check that the changes between commits do not affect the training."
            message = say(text, n=len(other_trials), trials=len(ended_trials), commits=len(commits))
            yield self._build_finding(study, message, advice, other_trials, 0.6)

    def _report_missing_facts(self, study: Study, ended_trials: Sequence[Trial]) -> Iterator[Finding]:
        without_command = [t for t in ended_trials if "command" not in t.facts]
        without_code = [t for t in ended_trials if "command" in t.facts and not t.facts.get("git_commit")]
        missing: list[tuple[Message, str]] = []
        for trials, fact, remedy in (
            (without_command, "the command", "Run trainings with the advisor's training hook."),
            (without_code, "the commit of the code", "Run trainings from a git repository."),
        ):
            if trials:
                missing.append(
                    (say("{what} of {n} of {trials} trials", what=fact, n=len(trials), trials=len(ended_trials)), remedy)
                )
        if not any(t.facts.get("study") for t in ended_trials) and study.name.strip().lower() in _DEFAULT_STUDY_NAMES:
            missing.append((say("a name of the study"), "Name the study."))
        if missing:
            missing += [] if study.spec.goal else [(say("a goal of the study"), "Write its goal into a study file.")]
            names = list_message([name for name, _ in missing], 4)
            message = say("Some information needed to run this study again is missing: {missing}.", missing=names)
            advice = " ".join(remedy for _, remedy in missing)
            yield self._build_finding(study, message, advice, without_code + without_command, 1.0)

    def _build_finding(
        self, study: Study, message: Message, advice: str, trials: Sequence[Trial], confidence: float
    ) -> Finding:
        rows: list[TableRow] = [("study", Name(study.name)), ("goal", study.spec.goal or "none"), ("trials", len(study.trials))]
        for best in study.ranked()[:1]:
            rows += [(f"best trial's {kind}", Code(value)) for kind, value in reproduction_facts(best)]
        return self.finding(
            message, action=advice, severity="note", confidence=confidence, trials=trials, evidence=table(*rows)
        )
