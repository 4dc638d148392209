"""The rule `tracking`; its page is the docstring of the class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

from advisor.computed.pipeline.reproduction import reproduction
from advisor.engine.rule import Rule
from advisor.model.change import Advise
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study, Trial

_NO_NAMES = {"", "0", "default", "test", "untitled", "experiment"}


class Tracking(Rule):
    """What it takes to find this study again, and to run it again, was not noted.

    ## What it looks at
    What the trials that ended noted of how they were run: their command, and the commit of their code (changes that were not
    committed are kept with the run, and are fine); whether the study has a name of its own; and whether all trials ran the same
    code. A study without a goal, a sentence that says what it is to find out, is reminded of it along with the rest.

    ## Why it matters
    An experiment that nobody can find or repeat might as well not have been made. Where the code changed between trials, they
    differ in more than their hyperparameters.

    ## What to do
    Run trainings from a git repository, through the hook; name the study, and say in its study file what it is to find out. The
    report's study sheet holds all of it in one table.

    ## How sure
    These are noted facts: nothing is estimated, and chance raises no finding. Whether a change of the code mattered, a commit does
    not say: 0.6.

    Example: "Of what it takes to run this study again, 12 of 12 trials lack the commit of their code."
    """

    playbook: ClassVar[str] = "Setting up experiment tracking"
    goal: ClassVar[Goal] = "pipeline"

    def check(self, study: Study) -> Iterator[Finding]:
        """At most two findings: of what is lacking, and of code that changed."""
        ended = [t for t in study.trials if study.ended[t.index]]
        noted = [t for t in ended if "command" in t.facts]
        if not noted:
            raise MissingData(
                "no trial noted the command that started it; the hook does, as it does the commit of the code"
            )
        without_code = [t for t in noted if not t.facts.get("git_commit")]
        without_command = [t for t in ended if "command" not in t.facts]
        named = any(t.facts.get("study") for t in ended) or study.name.strip().lower() not in _NO_NAMES
        lacks = [
            f"{len(trials)} of {len(ended)} trials lack {what}"
            for trials, what in ((without_command, "their command"), (without_code, "the commit of their code"))
            if trials
        ]
        lacks += [] if named else ["the study has no name of its own"]
        if lacks:
            lacks += [] if study.spec.goal else ["no goal says what it is to find out"]
            advice = "Run trainings from a git repository with the hook, and give the study a name and a goal in a study file."
            message = f"Of what it takes to run this study again, {'; '.join(lacks)}."
            yield self._report(study, message, advice, without_code + without_command, 1.0)
        commits = Counter(t.facts["git_commit"] for t in noted if t.facts.get("git_commit"))
        if len(commits) > 1:
            usual = commits.most_common(1)[0][0]
            others = [t for t in noted if t.facts.get("git_commit") not in (usual, None, "")]
            message = f"{len(others)} of {len(ended)} trials ran other code than most: they are of {len(commits)} commits in all."
            advice = (
                "Compare trials of one commit, or check that what changed between these does not concern the training."
            )
            yield self._report(study, message, advice, others, 0.6)

    def _report(self, study: Study, message: str, advice: str, trials: Sequence[Trial], confidence: float) -> Finding:
        best = study.ranked()[:1]
        rows = [("study", study.name), ("goal", study.spec.goal or "none"), ("trials", str(len(study.trials)))]
        rows += [(f"best trial's {what}", value) for t in best for what, value in reproduction(t)]
        return self.finding(
            message,
            action=advice,
            severity="note",
            confidence=confidence,
            trials=trials,
            evidence=(FigureEvidence(rows=tuple(rows)),),
            changes=(Advise(text=advice),),
        )
