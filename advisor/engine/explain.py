"""One cause, one headline: which finding explains which other. `CAUSES` is the whole of it; `explain` applies it to verdicts.

A finding explains another where a line of `CAUSES` says so for their rules, where the two are about the same thing as that line
demands, and where the cause is at least as grave as what it explains and surer than not: nothing grave hides below a doubtful note.
A finding that is explained still fired, and says so; it is shown below its cause, and what it asks for waits if the line says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeAlias, get_args

from advisor.model.errors import AdvisorError
from advisor.model.finding import Explanation, Finding, Severity, Verdict
from advisor.model.space import is_learning_rate

Shared = Literal["study", "trials", "a trial", "subject", "end", "rates", "low rates", "high rates"]
"""What cause and effect must have in common:

study: nothing, as the cause holds of the whole study · trials: at least half of the trials that show the effect show the cause · a
trial: one does · subject: the same hyperparameter or metric, for a pair one of the two · end: the same subject and the same side of
it · rates: nothing, but the effect is about a learning rate · low rates: nothing, but the cause is about the low end of a learning
rate, high rates: about its high end.
"""

Place = Literal["somewhere", "everywhere"]
"""Whether a finding has a place in the search space, which is its subject."""

LEAST_CONFIDENCE = 0.5
"""A finding less sure than this explains nothing."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Findings of one rule that explain findings of others."""

    rule: str
    explains: tuple[str, ...]
    """Ids of the rules whose findings follow."""
    shared: Shared
    because: str
    """How they follow, one sentence that a reader finds below the finding that is explained."""
    waits: bool = True
    """Whether the effects' own changes wait for the cause: not where they are a part of its cure, or of use whatever comes."""
    at: Place | None = None
    """Only a cause that has, or has not, a place in the space."""
    explains_at: Place | None = None
    """Only effects that have, or have not, a place in the space."""
    least: Severity = "note"
    """Only a cause at least as grave as this."""
    gravest: Severity = "critical"
    """Only effects no graver than this."""


_NO_LIMIT: Severity = "warning"
"""Instability that is critical keeps the best trial from better settings: that is no matter of where the space ends."""

_BLEW_UP: Severity = "warning"
"""That nothing was learned is no more than a warning where the best trial's loss blew up; else it is critical."""

