from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.batch import batches, throughput
from advisor.computed.space import settings
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model import parameter_kinds
from advisor.model.change import AddParameter, Advise, Change, FixParameter, SetRange
from advisor.model.evidence import axis_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.learning_rate import peak_learning_rate
from advisor.model.message import Count as CountOf, MessagePart, Name, Setting, say
from advisor.model.prediction import round_significant
from advisor.model.space import MAX_FINITE_VALUE, FloatArray, IntArray, as_number, is_learning_rate
from advisor.model.spec import Parameter
from advisor.model.study import Study
from advisor.model.words import setting

THROUGHPUT_ADVICE = " Tuned batch sizes differ in speed, not in results, so choose the final one by throughput."


class SpaceTunedBatch(Rule):
    """Batch sizes are compared by their results, although the learning rate was not tuned for each of them.

    ## What it looks at
    The rule counts the learning rates tried with each batch size or, if there are many batch sizes, within each doubling. If
    the learning rate is not a hyperparameter, the rule counts settings of other optimizer hyperparameters, such as momentum and
    betas. Learning rates that follow from the batch size by a formula count as one learning rate.

    ## Why it matters
    The best learning rate, momentum and regularisation depend on the batch size. If these hyperparameters are fixed, the batch
    size that they suit wins. If these hyperparameters are tuned for each batch size, results hardly depend on the batch size,
    but training speed does.

    ## What to do
    Choose the batch size by throughput: use the largest one that still processes 10 % more examples per second than a smaller
    one, as in the rule `batch-throughput`. Until you have measured the throughput, use the largest batch size among the best
    trials or, if all trials trained for equally many epochs, that of the best trial. To compare batch sizes, tune the optimizer
    and the regularisation in a separate study for each size, with equally many steps. With equally many epochs, a larger batch
    takes fewer steps, so the comparison shows at most that the larger batch needs no more examples.

    ## How sure
    The rule only counts and estimates nothing. Confidence is the share of the batch sizes with too few learning rates.
    """

    playbook = "Why shouldn't the batch size be tuned to directly improve validation set performance?"
    goal = "sampling"
    explains = Relation(
        rules=("space-boundary", "space-insensitive", "space-interaction"),
        shares="subject",
        because="Batch sizes were compared at learning rates that suit some of them better than others.",
    )

    settings: Count = 3
    """Minimum number of learning rates for a tuned batch size; an optimum needs a worse value on each side."""
    values: Count = 8
    """Maximum number of batch sizes that are counted one by one; more batch sizes are grouped by doublings."""
    material: Share = throughput.MIN_THROUGHPUT_GAIN
    """Minimum relative gain in throughput that makes a larger batch worthwhile; the same limit as in `batch-throughput`."""
    false_alarms: Share = throughput.SIGNIFICANCE_LEVEL
    """Maximum probability of mistaking noise for a higher throughput."""

    def check(self, study: Study) -> Iterator[Finding]:
        return settings.require_two_settings_unless(self._findings(study), study)

    def _findings(self, study: Study) -> Iterator[Finding]:
        names = [name for name in study.spec.parameters if parameter_kinds.is_batch_size(name)]
        if not names and not any(math.isfinite(parameter_kinds.batch_size(t)) for t in study.trials):
            raise MissingData("no trial logged its batch size; log batch_size", needs="facts")
        for name in names:
            sizes = np.array([as_number(t.params.get(name)) for t in study.trials])
            sizes[~study.ended | ~(sizes > 0)] = np.nan
            values = np.unique(sizes[np.isfinite(sizes)])
            if len(values) > 1:
                groups = sizes if len(values) <= self.values else np.floor(np.log2(sizes))
                rate_counts = _count_optimizer_settings(study, groups, sizes)
                if np.median(rate_counts) < self.settings:
                    yield self._build_finding(study, name, sizes, values, rate_counts)

    def _build_finding(self, study: Study, name: str, sizes: FloatArray, values: FloatArray, rate_counts: IntArray) -> Finding:
        size, reason, fastest = self._choose_batch_size(study, name, float(values[-1]))
        low, high = max(int(rate_counts.min()), 1), max(int(rate_counts.max()), 1)
        rates: MessagePart = CountOf(low, "learning rate")
        if low < high:
            rates = say("{low} to {high} learning rates", low=low, high=high)
        each_text = "each" if len(values) <= self.values else "for each doubling"
        first, last = (Setting(float(x)) for x in values[[0, -1]])
        text = f"{{count}} values of {{name}} ({{low}} to {{high}}) were compared with {{rates}} {each_text}."
        statement = say(text, count=len(values), name=Name(name), low=first, high=last, rates=rates)
        why = f"{statement} We fix {setting(size)}, {reason}"
        changes: list[Change] = [FixParameter(parameter=name, value=int(size) if size.is_integer() else size, why=why)]
        if not fastest:
            changes.append(Advise(text="Log the throughput (examples per second) and choose the batch size by it."))
        text = "{compared} With fewer than {enough} rates, a batch size may win only because the tried rates happen to suit it."
        action = f"Fix {{name}} at {{size}}, {reason}, and tune the learning rate for it.{'' if fastest else THROUGHPUT_ADVICE}"
        return self.finding(
            say(text, compared=statement, enough=self.settings),
            action=say(action, name=Name(name), size=Setting(size)),
            severity="warning",
            confidence=float(np.mean(rate_counts < self.settings)),
            subject=name,
            trials=[t for t in study.trials if math.isfinite(sizes[t.index])],
            evidence=(
                axis_plot(name, say("Each batch size was tried with {rates}.", rates=rates)),
                table(
                    ("learning rates per batch size", ", ".join(map(str, rate_counts[:20]))),
                    ("minimum number of learning rates for a tuned batch size", self.settings),
                ),
            ),
            changes=(*changes, *_search_learning_rate(study, name)),
        )

    def _choose_batch_size(self, study: Study, name: str, largest: float) -> tuple[float, str, bool]:
        """Return (batch size to fix, reason as a phrase that follows it, whether throughput decides)."""
        fastest = throughput.recommended_batch_size(study, name, self.material, self.false_alarms)
        good, reason_by_results = batches.batch_size_by_results(study, name)
        size = batches.usable_batch_size(study, name, fastest or good or largest)
        reason = "beyond which the throughput hardly grows" if size < largest else "the one with the highest throughput"
        if fastest is None:
            reason = f"{'' if size == good else 'the power of two next to '}{reason_by_results}"
        return size, reason, bool(fastest)


