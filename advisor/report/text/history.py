"""Sentences and table rows on the rounds of a study, for the report and for `advisor history`."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.history.model import History, HitRate, Outcome, Round
from advisor.model.message import Percent
from advisor.model.prediction import Settled, describe_prediction
from advisor.model.spec import StudySpec
from advisor.model.words import count, listed, number
from advisor.report.model import ReportData

JUDGEMENT_ICONS = {"kept": "passed", "not kept": "broken", "cannot tell": "unknown"}

JUDGEMENTS = {"kept": "came true", "not kept": "did not come true", "cannot tell": "undecided"}


def round_summary(history: History) -> tuple[str, ...]:
    latest_round = history.rounds[-1]
    sentences = []
    if len(history.rounds) > 1 or history.counted:
        earlier_trials_clause = f", and {history.counted:,} from earlier rounds in this search space" if history.counted else ""
        sentences.append(f"Round {latest_round.number}: {count(latest_round.trials, 'trial')}{earlier_trials_clause}.")
    if latest_round.outcomes:
        sentences.append(f"Predictions for this round: {_true_predictions_text(latest_round.outcomes)}.")
    return (*sentences, *((history.stop,) if history.stop else ()))


def round_lines(report: ReportData) -> tuple[str, ...]:
    """Return sentences about the latest round, and about earlier advice of the rules with current findings."""
    return (*(round_summary(report.history) if report.history is not None else ()), *advice_track_record(report))


def advice_track_record(report: ReportData) -> tuple[str, ...]:
    """Return a sentence for each rule with a current finding: how often its advice improved the best result in this store."""
    rules_with_findings = dict.fromkeys(f.rule for f in report.heads if f.severity != "note" and f.changes)
    sentences = []
    for r in (r for r in report.advice if r.rule in rules_with_findings):
        success_text = "; the best result never improved."
        if r.median_gain is not None:
            success_text = f". The best result improved {r.gained} of {r.followed} times; "
            success_text += f"the median improvement was {Percent(r.median_gain)}."
        sentences.append(f"Advice of {r.rule} was followed {r.followed} times in this store{success_text}")
    return tuple(sentences)


def study_predictions(spec: StudySpec) -> tuple[str, ...]:
    """Return the predictions about the results of a next study, each once. Predictions that a problem disappears are omitted."""
    result_predictions = (p for p in spec.predictions if not isinstance(p.expects, Settled))
    return tuple(dict.fromkeys(describe_prediction(p, spec.objective) for p in result_predictions))


def _true_predictions_text(outcomes: Sequence[Outcome]) -> str:
    """Return the number of predictions that came true: `2 of 3 came true (not: RULE), 1 undecided (RULE)`."""
    true, false, unknown = {j: [o.prediction.rule for o in outcomes if o.judged == j] for j in JUDGEMENTS}.values()
    count_texts = []
    if true or false:
        wrong_text = f" (not: {listed(false)})" if false else ""
        count_texts.append(f"{len(true)} of {len(true) + len(false)} came true{wrong_text}")
    if unknown:
        count_texts.append(f"{len(unknown)} undecided ({listed(unknown)})")
    return ", ".join(count_texts)


def hit_rate_text(rate: HitRate) -> str:
    """Return a rule's share of correct predictions: `RULE: 3 of 4 came true (75 %, predicted 91 %); 1 undecided`."""
    judged_count = rate.kept + rate.not_kept
    outcome_texts = []
    if judged_count and rate.rate is not None:
        predicted_text = f", predicted {Percent(rate.stated)}" if rate.stated is not None else ""
        outcome_texts.append(f"{rate.kept} of {judged_count} came true ({Percent(rate.rate)}{predicted_text})")
    if rate.cannot_tell:
        outcome_texts.append(f"{rate.cannot_tell} undecided")
    return f"{rate.rule}: {'; '.join(outcome_texts)}"


def row(round: Round) -> tuple[str, str, str, str, str]:
    """Return the table row of a round: (number, study, trials, best, best so far)."""
    failed_text = f", {round.trials - round.feasible:,} without a result" if round.feasible < round.trials else ""
    counted_text = f"; {round.counted:,} count as data of this study" if round.counted else ""
    trials = f"{round.trials:,}{failed_text}{counted_text}"
    return str(round.number), round.study, trials, number(round.best), number(round.incumbent)