CAUSES: tuple[Cause, ...] = (
    # --- a broken pipeline: what follows is an account of the fault, not of the settings ---
    Cause(
        rule="params-ignored",
        explains=(
            "space-boundary",
            "space-insensitive",
            "space-interaction",
            "space-undersampled",
            "space-shrink",
            "space-scale",
            "space-tuned-batch",
            "unfair-comparison",
            "curve-step-variance",
            "eval-size",
            "adopt",
            "tuning-saturated",
        ),
        shared="study",
        because="The settings of these trials did not reach their training, so trials differ by chance, or not at all.",
        at="everywhere",
    ),
    Cause(
        rule="params-ignored",
        explains=("space-insensitive", "space-boundary", "space-interaction", "space-shrink", "space-scale"),
        shared="subject",
        because="Its values left no trace in any curve: it does not reach the training, or is idle by its nature.",
        at="somewhere",
    ),
    Cause(
        rule="curve-train-loss-rises",
        explains=("curve-step-variance", "curve-saturated"),
        shared="trials",
        because="The training loss itself goes the wrong way in these trials, so their other curves cannot do better.",
    ),
    Cause(
        rule="curve-train-loss-rises",
        explains=("ckpt-best-lost",),
        shared="trials",
        because="The best step is not the last one because training goes wrong after it.",
        waits=False,
    ),
    Cause(
        rule="curve-worse-than-chance",
        explains=(
            "space-boundary",
            "space-insensitive",
            "space-interaction",
            "space-undersampled",
            "space-shrink",
            "space-scale",
            "unfair-comparison",
            "curve-overfitting",
            "curve-saturated",
            "curve-still-improving",
            "curve-step-variance",
            "step-position",
            "steps-compute-bound",
            "schedule-constant",
            "decay-too-low",
            "ckpt-best-lost",
            "eval-size",
            "adopt",
            "tuning-saturated",
        ),
        shared="study",
        because="No trial learned anything to speak of, so how trials differ, and how their curves run, is chance.",
    ),
    Cause(
        rule="curve-worse-than-chance",
        explains=("curve-train-loss-rises",),
        shared="trials",
        because="The trial learned nothing, and this is part of the same fault.",
    ),
    Cause(
        rule="curve-worse-than-chance",
        explains=("stability-early", "stability-mid"),
        shared="study",
        because="No trial learned anything to speak of, the stable ones neither.",
        least="critical",
    ),
    Cause(
        rule="curve-worse-than-chance",
        explains=("space-infeasible",),
        shared="study",
        because="Trials fail wherever in the space they lie, and none of the others learned anything to speak of.",
        explains_at="everywhere",
    ),
    Cause(
        rule="curve-periodic",
        explains=("curve-step-variance", "stability-mid", "stability-spikes"),
        shared="trials",
        because="The ups and downs come back with the period of the data.",
    ),
    Cause(
        rule="curve-periodic",
        explains=("ckpt-best-lost",),
        shared="trials",
        because="The curve goes up and down with the data, and the last step is not one of the good ones.",
        waits=False,
    ),
    Cause(
        rule="eval-sample-skew",
        explains=("eval-size", "curve-step-variance"),
        shared="study",
        because="The sample that the evaluations take is at fault, and it is to be replaced.",
    ),
    # --- instability: what it forbids, what it spoils, and what may lie behind it ---
    Cause(
        rule="stability-edge",
        explains=("space-boundary-infeasible", "space-infeasible", "space-boundary"),
        shared="end",
        because="Instability draws this line in the space: once training is stable, it lies elsewhere.",
    ),
    Cause(
        rule="stability-edge",
        explains=("stability-early", "stability-mid", "stability-spikes"),
        shared="trials",
        because="These are the trials that draw the line; this is how they fail.",
        waits=False,
    ),
    Cause(
        rule="space-infeasible",
        explains=("stability-early", "stability-mid", "stability-spikes"),
        shared="trials",
        because="These trials lie where the space is to be cut off; this is how they fail.",
        at="somewhere",
        gravest=_NO_LIMIT,
    ),
    Cause(
        rule="space-infeasible",
        explains=("stability-early", "stability-mid", "stability-spikes"),
        shared="high rates",
        because="Learning rates up there are too high to train at, where they are to be cut off and a little below.",
        at="somewhere",
        gravest=_NO_LIMIT,
    ),
    Cause(
        rule="space-boundary",
        explains=("stability-early", "stability-mid", "stability-spikes"),
        shared="low rates",
        because="Lower learning rates are better than these trials' all the same, so that instability forbids nothing.",
        gravest=_NO_LIMIT,
    ),
    Cause(
        rule="space-infeasible",
        explains=("space-boundary-infeasible",),
        shared="end",
        because="The best trial lies next to the failures that are counted there.",
        waits=False,
    ),
    Cause(
        rule="stability-early",
        explains=("space-infeasible",),
        shared="trials",
        because="The trials failed because their training blew up at its start, wherever in the space they lie.",
        explains_at="everywhere",
    ),
    Cause(
        rule="stability-mid",
        explains=("space-infeasible",),
        shared="trials",
        because="The trials failed because their training blew up, wherever in the space they lie.",
        explains_at="everywhere",
    ),
    Cause(
        rule="stability-early",
        explains=("stability-mid", "stability-spikes", "clip-insufficient", "residual-norm"),
        shared="a trial",
        because="Training is unstable from its start on; this says more about it.",
        waits=False,
    ),
    Cause(
        rule="stability-mid",
        explains=("stability-spikes", "clip-insufficient", "residual-norm"),
        shared="a trial",
        because="Training becomes unstable; this says more about it.",
        waits=False,
    ),
    Cause(
        rule="stability-early",
        explains=("curve-worse-than-chance",),
        shared="trials",
        because="The best trial is unstable from its start on, which keeps it from learning.",
        least="critical",
        gravest=_BLEW_UP,
    ),
    Cause(
        rule="stability-early",
        explains=("curve-overfitting", "curve-step-variance"),
        shared="trials",
        because="These trials blew up at their start, and what came after it shows that.",
    ),
    Cause(
        rule="stability-mid",
        explains=("curve-worse-than-chance",),
        shared="trials",
        because="The loss of the best trial jumped up in mid training, and what it had learned is gone.",
        least="critical",
        gravest=_BLEW_UP,
    ),
    Cause(
        rule="stability-mid",
        explains=("curve-overfitting", "curve-step-variance", "step-position", "adopt"),
        shared="trials",
        because="The loss of these trials jumped up in mid training, and what came after it shows the jump.",
    ),
    Cause(
        rule="stability-mid",
        explains=("ckpt-best-lost",),
        shared="trials",
        because="The loss jumped up after the best step.",
        waits=False,
    ),
    Cause(
        rule="clip-aggressive",
        explains=("space-insensitive", "space-boundary"),
        shared="rates",
        because="Where most updates are clipped, the clipping sets their length, and a higher learning rate changes little.",
    ),
    Cause(
        rule="space-boundary",
        explains=("curve-train-loss-rises",),
        shared="low rates",
        because="The best learning rates are the lowest that were tried, and at one that is too high the training loss may rise.",
    ),
    Cause(
        rule="space-boundary",
        explains=("space-shrink",),
        shared="subject",
        because="The good trials lie together at the end where the range is to be widened.",
        waits=False,
    ),
    Cause(
        rule="space-infeasible",
        explains=("space-boundary", "space-shrink"),
        shared="subject",
        because="Trials fail in a part of the same range, so that it is to be moved.",
        waits=False,
        at="somewhere",
    ),
    Cause(
        rule="space-boundary",
        explains=("space-undersampled",),
        shared="study",
        because="The best settings lie at an end of what was searched, where there are few trials.",
    ),
    Cause(
        rule="space-boundary",
        explains=("space-insensitive",),
        shared="study",
        because="The best settings lie at an end of what was searched, and what matters beyond it is not known.",
    ),
    Cause(
        rule="space-undersampled",
        explains=("space-insensitive",),
        shared="study",
        because="Too few trials lie in the good region to show what matters there.",
    ),
    Cause(
        rule="space-shrink",
        explains=("space-insensitive",),
        shared="subject",
        because="Good trials lie in a part of its range only; most others differ little, so that it seems to do nothing.",
    ),
    Cause(
        rule="space-shrink",
        explains=("space-undersampled",),
        shared="study",
        because="The good region is a small part of what was searched: of as many trials in narrower ranges, more lie in it.",
    ),
    Cause(
        rule="space-infeasible",
        explains=("space-undersampled",),
        shared="study",
        because="Trials that fail are missing elsewhere.",
        at="somewhere",
        waits=False,
    ),
    # --- how the study was set up ---
    Cause(
        rule="unfair-comparison",
        explains=("space-insensitive", "space-interaction"),
        shared="subject",
        because="Its values were not tuned equally well, so what it does is not known yet.",
    ),
    Cause(
        rule="space-tuned-batch",
        explains=("space-boundary", "space-insensitive", "space-interaction"),
        shared="subject",
        because="Batch sizes were compared at learning rates that suit some of them better than others.",
    ),
    Cause(
        rule="space-scale",
        explains=("space-boundary", "space-shrink", "space-insensitive"),
        shared="subject",
        because="On the scale that was searched, what matters is crammed at one end of the range.",
    ),
    Cause(
        rule="space-interaction",
        explains=("space-insensitive",),
        shared="subject",
        because="What it does depends on the other hyperparameter, so it does little only on average over that one.",
    ),
    # --- the length of the training ---
    Cause(
        rule="decay-too-low",
        explains=("curve-saturated", "step-position", "steps-compute-bound"),
        shared="trials",
        because="The curve is flat because the learning rate is next to nothing there.",
    ),
    Cause(
        rule="curve-still-improving",
        explains=("steps-compute-bound",),
        shared="trials",
        because="That the curves still fall at their end is what shows it.",
        waits=False,
    ),
    Cause(
        rule="curve-still-improving",
        explains=("step-position", "tuning-saturated"),
        shared="study",
        because="The trials end before they are done.",
    ),
    Cause(
        rule="curve-still-improving",
        explains=("space-undersampled",),
        shared="study",
        because="The trials end before they are done: the best of them is the fastest, which need not be the best in the end.",
    ),
    Cause(
        rule="curve-saturated",
        explains=("steps-compute-bound",),
        shared="trials",
        because="That the curves are flat long before their end is what shows it.",
        waits=False,
    ),
    Cause(
        rule="curve-saturated",
        explains=("step-position",),
        shared="study",
        because="Where a curve is flat, small ups and downs decide which of its steps is best.",
    ),
    # --- overfitting, noise and luck ---
    Cause(
        rule="curve-best-is-regularised-by-accident",
        explains=("space-boundary",),
        shared="end",
        because="So low a learning rate is best only because it takes the place of a regulariser.",
    ),
    Cause(
        rule="curve-best-is-regularised-by-accident",
        explains=("curve-overfitting",),
        shared="study",
        because="These are the trials that it wins against.",
    ),
    Cause(
        rule="curve-overfitting",
        explains=("ckpt-best-lost",),
        shared="trials",
        because="The last step is worse than the best one because the trial overfits after it.",
        waits=False,
    ),
    Cause(
        rule="schedule-constant",
        explains=("curve-step-variance",),
        shared="study",
        because="A learning rate that never decays keeps the weights moving to the end.",
    ),
    Cause(
        rule="eval-size",
        explains=("curve-step-variance", "adopt", "tuning-saturated"),
        shared="study",
        because="With so few validation examples, trials that differ look alike.",
    ),
    Cause(
        rule="tuning-saturated",
        explains=("adopt",),
        shared="study",
        because="Many settings are as good as the best one, so none of them leads.",
    ),
    # --- the machine ---
    Cause(
        rule="batch-steps",
        explains=("batch-throughput",),
        shared="study",
        because="The batch size is chosen by the time to the target, and larger ones are done later, however fast.",
        least="warning",
    ),
    Cause(
        rule="batch-throughput",
        explains=("batch-steps",),
        shared="study",
        because="The batch size is chosen by training time; more examples are the price of being done sooner.",
        gravest="note",
    ),
    Cause(
        rule="input-bound",
        explains=("host-sync", "gpu-underused", "batch-throughput"),
        shared="study",
        because="The device waits for its data.",
    ),
    Cause(
        rule="host-sync",
        explains=("gpu-underused", "batch-throughput"),
        shared="study",
        because="The device waits for the training loop.",
    ),
)


