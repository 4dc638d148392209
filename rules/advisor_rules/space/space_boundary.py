from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.curves import noise
from advisor.computed.space import settings
from advisor.computed.space.settings import Settings
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model import parameter_kinds
from advisor.model.change import SetRange
from advisor.model.evidence import axis_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Name, Number, Objective, Percent, Probability, Setting, say
from advisor.model.space import (
    FloatArray,
    IntArray,
    RangeSide,
    as_number,
    is_learning_rate,
    is_training_length,
    scale_of_new_range,
    words_of_name,
)
from advisor.model.study import Study
from advisor.stats import boundaries, ranks
from advisor_rules.space import _extension, _rows

MIN_OUTER_FIFTH_POSITION = 0.8 - 1e-9
MIN_CLUSTERED_TRIALS = 3
"""Minimum number of best trials in a region that show that good trials cluster there; one or two trials may lie there by
chance."""


class SpaceBoundary(Rule):
    """The best trials cluster at one end of the searched range, and results still improve towards this end.

    ## What it looks at
    The rule examines every searched number except the length of training and the beta of preference training, each on its own
    scale. The rule tests two conditions. First, the rule tests if better trials lie nearer to one end of the range than the
    sampled trials in general. Second, the rule tests if the fitted response, which accounts for the other hyperparameters, is
    best at the same end. Each hyperparameter is tested alone and, if several were searched, with a response surface that
    includes interactions. Failed trials count as the worst results. In addition, the successful trials alone must confirm the
    result: they lie significantly towards the same end, or the best value lies at that end with a probability of 90 %. If
    trials fail at an end of the range, see the rule `space-boundary-infeasible`.

    ## Why it matters
    A better value may lie just outside the range. One good trial near an end is weak evidence: chance alone puts the best trial
    into the outer tenth of a range in one of five studies of one hyperparameter, and in two of three studies of five
    hyperparameters.

    ## What to do
    Extend the range, at the end with the best trials, to the expected turning point of the fitted response. On a linear scale,
    the extension is a quarter to half of the range's width; on a log scale, it is half to all of the width and at most a
    decade; a learning rate is extended by at least a factor of 3. Do not cross a hard limit, such as a dropout of 0, and do not
    reach values at which trials failed. Beyond the learning rates that are usual for the optimizer or for fine-tuning, the
    extension is only a factor of 3. If only one hyperparameter is searched, also leave out the other side of its range, far
    from the best trials; otherwise keep the other side. A larger architecture costs more in training and serving, so compare it
    only if a better result is worth the cost. Choose the batch size by throughput. A finding about architecture or batch size
    is only a note.

    ## How sure
    The tests permute positions and correct for the number of ranges and ends; at least five trials are needed. The finding is a
    note if the probability that the best value lies at the end of the range is between 75 % and 90 %, if the corrected
    confidence is below 0.5, or if only the best two trials cluster at the end; but if only one hyperparameter was searched, it
    suffices that the outermost trial leads all others by more than noise. If only one hyperparameter was searched and results
    are visibly best inside its range, the rule is quiet. Confidence is one minus the p-value, times the probability that the
    best value lies at the end, times 0.9 if the range was not declared. In simulations with 5 to 64 trials, the rule fired in 0
    to 5 % of studies if no hyperparameter mattered, in 0 to 10 % if the optimum was at 0.65 of the range, and in up to 30 % if
    the optimum was at 0.8. If the optimum lay 0.1 range widths beyond the end, the new range contained it in all 58 simulated
    studies; at 0.3 range widths, in 80 % of studies. If the optimum lies further out than the new range, the next study extends
    the range again.
    """

    playbook = "Identifying bad search space boundaries"
    goal = "boundary"
    needs_order = True
    needs_learning = True
    probes = frozenset({"learning-rate"})
    predicts = "best-beyond"
    before_exploitation = "quiet"
    explains = (
        Relation(
            rules=("stability-early", "stability-mid", "stability-spikes", "clip-insufficient"),
            shares="low rates",
            because="Learning rates below those of these trials give better results, so this instability excludes no useful value.",
            max_severity="warning",
        ),
        Relation(
            rules=("curve-train-loss-rises",),
            shares="low rates",
            because="The best learning rates are the lowest that were tried, and too high a rate can make the training loss rise.",
        ),
        Relation(
            rules=("space-shrink",),
            shares="subject",
            because="The good trials lie together at the end at which the range has to be widened.",
            waits=False,
        ),
        Relation(
            rules=("space-undersampled",),
            because="The best settings lie at an end of the searched range, where there are few trials.",
        ),
        Relation(
            rules=("space-insensitive",),
            because="The best settings lie at an end of the searched range; which hyperparameters matter beyond this end is "
            "unknown.",
        ),
        Relation(
            rules=("space-shrink", "scientific-effect"),
            shares="other subject",
            min_severity="warning",
            because="The best settings lie at an end of the searched range; which values of other hyperparameters are best beyond "
            "this end is unknown.",
        ),
    )

    best: Count = 5
    """Number of best trials that the message counts; the test ranks all trials."""
    edge: Share = 0.1
    """Share of a range, on its own scale, that counts as its end."""
    certainty: Share = 0.9
    """Minimum share of simulated fits of the response whose best value lies at the end of the range at which the finding is a
    warning."""
    likely: Share = 0.75
    """Minimum share of simulated fits of the response whose best value lies at the end of the range at which the finding is a
    note; 0.75 means odds of three to one."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which chance alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        tried = settings.read_settings(study)
        # Beta sets the distance from the reference model, so the loss and the share of ordered pairs do not say which is best.
        by_preferences = study.has("train_chosen_logp") or study.has("valid_chosen_logp")
        axes = [
            n
            for n, p in tried.numeric.items()
            if not is_training_length(n) and len(np.unique(p[np.isfinite(p)])) > 1 and not (n == "beta" and by_preferences)
        ]
        if not axes:
            raise MissingData(
                "no numeric hyperparameter was varied other than the length of training and the beta of preference training; log "
                "the hyperparameters that the study searches",
                needs="searched",
            )
        level = tried.corrected_level(self.false_alarms)
        # The p-value of perfectly ordered results is 1 / n!, at each of two ends of each axis.
        needed = next(n for n in itertools.count(1) if 2 * len(axes) <= level * math.factorial(n))
        tried.require_settings(max(5, needed), 3)
        numeric, choices = [tried.numeric[n] for n in axes], list(tried.choices.values())
        ends = boundaries.ends_with_clusters(numeric, choices, tried.costs, self.edge, self.likely, level)
        if not ends:
            return
        responses = boundaries.fit_responses(numeric, choices, boundaries.truncate_at_median(tried.costs), self.edge)
        for end in ends:
            name, response = axes[end.axis], responses[end.axis]
            weak = end.p_value_among_successful_trials > level and end.probability < self.certainty
            if weak or _trials_fail_beyond_best(tried, name, end.side) or _optimum_lies_inside(study, tried, name, end.side):
                continue
            moved = _extension.extend_range_end(study, tried, name, end.side, response)
            if moved is not None:
                yield self._build_finding(study, tried, name, end, moved)

    def _build_finding(
        self, study: Study, tried: Settings, name: str, end: boundaries.ClusterAtEnd, moved: _extension.ExtendedRange
    ) -> Finding:
        side, p, is_sure = end.side, end.p_value, end.probability >= self.certainty
        good = np.argsort(tried.costs, kind="stable")[: max(1, min(self.best, len(tried) // 4))]
        best = [t for i in good for t in tried.trials[i][:1]]
        action, change = _build_advice(study, name, side, moved)
        is_sure = is_sure and (
            _outermost_leads_beyond_noise(study, tried, name, side)
            or _clusters_without_best_two(tried, name, side, self.false_alarms)
        )
        in_outer_fifth = mirror_positions(tried.numeric[name], side) >= MIN_OUTER_FIFTH_POSITION
        label = "probability by chance of such an improvement towards this end (permutation test of all settings)"
        n_good, share = int(in_outer_fifth[good].sum()), Percent(in_outer_fifth.mean())
        share_text = say("{n} of the {of} best, {share} of all", n=n_good, of=len(good), share=share)
        caption = say(f"Better trials lie towards the {side} end of {{name}}.", name=Name(name))
        return self.finding(
            good_end_message(study, tried, name, side, good),
            action=action,
            severity="warning" if is_sure and change else "note",
            confidence=(1 - p) * end.probability * (0.9 if name in study.inferred else 1),
            subject=name,
            side=side,
            trials=best,
            evidence=(
                axis_plot(name, caption, best, span=(moved.low, moved.high)),
                table(
                    _rows.tried_settings_row(tried),
                    (f"trials in the {side}est fifth of the range", share_text),
                    (label, Probability(p), self.false_alarms),
                    ("simulated fits whose best value lies at this end", Percent(end.probability), self.likely),
                    _rows.range_row(study, name),
                ),
            ),
            changes=(change,) if change else None,
        )


def _build_advice(
    study: Study, name: str, side: RangeSide, new_range: _extension.ExtendedRange
) -> tuple[Message, SetRange | None]:
    """Return (action, change): a new range or, for batch size and architecture, whose values differ in cost, only advice."""
    if parameter_kinds.is_batch_size(name):
        return say("Choose {name} by throughput and memory, and tune the optimizer for that batch size.", name=Name(name)), None
    domain = study.spec.parameters[name]
    if parameter_kinds.searches_architecture(study, name):
        old_end, new_end = (domain.high, new_range.high) if side == "high" else (domain.low, new_range.low)
        beyond = "above" if side == "high" else "below"
        text = (
            f"Decide if {{name}} {beyond} {{end}} is worth its cost. If it is, compare {{end}} and {{to}} in a separate study."
        )
        return say(text, name=Name(name), end=Setting(old_end), to=Setting(new_end)), None
    scale = scale_of_new_range(name, new_range.low, new_range.high, domain.scale)
    action = _rows.range_advice(f"Search {side}er values of {{name}}", name, new_range.low, new_range.high)
    return action, SetRange(parameter=name, low=new_range.low, high=new_range.high, scale=scale, why=new_range.why)


def _optimum_lies_inside(study: Study, tried: Settings, name: str, side: RangeSide) -> bool:
    known = np.isfinite(tried.costs) & np.isfinite(tried.numeric[name])
    return len(study.searched) == 1 and boundaries.response_turns_inside(tried.numeric[name][known], tried.costs[known], side)


def _clusters_without_best_two(tried: Settings, name: str, side: RangeSide, level: float) -> bool:
    rest = np.argsort(tried.costs, kind="stable")[2:]
    finite = rest[np.isfinite(tried.numeric[name][rest])]
    if len(finite) < 3 or not np.isfinite(tried.costs[finite]).any():
        return False
    p = boundaries.p_values_of_clusters(tried.numeric[name][finite][:, None], ranks.log_rank_scores(tried.costs[finite]))
    return bool(p[0, 0 if side == "low" else 1] <= level)


def _outermost_leads_beyond_noise(study: Study, tried: Settings, name: str, side: RangeSide) -> bool:
    """Return True if only one hyperparameter is searched, and its outermost setting is better than all others by more than
    noise; all others may be ruined, for example by too high learning rates."""
    finite = np.flatnonzero(np.isfinite(tried.costs) & np.isfinite(tried.numeric[name]))
    positions = tried.numeric[name][finite]
    outermost = finite[np.argmax(positions if side == "high" else -positions)]
    is_worse = noise.is_worse_beyond_noise(study)
    others = [t.index for i in finite if i != outermost for t in tried.trials[i]]
    return len(study.searched) == 1 and bool(others) and bool(is_worse[others].all())


def _trials_fail_beyond_best(tried: Settings, name: str, side: RangeSide) -> bool:
    positions = [tried.numeric[name] if side == "high" else -tried.numeric[name]]
    if side == "high" and "momentum" in words_of_name(name):  # Momentum lengthens updates, as higher learning rates do.
        positions += [u for n, u in tried.numeric.items() if is_learning_rate(n)]
    beyond = [u > u[int(np.nanargmin(tried.costs))] for u in positions]
    return any(b.any() and 2 * tried.failed[b].sum() >= b.sum() for b in beyond)


def good_end_message(study: Study, tried: Settings, name: str, side: RangeSide, good: IntArray) -> Message:
    domain, outer = study.spec.parameters[name], mirror_positions(tried.numeric[name], side)
    is_finite = np.isfinite(tried.costs) & np.isfinite(outer)
    turns = boundaries.outermost_is_worse(outer[is_finite], tried.costs[is_finite], "high")
    n_outer, n_good, single = int((outer >= MIN_OUTER_FIFTH_POSITION)[good].sum()), len(good), len(study.searched) == 1
    end = Setting(domain.high if side == "high" else domain.low)
    if n_good >= MIN_CLUSTERED_TRIALS and 2 * n_outer > n_good and not (turns and single):
        trials = f"The {n_good} best trials are all" if n_outer == n_good else f"{n_outer} of the {n_good} best trials are"
        towards = "up" if side == "high" else "down"
        return say(f"{trials} in the {side}est fifth of {{name}}, {towards} to {{end}}.", name=Name(name), end=end)
    if turns and single:
        text = (
            "Fitted results are best at {end}, the {side} end of {name}, but the outermost trial is worse than others near it."
        )
        return say(text, end=end, side=side, name=Name(name))
    if turns:
        text = "With the other hyperparameters accounted for, results improve towards {end}, the {side} end of {name}."
        return say(text, end=end, side=side, name=Name(name))
    best = int(np.nanargmin(tried.costs))
    if outer[best] == outer[is_finite].max():
        return _outermost_value_message(study, tried, name, side, best)
    order = np.argsort(tried.costs[is_finite], kind="stable")
    halves = np.array_split(tried.numeric[name][is_finite][order], 2)
    better, worse = (Number(as_number(domain.value_at_position(float(np.median(h)))), 2) for h in halves)
    text = f"Better trials have {side}er values of {{name}}: the median is {{better}} in the better half of the trials, and "
    return say(f"{text}{{worse}} in the other half.", name=Name(name), better=better, worse=worse)


def mirror_positions(positions: FloatArray, side: RangeSide) -> FloatArray:
    """Return positions (n,) in a range, mirrored if necessary so that the end `side` has position 1."""
    return positions if side == "high" else 1 - positions


def _outermost_value_message(study: Study, tried: Settings, name: str, side: RangeSide, best: int) -> Message:
    end = Setting(tried.trials[best][0].params.get(name))
    others = tried.costs[np.isfinite(tried.costs) & (tried.numeric[name] != tried.numeric[name][best])]
    if not len(others):
        return say(f"Only the {side}est {{name}}, {{end}}, leads to a result.", name=Name(name), end=end)
    outermost = np.nanmax(mirror_positions(study.positions(name, study.trials), side))
    is_outermost = mirror_positions(tried.numeric[name], side)[best] >= outermost - 1e-9
    group_text, bound = "that was tried" if is_outermost else "of the comparable trials", "least" if study.minimize else "most"
    value, best_other = (Objective(study.objective_value(float(c))) for c in (tried.costs[best], others.min()))
    text = f"The best trial has the {side}est {{name}} {group_text}, {{end}}: {{metric}} is {{value}} there and at "
    text += f"{bound} {{rest}} at {'lower' if side == 'high' else 'higher'} values."
    return say(text, name=Name(name), end=end, metric=Name(study.spec.objective.metric), value=value, rest=best_other)
