import numpy as np
import pytest
from studies import make_study, verdict

from advisor.model.change import Advise


def tuned(costs, again=(), *, rounds=None, axes=1, seed=0, positions=None):
    """A study of one run a setting, in the order of `costs`, and further runs `again` of the best one."""
    rng = np.random.default_rng(seed)
    x = rng.random((len(costs), axes)) if positions is None else np.asarray(positions)
    params = [{f"x{j}": float(v) for j, v in enumerate(row)} for row in x]
    best = int(np.argmin(costs))
    tags = [{"study": r} for r in rounds] + [{"study": rounds[best]}] * len(again) if rounds else None
    return make_study(
        params + [params[best]] * len(again),
        {"val/loss": [*map(float, costs), *map(float, again)]},
        seeds=[0] * len(costs) + list(range(1, len(again) + 1)),
        tags=tags,
    )


def flat(n=40, noise=0.01, seed=0):
    return 1 + np.random.default_rng(seed).normal(0, noise, n)


AGAIN = [0.99, 1.0, 1.01, 1.005]


def example():
    """Forty settings that differ by noise only."""
    return tuned(flat(), AGAIN)


def test_settings_that_are_all_alike_have_stopped_paying():
    found = verdict("tuning-saturated", example()).findings[0]
    assert "The last 20 settings" in found.message
    assert found.confidence > 0.95
    search, change = found.changes
    assert (search.kind, search.plan) == ("plan", "exploit")
    assert isinstance(change, Advise)


def test_quiet_while_results_still_get_better_or_one_setting_is_ahead_of_all_others():
    rising, ahead = 2 - 0.05 * np.arange(20), flat()
    ahead[3] = 0.5
    assert verdict("tuning-saturated", tuned(rising, rising[-1] + np.array([0.01, -0.01, 0.02]))).status == "quiet"
    assert verdict("tuning-saturated", tuned(ahead, [0.49, 0.51, 0.5])).status == "quiet"


def test_the_last_round_counts_where_trials_name_their_study():
    first, second = 2 + flat(20) - 1, flat(20, seed=1)
    rounds = ["a"] * 20 + ["b"] * 20
    again = [1.0, 0.99, 1.01, 1.005]
    assert verdict("tuning-saturated", tuned([*first, *second], again, rounds=rounds)).status == "quiet"  # this round gained
    third = verdict("tuning-saturated", tuned([*second, *flat(20, seed=2)], again, rounds=rounds))
    assert "of 20 settings" in third.findings[0].message


def test_a_sampler_that_learned_makes_it_less_sure():
    rng = np.random.default_rng(0)
    x = [*rng.random(12)]
    for _ in range(48):
        x.append(float(np.clip(x[int(np.argmin([abs(v - 0.4) for v in x]))] + rng.normal(0, 0.03), 0, 1)))
    costs = np.abs(np.array(x) - 0.4) + rng.normal(0, 0.01, len(x))
    again = costs.min() + np.array([0.01, 0.02, 0.03, 0.0])
    found = verdict("tuning-saturated", tuned(costs, again, positions=np.array(x)[:, None])).findings[0]
    assert found.doubt == 0.8
    assert any("adaptive" in v for e in found.evidence for _, v in e.rows)


def test_cannot_tell_without_repeats_or_with_few_trials():
    assert "repeat the best trial" in verdict("tuning-saturated", tuned(flat())).reason
    assert "at least 10 are needed" in verdict("tuning-saturated", tuned(flat(5), AGAIN)).reason


@pytest.mark.parametrize(("axes", "count", "noise"), [(1, 16, 0.003), (2, 16, 0.03), (2, 100, 0.003), (4, 50, 0.03)])
def test_keeps_its_promise_where_more_trials_would_pay(axes, count, noise):
    wrong = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        optimum, weights = rng.uniform(0.2, 0.8, axes), rng.lognormal(0, 1, axes)
        x, more = rng.random((count, axes)), rng.random((count, axes))
        costs = ((x - optimum) ** 2 * weights).sum(1)
        seen = costs + rng.normal(0, noise, count)
        again = costs[seen.argmin()] + rng.normal(0, noise, 4)
        gain = costs.min() - ((more - optimum) ** 2 * weights).sum(1).min()
        if gain > 2 * noise:  # beyond what a seed differs by
            wrong += verdict("tuning-saturated", tuned(seen, again, positions=x)).status == "fired"
    assert wrong <= 4