def explain(verdicts: Iterable[Verdict], causes: Sequence[Cause] = CAUSES) -> tuple[Verdict, ...]:
    """The verdicts with `explained_by` set on every finding that follows from another one; the first line that fits counts."""
    given = tuple(verdicts)
    by_rule: dict[str, list[Finding]] = {}
    for finding in (f for v in given for f in v.findings):
        by_rule.setdefault(finding.rule, []).append(finding)

    def explained(effect: Finding) -> Finding:
        for line in causes:
            if effect.rule in line.explains:
                for cause in by_rule.get(line.rule, ()):
                    if follows(effect, cause, line):
                        said = Explanation(
                            rule=cause.rule,
                            subject=cause.subject,
                            side=cause.side,
                            because=line.because,
                            waits=line.waits,
                        )
                        return effect.model_copy(update={"explained_by": said})
        return effect

    return tuple(
        v.model_copy(update={"findings": tuple(map(explained, v.findings))}) if v.findings else v for v in given
    )


def follows(effect: Finding, cause: Finding, line: Cause) -> bool:
    """Whether the effect follows from the cause, by this line."""
    if cause.confidence < LEAST_CONFIDENCE or not _may(cause.severity, effect.severity, line):
        return False
    placed = all(
        place is None or (place == "somewhere") == (finding.subject is not None)
        for place, finding in ((line.at, cause), (line.explains_at, effect))
    )
    return placed and _share(effect, cause, line.shared)


