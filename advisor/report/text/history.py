"""Sentences and table rows on the rounds of a study, for the report and for `advisor history`."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.history.lineages import AdviceRecord
from advisor.history.model import History, HitRate, Outcome, Round
from advisor.model.message import Percent
from advisor.model.prediction import Settled, describe_prediction
from advisor.model.spec import StudySpec
from advisor.model.words import count, listed, number
from advisor.report.model import ReportData

JUDGEMENT_ICONS = {"kept": "passed", "not kept": "broken", "cannot tell": "unknown"}
"""Icon for each judgement of whether a prediction came true."""

JUDGEMENTS = {"kept": "came true", "not kept": "did not come true", "cannot tell": "undecided"}


def round_summary(history: History) -> tuple[str, ...]:
    """Return sentences about the trials and predictions of the latest round."""
    latest = history.rounds[-1]
    lines = []
    if len(history.rounds) > 1 or history.counted:
        more = f", and {history.counted:,} from earlier rounds in this search space" if history.counted else ""
        lines.append(f"Round {latest.number}: {count(latest.trials, 'trial')}{more}.")
    if latest.outcomes:
        lines.append(f"Predictions for this round: {_true_predictions_text(latest.outcomes)}.")
    return (*lines, *((history.stop,) if history.stop else ()))


def round_lines(report: ReportData) -> tuple[str, ...]:
    """Return the sentences about the latest round and about the advice of the rules behind the current findings."""
    return (*(round_summary(report.history) if report.history is not None else ()), *advice_track_record(report))


def advice_track_record(report: ReportData) -> tuple[str, ...]:
    """Return for each rule behind the current findings how much following its advice has gained in the store."""
    fired = dict.fromkeys(f.rule for f in report.heads if f.severity != "note" and f.changes)
    return tuple(_track_record_sentence(r) for r in report.advice if r.rule in fired)


def _track_record_sentence(record: AdviceRecord) -> str:
    start = f"Advice of {record.rule} was followed {record.followed} times in this store"
    if record.median_gain is None:
        return f"{start}; the best result never improved."
    return (
        f"{start}. The best result improved {record.gained} of {record.followed} times; the median improvement was "
        f"{Percent(record.median_gain)}."
    )


def study_predictions(spec: StudySpec) -> tuple[str, ...]:
    """Return the predictions about the results of a next study, each prediction once. Predictions that a rule will not report
    the same problem again are omitted."""
    shown = (p for p in spec.predictions if not isinstance(p.expects, Settled))
    return tuple(dict.fromkeys(describe_prediction(p, spec.objective) for p in shown))


def _true_predictions_text(outcomes: Sequence[Outcome]) -> str:
    """Return a count of the predictions that came true: `2 of 3 came true (not: RULE), 1 undecided (RULE)`."""
    by_judgement = {j: [o.prediction.rule for o in outcomes if o.judged == j] for j in JUDGEMENTS}
    true, false, unknown = by_judgement.values()
    parts = []
    if true or false:
        wrong = f" (not: {listed(false)})" if false else ""
        parts.append(f"{len(true)} of {len(true) + len(false)} came true{wrong}")
    if unknown:
        parts.append(f"{len(unknown)} undecided ({listed(unknown)})")
    return ", ".join(parts)


def hit_rate_text(rate: HitRate) -> str:
    """Return a rule's share of correct predictions: `RULE: 3 of 4 came true (75 %, predicted 91 %); 1 undecided`."""
    judged = rate.kept + rate.not_kept
    parts = []
    if judged and rate.rate is not None:
        stated = f", predicted {Percent(rate.stated)}" if rate.stated is not None else ""
        parts.append(f"{rate.kept} of {judged} came true ({Percent(rate.rate)}{stated})")
    if rate.cannot_tell:
        parts.append(f"{rate.cannot_tell} undecided")
    return f"{rate.rule}: {'; '.join(parts)}"


def row(round: Round) -> tuple[str, str, str, str, str]:
    """Return the table row of a round: (number, study, trials, best, best so far)."""
    failed = f", {round.trials - round.feasible:,} without a result" if round.feasible < round.trials else ""
    counted = f"; {round.counted:,} count as data of this study" if round.counted else ""
    trials = f"{round.trials:,}{failed}{counted}"
    return str(round.number), round.study, trials, number(round.best), number(round.incumbent)
