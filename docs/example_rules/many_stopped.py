"""A rule of one's own: `advisor analyze EXPERIMENT --rules docs/example_rules`."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.engine.rule import Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData
from advisor.model.study import Study


class ManyStopped(Rule):
    """Many trials were stopped before they had trained to their end.

    ## What it looks at
    The share of the ended trials that were stopped early, by a scheduler or by hand.

    ## Why it matters
    A trial that was stopped might have become the best: a slow start is what a long warmup looks like.

    ## What to do
    Stop later, or compare the stopped ones at the step that all of them reached.

    ## How sure
    The status of a trial is a noted fact, so that chance alone raises no finding.
    """

    playbook = "Examining the training curves"
    goal = "pipeline"

    at_most: Share = 0.3
    """Share of the ended trials that may be stopped before it is said. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding."""
        ended = [t for t in study.trials if study.ended[t.index]]
        if not ended:
            raise MissingData("no trial has ended yet")
        stopped = [t for t in ended if t.status == "stopped"]
        if len(stopped) <= self.at_most * len(ended):
            return
        yield self.finding(
            f"{len(stopped)} of the {len(ended)} ended trials were stopped before they had trained to their end.",
            action="Let trials train longer before any is stopped.",
            severity="note",
            confidence=1.0,
            trials=stopped,
            evidence=table(("stopped", len(stopped)), ("ended", len(ended))),
            changes=(Advise(text="Let trials train longer before any is stopped."),),
        )
