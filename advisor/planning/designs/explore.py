"""The design `explore`: more trials in the same space, if too few show whether the optimum lies inside it.

Playbook: "Exploration vs exploitation", "Identifying bad search space boundaries".

*When.* No rule asks for a change, but the best trial lies close to the end of a range, and there are too few settings to see
whether results improve towards that end: fewer than twice the number of coefficients of a quadratic response. Repeating the best
trial would then measure a setting that may not be the one to keep.

*What.* The same study with further trials, at most as many as it had. The trials so far count as its data.
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
    """Return the study with more trials; None if it has enough, or if the best one lies inside every range."""
    # Without a rule that looks for improvement towards an end, there is nothing to explore for.
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