def _may(cause: Severity, effect: Severity, line: Cause) -> bool:
    """Whether a cause of this severity may explain an effect of that one, by this line."""
    order = get_args(Severity)  # the gravest first
    explains = max(order.index(cause), order.index(line.gravest)) <= order.index(effect)
    return explains and order.index(cause) <= order.index(line.least)


def cause_of(effect: Finding, findings: Iterable[Finding]) -> Finding | None:
    """The finding that explains this one, among `findings`; None where none does."""
    said = effect.explained_by
    if said is None:
        return None
    named = (said.rule, said.subject, said.side)
    return next((f for f in findings if (f.rule, f.subject, f.side) == named), None)


def first_cause(finding: Finding, findings: Sequence[Finding]) -> Finding:
    """The finding at the head of the chain of explanations: the finding itself where nothing explains it."""
    while (cause := cause_of(finding, findings)) is not None:
        finding = cause
    return finding


# --- what two findings share ----------------------------------------------------------------------------------------------------


def _share(effect: Finding, cause: Finding, what: Shared) -> bool:
    if what == "trials":
        both = set(effect.trials) & set(cause.trials)
        return bool(both) and 2 * len(both) >= len(set(effect.trials))
    if what == "a trial":
        return bool(set(effect.trials) & set(cause.trials))
    if what == "subject":
        return _one_subject(effect, cause)
    if what == "end":
        return _one_subject(effect, cause) and effect.side == cause.side
    if what == "rates":
        return is_learning_rate(effect.subject or "")
    if what in ("low rates", "high rates"):
        return is_learning_rate(cause.subject or "") and cause.side == what.partition(" ")[0]
    return True


