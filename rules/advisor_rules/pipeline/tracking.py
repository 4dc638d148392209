from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from advisor.computed.pipeline.reproduction import reproduction_facts
from advisor.engine.rule import Count, Relation, Rule
from advisor.model.evidence import TableRow, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Code, Message, Name, Objective, list_message, say
from advisor.model.study import Study, Trial

_DEFAULT_STUDY_NAMES = {"", "0", "default", "test", "untitled", "experiment"}


class Tracking(Rule):
    """The information for finding and repeating this study is incomplete.

    ## What it looks at
    The rule reads the logged facts of the trials that ended. Each trial needs a logged command, a commit of the code
    (uncommitted changes are acceptable, because they are stored with the run) and a study name other than the default, and all
    trials need the same code. If any of this information is missing, the finding also mentions a missing goal: a sentence on
    the question that the study answers. If no trial with a result has a hyperparameter, a seed or a commit of its own, the
    finding is critical.

    ## Why it matters
    An experiment that cannot be found or repeated has little value. If the code changed between trials, the trials differ in
    more than their hyperparameters. Without hyperparameters, nothing shows which setting a result belongs to.

    ## What to do
    Log hyperparameters as parameters, in the same run as the objective.
    Run training from a git repository with the advisor's training hook. Name the study, and write its goal into the study file.
    The study sheet of the report lists all information for repeating the study.

    ## How sure
    The rule reads only logged facts, so no finding is due to chance. A commit does not show if a change of the code affected
    the training, so the finding about changed code has confidence 0.6.
    """

    playbook = "Setting up experiment tracking"
    goal = "pipeline"
    explains = (
        Relation(
            rules=("adopt",),
            shares="study",
            because="Without logged hyperparameters, runs with different settings look like repeats.",
            cause_at="somewhere",
        ),
    )

    unnamed: Count = 3
    """Minimum number of trials with a result but without hyperparameters for a critical finding; one or two trials may be tests
    of the code. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        if (finding := self._report_missing_hyperparameters(study)) is not None:
            yield finding
            return
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

    def _report_missing_hyperparameters(self, study: Study) -> Finding | None:
        ranked = study.ranked()
        is_known = any(t.params or t.seed is not None for t in ranked) or len({t.commit for t in ranked}) > 1
        if len(ranked) < self.unnamed or is_known:
            return None
        results = [Objective(study.objective_value(float(study.costs[t.index]))) for t in (ranked[0], ranked[-1])]
        elsewhere = [t for t in study.trials if t.params]
        text = (
            "None of the {n} trials with a result logged a hyperparameter, so nothing shows why {metric} differs between them."
        )
        metric = Name(study.spec.objective.metric)
        advice = "Log the hyperparameters of each run as parameters, in the same run as {metric}."
        action = say(advice, metric=metric)
        return self.finding(
            say(text, n=len(ranked), metric=metric),
            action=action,
            severity="critical",
            confidence=1.0,
            subject="parameters",
            trials=ranked,
            evidence=table(
                ("trials with a result but without hyperparameters", len(ranked)),
                ("best and worst result", list_message(results, 2)),
                ("runs with hyperparameters but without a result", len(elsewhere)),
            ),
        )

    def _report_missing_facts(self, study: Study, ended: Sequence[Trial]) -> Iterator[Finding]:
        without_command = [t for t in ended if "command" not in t.facts]
        without_code = [t for t in ended if "command" in t.facts and not t.facts.get("git_commit")]
        missing: list[tuple[Message, str]] = []
        for trials, fact, remedy in (
            (without_command, "the command", "Run trainings with the advisor's training hook."),
            (without_code, "the commit of the code", "Run trainings from a git repository."),
        ):
            if trials:
                missing.append((say("{what} of {n} of {trials} trials", what=fact, n=len(trials), trials=len(ended)), remedy))
        if not any(t.facts.get("study") for t in ended) and study.name.strip().lower() in _DEFAULT_STUDY_NAMES:
            missing.append((say("a name of the study"), "Name the study."))
        if missing:
            missing += [] if study.spec.goal else [(say("a goal of the study"), "Write its goal into a study file.")]
            names = list_message([name for name, _ in missing], 4)
            message = say("Some information needed to run this study again is missing: {missing}.", missing=names)
            advice = " ".join(remedy for _, remedy in missing)
            yield self._build_finding(study, message, advice, without_code + without_command, 1.0)

    def _build_finding(self, study: Study, message: Message, advice: str, trials: list[Trial], confidence: float) -> Finding:
        rows: list[TableRow] = [("study", Name(study.name)), ("goal", study.spec.goal or "none"), ("trials", len(study.trials))]
        for best in study.ranked()[:1]:
            rows += [(f"best trial's {kind}", Code(value)) for kind, value in reproduction_facts(best)]
        return self.finding(
            message, action=advice, severity="note", confidence=confidence, trials=trials, evidence=table(*rows)
        )
