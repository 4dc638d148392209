"""The evidence behind a rule whose claims do not come from the playbook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Ground = Literal["mechanism", "count", "test", "literature"]
"""What a statement rests on:

- mechanism: it follows from the formula of an algorithm
- count: it is a number in the logs, compared with a limit beyond noise
- test: a statistical test on the study
- literature: others reported it; the study does not show it
"""
IN_WORDS: dict[Ground, str] = {
    "mechanism": "how the algorithm works",
    "count": "a number in the logs",
    "test": "a statistical test on the study",
    "literature": "the literature, and is not tested on the study",
}


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """What a rule's finding and its advice rest on, with the source."""

    finding: Ground
    advice: Ground
    source: str
    """Papers or documentation that the rule is based on, such as "arXiv 2309.14322"."""

    def sentence(self) -> str:
        """Return these facts in words, for the rule's page."""
        finding, advice = IN_WORDS[self.finding], IN_WORDS[self.advice]
        return f"The finding rests on {finding}. The advice rests on {advice}. Source: {self.source}."