def _one_subject(effect: Finding, cause: Finding) -> bool:
    if effect.subject is None or cause.subject is None:
        return False
    return bool(set(effect.subject.split(" × ")) & set(cause.subject.split(" × ")))


# --- the table itself -----------------------------------------------------------------------------------------------------------


def check(causes: Iterable[Cause], rules: Iterable[str]) -> None:
    """Refuses a table that names an unknown rule, or in which something explains itself by way of others: AdvisorError."""
    lines, known = tuple(causes), set(rules)
    for line in lines:
        for rule in (line.rule, *line.explains):
            if rule not in known:
                raise AdvisorError(f"the table of causes names the rule {rule!r}, which does not exist")
    follow: dict[_Kind, set[_Kind]] = {}
    for line in lines:
        for at, of in product(_places(line.at), get_args(Severity)):
            ends = {
                (rule, place, severity)
                for rule in line.explains
                for place, severity in product(_places(line.explains_at), get_args(Severity))
                if _may(of, severity, line)
            }
            follow.setdefault((line.rule, at, of), set()).update(ends)
    for start in follow:
        reached, new = set[_Kind](), {start}
        while new:
            new = {end for at in new for end in follow.get(at, ())} - reached
            reached |= new
        if start in reached:
            raise AdvisorError(f"in the table of causes, {start[0]!r} explains itself by way of other rules")


_Kind: TypeAlias = tuple[str, Place, Severity]
"""What a line of the table can tell apart: findings of a rule, by where they are and how grave."""


def _places(place: Place | None) -> tuple[Place, ...]:
    return get_args(Place) if place is None else (place,)
