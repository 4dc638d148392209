"""The plan `explore`: more points of the same space, where too few tell whether the optimum lies inside it.

Playbook: "Exploration vs exploitation", "Identifying bad search space boundaries".

*What calls for it.* No rule asks for a change, yet the best trial lies close to the end of a range, and the study has fewer
settings than it takes to see whether results improve towards that end: twice as many as a quadratic response in all searched
hyperparameters has coefficients. Repeating the best trial would then measure the luck of a setting that is not yet the one to
keep.

*What it does.* The same study with further points: as many as that takes, at most as many again as there were. The trials so far
count as its data.
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

SETTINGS_A_COEFFICIENT = 2


def explore(study: Study, verdicts: Iterable[Verdict], rules: Iterable[Rule], base: StudySpec) -> StudySpec | None:
    """The study again with more points; None where there are enough, or the best lies inside every range with a margin."""
    # Without a rule that tells whether results improve towards an end, there is nothing to explore for.
    edges = {rule.rule_id() for rule in rules if rule.predicts == "best-beyond"}
    looked = any(v.rule in edges and v.status != "fired" for v in verdicts)
    if not looked or study.spec.sampler.kind == "adaptive" or study.probe is not None or not study.ranked():
        return None
    if inside(study):
        return None
    tried, searched = len(settings.read(study)), len(base.searched)
    missing = SETTINGS_A_COEFFICIENT * comb(searched + 2, 2) - tried
    if missing <= 0 or not searched:
        return None
    return base.model_copy(
        update={"goal": f"Search the right space: {min(missing, tried)} more trials", "trials": min(missing, tried)}
    )
