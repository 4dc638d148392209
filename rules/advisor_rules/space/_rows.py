"""Parts of messages and evidence for the rules about the search space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.model.message import Message, Name, Setting, say
from advisor.model.study import Study

if TYPE_CHECKING:
    from advisor.computed.space.settings import Settings


def tried_settings_row(tried: Settings) -> tuple[str, Message]:
    failed = int(tried.failed.sum())
    examined = len(tried.numeric) + len(tried.choices)
    if tried.unexamined_positions:
        text = "{count}, {failed} of them failed; {examined} of {varied} hyperparameters examined"
        return "settings tried", say(
            text, count=len(tried), failed=failed, examined=examined, varied=examined + len(tried.unexamined_positions)
        )
    return "settings tried", say("{count}, {failed} of them failed", count=len(tried), failed=failed)


def range_row(study: Study, name: str) -> tuple[str, Message]:
    source = "inferred from the trials" if name in study.inferred else "declared"
    return "range", say(f"{{span}}, {source}", span=range_text(study, name))


def range_text(study: Study, name: str) -> Message:
    domain = study.spec.parameters[name]
    return say("{low} to {high}", low=Setting(domain.low), high=Setting(domain.high))


def range_advice(template: str, name: str, low: float, high: float) -> Message:
    """Return the advice from a template with `{name}` and append the range to search, as in "Narrow the range of dropout: 0.1
    to 0.3."."""
    return say(f"{template}: {{low}} to {{high}}.", name=Name(name), low=Setting(low), high=Setting(high))
