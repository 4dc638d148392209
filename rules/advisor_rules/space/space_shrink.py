from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from advisor.computed.space import promising, sampler, settings
from advisor.computed.space.settings import Settings
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import SetRange
from advisor.model.evidence import TableRow, axis_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Name, Number, Percent, Probability, say
from advisor.model.space import BoolArray, FloatArray, as_number
from advisor.model.study import Study
from advisor.model.words import capitalise
from advisor.stats import boundaries, ranks, widening
from advisor_rules.space import _good_region, _rows
from advisor_rules.space._good_region import GoodRegion


class SpaceShrink(Rule):
    """A range is far wider than the part of it that contains good trials.

    ## What it looks at
    The rule examines every searched number with at least five values, except training length, batch size and architecture. The
    rule cannot judge if more than a fifth of the trials were pruned, because pruning keeps trials that learn fast early. The
    rule first tests if results depend on the hyperparameter at all. Then the rule selects the good trials: the best tenth, and
    all trials that are only a little worse than the best, so that a flat optimum is included completely. The rule then tests if
    the good trials lie closer together than equally many random trials; closeness is measured by the number of trials between
    them. The part to keep contains the good trials and a margin. Up to 5 % of the good trials at each end may be left out, but
    none of the best three. If both ends are cut off and a model of all hyperparameters together excludes more, the ends move
    further inwards, but never past the best trial. The rule fires if the part to keep is at most two thirds of the range,
    measured on the scale (log or linear) of the range. An end of the range stays if good trials lie in its outer fifth, or if
    most trials beyond the good ones failed; the rules `space-boundary` and `space-infeasible` cover these cases. If there are
    too few good trials for the test of closeness, or if the range stays wide, the margin is the interval that contains the
    optimum of the fitted response with 90 % probability. If only one hyperparameter is searched and one to three neighbouring
    trials are far better than all others, the range ends at the nearest of the other trials.

    ## Why it matters
    Once the good region is known, further trials far from it are wasted. If three ranges are twice as wide as needed, seven of
    eight trials are wasted.

    ## What to do
    Search the part that contains the good trials, with equally many trials. If the best trials of the narrower range lie at one
    end of it, extend this end again.

    ## How sure
    The tests of dependence and of closeness are exact for any sampling that ignores results. The test of dependence is
    corrected for the number of hyperparameters, the test of closeness for the number of hyperparameters that passed the first
    test. Confidence is one minus the larger p-value of the two tests, times 0.9 if the range was not declared. If the sampler
    used earlier results, the finding is a note with lower confidence. If all settings were equally good, the rule fired in 0 to
    2 % of 200 simulated studies. On 866 random sections of grids of trained networks, the kept part contained 92 % of the best
    2 % of all points after 16 trials, and 97 % after 64 or more trials. Many hyperparameters need many trials: with eight
    hyperparameters, the rule found an optimum as wide as half of the range in 20 % of studies with 50 trials, 50 % with 100 and
    90 % with 200.
    """

    playbook = "After exploration concludes"
    goal = "sampling"
    needs_order = True
    needs_learning = True
    predicts = "denser"
    explains = (
        Relation(
            rules=("space-insensitive",),
            shares="subject",
            because="Good trials lie only in a part of its range; the other trials differ little, which hides the effect of "
            "the hyperparameter.",
        ),
        Relation(
            rules=("space-insensitive",),
            because="Most trials lie where this range decides the result; among the good trials, other hyperparameters may matter.",
        ),
        Relation(
            rules=("space-undersampled",),
            because="The good region is a small part of the searched space; narrower ranges put more trials into it.",
        ),
    )

    best: Share = 0.1
    """Minimum share of the trials that count as good; at least four trials always do."""
    little: Share = 0.2
    """Maximum difference of a good result from the best result, as a share of the difference between the 90 % quantile of the
    results and the best result."""
    little_of_training: Share = 0.05
    """Maximum difference of a good result from the best result, as a share of the best trial's improvement in training, if
    known."""
    left: Share = 0.67
    """Maximum share of a range that is kept, including margins."""
    missed: Share = 0.2
    """Probability that further good trials lie beyond the margin at one end, if good trials are spread evenly over the good
    region."""
    levels: Count = 5
    """Minimum number of values of a hyperparameter whose range can be narrowed."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which chance alone narrows a range that is unrelated to the results."""

    def check(self, study: Study) -> Iterator[Finding]:
        settings.require_unpruned(study)
        tried = settings.read_settings(study)
        axes = _good_region.narrowable_parameters(study, tried, levels=self.levels)
        if not axes:
            reason = f"no hyperparameter was tried at {self.levels} values; log the hyperparameters that the study searches"
            at_least = _good_region.MIN_POINTS if study.searched else None
            raise MissingData(reason, needs="trials" if study.searched else "searched", at_least=at_least)
        tolerance = _good_region.max_good_distance(study, tried, self.little, self.little_of_training)
        if len(study.searched) == 1 and tried.result_count:
            u, costs, _ = _settings_with_parameter(tried, axes[0])
            part = _good_region.find_outstanding_region(u, costs, tolerance)
            if part is not None:
                span = max(part.low - part.margin, 0.0), min(part.high + part.margin, 1.0)
                yield self._build_finding(study, tried, axes[0], part, span, part.p_value)
                return
        tried.require_settings(_good_region.MIN_POINTS, _good_region.MIN_GOOD_POINTS)
        wide_ranges = self._find_wide_ranges(tried, axes, tolerance)
        model_ranges = promising.narrower_ranges(study, study.spec) if wide_ranges else {}
        for p, name, part, kept in sorted(wide_ranges, key=lambda f: f[:2]):
            yield sampler.weaken_if_adaptive(
                study, self._build_finding(study, tried, name, part, _tighten_range(study, name, kept, model_ranges), p)
            )

    def _find_wide_ranges(
        self, tried: Settings, axes: Sequence[str], tolerance: float
    ) -> list[tuple[float, str, GoodRegion, tuple[float, float]]]:
        """Return the ranges that are too wide, as (p-value, name, part with the good trials, part to keep)."""
        level = tried.corrected_level(self.false_alarms)
        p_values = {
            name: _good_region.p_of_unrelated_costs(*_settings_with_parameter(tried, name)[:2], level / len(axes)) * len(axes)
            for name in axes
        }
        relevant = [name for name in axes if p_values[name] <= level]
        wide_ranges = []
        optima: dict[str, tuple[float, float]] = {}
        for name in relevant:
            u, costs, failed = _settings_with_parameter(tried, name)
            is_good = _good_region.mask_good_points(costs, self.best, tolerance)
            part = _good_region.find_good_region(u, costs, is_good, self.missed)
            if part is None:
                continue
            p, kept = part.p_value * len(relevant), _good_region.range_to_keep(part, u, failed)
            if p > level or kept[1] - kept[0] > self.left:
                optima = optima or _optimum_intervals(tried)
                p = 1 - boundaries.OPTIMUM_INTERVAL_PROBABILITY
                kept = _good_region.range_with_optimum(part, optima[name], u, failed)
            if kept[1] - kept[0] <= self.left:
                wide_ranges.append((max(p, p_values[name]), name, part, _good_region.extend_to_best_points(kept, u, costs)))
        return wide_ranges

    def _build_finding(
        self, study: Study, tried: Settings, name: str, part: GoodRegion, kept_range: tuple[float, float], p: float
    ) -> Finding:
        domain, u = study.spec.parameters[name], tried.numeric[name]
        low, high = widening.range_of_span(domain, kept_range)
        first, last = (Number(as_number(domain.value_at_position(x))) for x in (part.low, part.high))
        place_text = say("between {first} and {last}", first=first, last=last)
        if str(first) == str(last):
            place_text = say("at {name} of {first}", name=Name(name), first=first)
        why = f"The good trials lie {place_text}"
        if part.low < kept_range[0] or part.high > kept_range[1]:
            why = capitalise(f"{promising.PROMISING_RANGE_REASON} of all settings")
        n_settings, n_outside = int(np.isfinite(u).sum()), part.good_outside_count
        shown = [tried.trials[i][0] for i in np.flatnonzero((u >= part.low) & (u <= part.high))[:5]]
        chance_row: TableRow = ("simulated fits with their best value in the kept part", Percent(1 - p))
        if p <= self.false_alarms:
            chance_row = ("probability of such a small part by chance", Probability(p), self.false_alarms)
        caption = say("Good trials lie in one part of the range of {name}.", name=Name(name))
        good_text = "{good}, {strays} of them outside this part of the range"
        return self.finding(
            _good_trials_message(study, name, part, place_text, n_settings),
            action=_rows.range_advice("Narrow the range of {name}", name, low, high),
            severity="warning",
            confidence=(1 - p) * (0.9 if name in study.inferred else 1),
            subject=name,
            trials=shown,
            evidence=(
                axis_plot(name, caption, shown, span=(low, high)),
                table(
                    _rows.tried_settings_row(tried),
                    ("good trials", say(good_text, good=part.good_count, strays=n_outside)),
                    ("trials in this part of the range", say("{inside} of {having}", inside=part.inside, having=n_settings)),
                    chance_row,
                    ("kept share of the range, including margins", Percent(kept_range[1] - kept_range[0]), self.left),
                    _rows.range_row(study, name),
                ),
            ),
            changes=(SetRange(parameter=name, low=low, high=high, scale=domain.scale, why=why),),
        )


