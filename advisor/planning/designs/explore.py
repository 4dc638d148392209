"""The design `explore`: more trials in the same space, if it is unclear whether the optimum lies inside it.

Playbook: "Exploration vs exploitation", "Identifying bad search space boundaries".

*When.* No rule recommends a change, but the best trial is close to the end of a range, and too few settings were tried to
show whether results improve towards that end: fewer than twice the number of coefficients of a quadratic response. Repeating
the best trial instead would measure a setting that may soon be replaced.

*What.* The same study with more trials, at most doubling their number. The existing trials count as its data.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import comb

from advisor.computed.space import settings
from advisor.engine.rule import Rule
from advisor.model.finding import Verdict
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning.designs.exploit import inside

SETTINGS_PER_COEFFICIENT = 2


def explore(study: Study, verdicts: Iterable[Verdict], rules: Iterable[Rule], base: StudySpec) -> StudySpec | None:
    """Return the study with more trials; None if it has enough trials or the best trial lies inside every range."""
    # If no rule checks for improvement towards the end of a range, more trials would show nothing.
    edge_rules = {rule.rule_id() for rule in rules if rule.predicts == "best-beyond"}
    looked = any(v.rule in edge_rules and v.status != "fired" for v in verdicts)
    if not looked or study.spec.sampler.kind == "adaptive" or study.probe is not None or not study.ranked():
        return None
    if inside(study):
        return None
    tried, searched = len(settings.read(study)), len(base.searched)
    missing = SETTINGS_PER_COEFFICIENT * comb(searched + 2, 2) - tried
    if missing <= 0 or not searched:
        return None
    trials = min(missing, tried)
    return base.model_copy(update={"goal": f"Search the right space: {trials} more trials", "trials": trials})
