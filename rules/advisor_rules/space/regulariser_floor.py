from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.computed.space import settings
from advisor.engine.rule import Rule, Share
from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, SetRange
from advisor.model.evidence import axis_plot, table
from advisor.model.finding import Finding, MissingData, require_searched_hyperparameters
from advisor.model.message import Count, Name, Probability, Setting, say
from advisor.model.space import AxisScale
from advisor.model.spec import Parameter
from advisor.model.study import Study
from advisor.stats import ranks
from advisor_rules.space import _regularisers

_MIN_SETTINGS = 10
"""Minimum number of settings with a result to test whether high values improve results; with 10, a strong trend (rank
correlation 0.6) is significant."""


class RegulariserFloor(Rule):
    """A regulariser is searched only over strong values, so no trial runs without regularisation.

    ## What it looks at
    The rule reads the low end of the range of each searched regulariser: dropout, label smoothing, weight decay. The rule fires
    if even the lowest value is strong, unless results within the range are clearly worse with less regularisation.

    ## Why it matters
    A study that never tries weak or no regularisation cannot show if the regulariser helps at all, and too strong a regulariser
    may harm every trial.

    ## What to do
    Start the range at 0. A log scale has no 0: start the range at a value without effect, and compare the results with a study
    without the regulariser.

    ## How sure
    A dropout rate of 0.3 or a weight decay of 0.3 (0.01 if all trials are known to use SGD) is strong by usual practice; these
    limits are our choice. The rule also needs 10 settings with a result, and is quiet if results get better towards the high
    end (Spearman's rank correlation, one-sided). If the range was not declared, the finding is a note.
    """

    playbook = "Identifying scientific, nuisance, and fixed hyperparameters"
    goal = "boundary"
    strong: Share = _regularisers.MIN_STRONG_DROPOUT
    """Minimum share of dropped units or smoothed labels at the low end of a linear range at which the regularisation counts as
    strong."""
    strong_decay: Share = _regularisers.MIN_STRONG_WEIGHT_DECAY
    """Minimum weight decay or penalty at the low end of a range that counts as strong, unless all trials use SGD."""
    strong_decay_sgd: Share = _regularisers.MIN_STRONG_SGD_DECAY
    """Minimum weight decay or penalty at the low end of a range that counts as strong if all trials are known to use SGD."""
    false_alarms: Share = 0.05
    """Maximum p-value at which an improvement towards the high end shows that strong regularisation helps."""

    def check(self, study: Study) -> Iterator[Finding]:
        require_searched_hyperparameters(study)
        if not any(map(parameter_kinds.is_regulariser, study.searched)):
            raise MissingData("no hyperparameter that regularises was varied", needs="design")
        decay = _regularisers.strong_decay(study, self.strong_decay, self.strong_decay_sgd)
        strong = {n: p for n, p in study.searched.items() if _regularisers.has_only_strong_values(n, p, self.strong, decay)}
        count = settings.read_settings(study).result_count if strong else 0
        if strong and count < _MIN_SETTINGS:
            raise MissingData(
                f"{count} settings have a result; to test whether high values of {next(iter(strong))} help needs {_MIN_SETTINGS}",
                needs="trials",
                at_least=_MIN_SETTINGS,
            )
        for name, parameter in strong.items():
            trials = [t for t in study.ranked() if name in t.params]
            positions, costs = study.positions(name, trials), study.costs[[t.index for t in trials]]
            is_finite = np.isfinite(positions)
            p = ranks.p_value_of_fall(positions[is_finite], costs[is_finite])
            if p > self.false_alarms:
                yield self._build_finding(study, name, parameter, p, count)

    def _build_finding(self, study: Study, name: str, parameter: Parameter, p: float, count: int) -> Finding:
        (low, high), floor = _regularisers.lowest_and_highest(parameter), _regularisers.weakest_searchable_value(parameter)
        names: dict[str, Name | float] = {"name": Name(name), "low": low}
        why = say("{name} is searched only from {low} upwards, so no trial shows its benefit.", **names)
        text = "{why} {count} do not show whether high values help (p = {p})."
        off_text = ", which switches it off" if floor == 0 else ""
        changes: list[Change] = []
        if floor < low:
            scale: AxisScale = "log" if floor > 0 else "linear"
            changes.append(SetRange(parameter=name, low=floor, high=high, scale=scale, why=str(why)))
            if floor > 0:
                advice = "Compare the best {name} with a study without it, which is tuned equally well."
                changes.append(Advise(text=str(say(advice, name=Name(name)))))
        lines = {"lowest value searched": low}
        return self.finding(
            say(text, why=why, count=Count(count, "setting"), p=Probability(p)),
            action=say(f"Start the range of {{name}} at {{floor}}{off_text}.", name=Name(name), floor=floor),
            severity="warning" if floor == 0 and name not in study.inferred else "note",
            # One half, because no trial was run with weak regularisation.
            confidence=0.5,
            subject=name,
            side="low",
            evidence=(
                axis_plot(name, say("No trial has a {name} below {low}.", **names), lines=lines, span=(floor, high)),
                table(
                    ("range", say("{low} to {high}", low=Setting(low), high=Setting(high))),
                    ("probability by chance that results improve as much towards high values", Probability(p)),
                ),
            ),
            changes=changes,
        )