def _good_trials_message(study: Study, name: str, part: GoodRegion, where: Message, count: int) -> Message:
    n = part.good_count
    if n < _good_region.MIN_GOOD_POINTS:
        text = f"Only {{n}} of {{count}} trials {'is' if n == 1 else 'are'} good, {{where}}. All others are far worse."
        return say(text, n=n, count=count, where=where)
    good = f"{n - part.good_outside_count} of the {n}" if part.good_outside_count else f"All {n}"
    span, share = _rows.range_text(study, name), Percent(min(part.high, 1.0) - max(part.low, 0.0))
    text = f"{good} good trials lie {{where}}, in {{share}} of the range of {{name}} ({{span}})."
    statement = say(text, where=where, share=share, name=Name(name), span=span)
    return say("{lie} Of all {count} trials, {inside} lie there.", lie=statement, count=count, inside=part.inside)


def _tighten_range(
    study: Study, name: str, kept_range: tuple[float, float], model_ranges: Mapping[str, tuple[float, float]]
) -> tuple[float, float]:
    # `space-boundary` may move an end at which the kept part starts or ends with the range, and then chooses the other end too.
    if name not in model_ranges or kept_range[0] <= 0 or kept_range[1] >= 1:
        return kept_range
    first, last = study.spec.parameters[name].to_positions(list(model_ranges[name]))
    low, high = max(kept_range[0], float(first)), min(kept_range[1], float(last))
    return (low, high) if low < high else kept_range


def _optimum_intervals(tried: Settings) -> dict[str, tuple[float, float]]:
    """Return the interval that contains the best position on each axis of the fitted response. Categorical hyperparameters with
    many values are left out until there are at most half as many values as settings."""
    choices = sorted(tried.choices.values(), key=lambda u: len(np.unique(u)))
    levels = np.cumsum([len(np.unique(u)) for u in choices])
    used_choices = list(itertools.compress(choices, 2 * levels <= len(tried)))
    fits = boundaries.fit_responses(list(tried.numeric.values()), used_choices, ranks.log_rank_scores(tried.costs), edge=0.1)
    return {name: response.optimum for name, response in zip(tried.numeric, fits, strict=True)}


def _settings_with_parameter(tried: Settings, name: str) -> tuple[FloatArray, FloatArray, BoolArray]:
    has_value = np.isfinite(tried.numeric[name])
    return tried.numeric[name][has_value], tried.costs[has_value], tried.failed[has_value]