def _count_optimizer_settings(study: Study, groups: FloatArray, sizes: FloatArray) -> IntArray:
    rates = [n for n in study.spec.parameters if is_learning_rate(n)]
    names = rates or [n for n in study.searched if parameter_kinds.belongs_to_optimizer(n)]
    rows = np.array([[as_number(t.params.get(n)) for n in names] for t in study.trials]).reshape(len(sizes), -1)
    for column in rows.T:
        ratios = [(column / sizes**power)[np.isfinite(column / sizes)] for power in (0.5, 1.0)]
        if any(len(x) > 1 and np.ptp(x) <= 0.01 * abs(x).max() for x in ratios):
            column[:] = 0.0  # The value follows from the batch size.
    group_rows = [np.nan_to_num(rows[groups == g]) for g in np.unique(groups[np.isfinite(groups)])]
    return np.array([len({tuple(row) for row in part}) for part in group_rows])


def _search_learning_rate(study: Study, name: str) -> list[Change]:
    why = f"The learning rate was never tuned for one value of {name}"
    rates = {n: p for n, p in study.spec.parameters.items() if is_learning_rate(n)}
    for rate, parameter in rates.items():
        value = as_number(parameter.value)
        if parameter.role == "fixed" and value > 0:
            return [SetRange(parameter=rate, low=value / 10, high=value * 10, scale="log", why=why)]
    if rates or not (best := study.ranked()[:1]):
        return []
    used_rate = peak_learning_rate(study, best[0])
    if not math.isfinite(used_rate):
        used_rate = float(study.curve(best[0], "learning_rate").finite.values.max(initial=-math.inf))
    if not 0 < used_rate < MAX_FINITE_VALUE:
        return []
    low, high = round_significant(used_rate / 10, 3), round_significant(used_rate * 10, 3)
    new_parameter = Parameter(type="float", low=low, high=high, scale="log", why=why)
    return [AddParameter(name="learning_rate", parameter=new_parameter)]
