"""Describes the evidence for rules whose claims do not come from the Deep Learning Tuning Playbook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EvidenceKind = Literal["mechanism", "count", "test", "literature"]
"""The kind of evidence for a claim:

- mechanism: it follows from the formula of an algorithm
- count: it is a number in the logs, compared with a limit beyond noise
- test: a statistical test on the study
- literature: publications report it; the analysed study does not show it
"""
EVIDENCE_KIND_TEXTS: dict[EvidenceKind, str] = {
    "mechanism": "how the algorithm works",
    "count": "a number in the logs",
    "test": "a statistical test on the study",
    "literature": "the literature, without a test on the study",
}


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """The kinds of evidence that support the finding and the advice of a rule, and the source of this evidence."""

    finding: EvidenceKind
    advice: EvidenceKind
    source: str
    """Papers or documentation that support the rule, such as "arXiv 2309.14322"."""

    def evidence_sentence(self) -> str:
        """Return a sentence that describes the evidence, for the documentation page of the rule."""
        finding, advice = EVIDENCE_KIND_TEXTS[self.finding], EVIDENCE_KIND_TEXTS[self.advice]
        return f"The finding rests on {finding}. The advice rests on {advice}. Source: {self.source}."
