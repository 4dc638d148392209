"""Rounds in words: what is said of them in the report, in a terminal and by `advisor history`."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.history import History, HitRate, Outcome, Round, describe_prediction
from advisor.model.spec import StudySpec
from advisor.model.spec_yaml import share
from advisor.model.words import count, listed, number

SIGNS = {"kept": "passed", "not kept": "broken", "cannot tell": "unknown"}
"""The icon of each judgement."""


def summary(history: History) -> tuple[str, ...]:
    """One or two sentences on the latest round: its data, and what became of what was predicted of it."""
    latest = history.rounds[-1]
    said = []
    if len(history.rounds) > 1 or history.counted:
        more = f", and {history.counted:,} of earlier rounds that lie in this space" if history.counted else ""
        said.append(f"Round {latest.number}: {count(latest.trials, 'trial')}{more}.")
    if latest.outcomes:
        said.append(f"Of what was predicted of this round, {tally(latest.outcomes)}.")
    return tuple(said) + ((history.stop,) if history.stop else ())


def expected(spec: StudySpec) -> tuple[str, ...]:
    """What the advice predicts of a study that is to be run, one phrase each; what several changes foretell is said once."""
    return tuple(dict.fromkeys(describe_prediction(p, spec.objective) for p in spec.predictions))


def tally(outcomes: Sequence[Outcome]) -> str:
    """How many predictions came true: `2 of 3 were kept, 1 cannot be told (space-boundary)`."""
    kept = [o for o in outcomes if o.judged == "kept"]
    unknown = [o for o in outcomes if o.judged == "cannot tell"]
    judged = len(outcomes) - len(unknown)
    parts = []
    if judged:
        rest = [o.prediction.rule for o in outcomes if o.judged == "not kept"]
        wrong = f" (not: {listed(rest)})" if rest else ""
        parts.append(f"{len(kept)} of {judged} {'was' if judged == 1 else 'were'} kept{wrong}")
    if unknown:
        parts.append(f"{len(unknown)} cannot be told ({listed(o.prediction.rule for o in unknown)})")
    return ", ".join(parts)


def rate(found: HitRate) -> str:
    """`space-boundary: 3 of 4 kept (75 %), predicted 91 %; 1 cannot be told`."""
    judged = found.kept + found.not_kept
    parts = []
    if judged and found.rate is not None:
        stated = f", predicted {share(found.stated)}" if found.stated is not None else ""
        parts.append(f"{found.kept} of {judged} kept ({share(found.rate)}{stated})")
    if found.cannot_tell:
        parts.append(f"{found.cannot_tell} cannot be told")
    return f"{found.rule}: {'; '.join(parts)}"


def row(round: Round) -> tuple[str, str, str, str, str]:
    """(number, study, trials, best, best so far) of a round."""
    trials = f"{round.trials:,}" + (
        f", {round.trials - round.feasible:,} without a result" if round.feasible < round.trials else ""
    )
    trials += f"; {round.counted:,} count now" if round.counted else ""
    return str(round.number), round.study, trials, number(round.best), number(round.incumbent)
