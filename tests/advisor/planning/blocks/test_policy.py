"""The policy of a search in blocks, on a function instead of a training and with a stated analysis instead of the rules."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from advisor.model.spec import Objective, Parameter, Sampler, StudySpec
from advisor.planning.blocks import Block, Search, TrainedTrial
from advisor.planning.blocks.policy import MAX_FINAL_REPEATS, MIN_GROWTH_TO_REANALYZE
from advisor.planning.blocks.spaces import sampler_observations, steps_per_trial
from advisor.planning.sampling.adaptive import suggest_trial
from advisor.planning.sampling.halton import draw_trials

START = StudySpec(
    study="s",
    objective=Objective(metric="accuracy", direction="maximize"),
    parameters={"lr": Parameter(type="float", low=1e-5, high=1e-3, scale="log")},
    max_train_steps=100,
)
WIDER = START.with_parameter("lr", Parameter(type="float", low=1e-4, high=0.1, scale="log"))
MIN_MISMATCH_RATIO = START.model_copy(update={"max_train_steps": 200})
PROBE = START.model_copy(update={"probe": "warmup", "max_train_steps": 50, "settings": ({"lr": 1e-3},), "baseline": WIDER})


class Analyst:
    """Answers each analysis with the next of some studies, then with none."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def next_study(self, spec, trials, prepare):
        self.asked.append((spec, len(trials)))
        answer = self.answers.pop(0) if self.answers else None
        return None if answer is None else prepare(answer)

    def supported_study(self, spec, before):
        return spec


def train(block, earlier):
    """Best at a learning rate of 0.03."""
    trials = []
    for _ in range((block.spec.trials or 1) * (block.spec.seeds or 1)):
        if block.spec.sampler.kind == "adaptive":
            params = suggest_trial(block.spec, sampler_observations(block.spec, [*earlier, *trials]))
        else:
            params = list(draw_trials(block.spec, len(trials) + 1))[-1]
        cost = math.log10(params["lr"] / 0.03) ** 2 - 1
        number = str(len(earlier) + len(trials))
        trials.append(TrainedTrial(number, params, params, cost, steps_per_trial(block.spec), probe=block.spec.probe))
    return replace(block, trained=tuple(trials))


def run(search, blocks=()):
    blocks = list(blocks)
    while (block := search.next_block(blocks)) is not None:
        blocks.append(train(block, [t for b in blocks for t in b.trained]))
    return blocks


def sizes(blocks):
    return [(b.kind, len(b.trained)) for b in blocks]


def test_a_quarter_is_explored_then_blocks_follow_and_the_leader_is_repeated():
    analyst = Analyst()
    blocks = run(Search(START, 48, analyst))
    assert sizes(blocks) == [("explore", 12), *[("adaptive", 4)] * 8, *[("repeat", 1)] * MAX_FINAL_REPEATS]
    looked = [count for _, count in analyst.asked]
    assert looked == [12, 16, 20, 28, 36]
    assert all(later >= MIN_GROWTH_TO_REANALYZE * before for before, later in pairwise(looked))
    repeated = {b.spec.settings[0]["lr"] for b in blocks if b.kind == "repeat"}
    best = min((t for b in blocks for t in b.trained), key=lambda t: t.cost)
    assert repeated == {best.params["lr"]}
    assert blocks[0].spec.sampler == Sampler(seed=0)


def test_a_wider_space_is_searched_first_where_nothing_was_trained_and_never_shrinks():
    analyst = Analyst(WIDER)
    search = Search(START, 48, analyst)
    blocks = run(search)
    assert sizes(blocks)[:3] == [("explore", 12), ("extend", 4), ("adaptive", 4)]
    assert all(t.params["lr"] > 1e-3 for t in blocks[1].trained)
    assert (blocks[1].spec.parameters["lr"].low, blocks[1].spec.parameters["lr"].high) == (1e-5, 0.1)
    assert search.search_space(blocks[:2]).settings == ()
    # After a change, the analysis looks at once, and at all trials in the wider space.
    assert analyst.asked[1][1] == 16


def test_the_same_blocks_lead_to_the_same_decision_at_any_time():
    blocks = run(Search(START, 24, Analyst(WIDER, None, PROBE, WIDER)))
    for i in range(len(blocks)):
        search = Search(START, 24, Analyst(WIDER, None, PROBE, WIDER))
        for j in range(i):  # the decisions up to there use up the answers
            search.next_block(blocks[:j])
        again = search.next_block(blocks[:i])
        assert (again.kind, again.spec) == (blocks[i].kind, blocks[i].spec)


def test_longer_training_is_explored_anew_if_the_budget_suffices():
    blocks = run(Search(START, 48, Analyst(MIN_MISMATCH_RATIO)))
    assert sizes(blocks)[:2] == [("explore", 12), ("explore", 12)]
    assert blocks[1].spec.max_train_steps == 200
    assert sum(t.steps for b in blocks for t in b.trained) <= 4800
    late = Analyst(None, None, None, None, MIN_MISMATCH_RATIO)
    assert ("explore", 12) not in sizes(run(Search(START, 48, late)))[1:]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (200, [("explore", 9), ("explore", 9), ("adaptive", 3), ("repeat", 1)]),
        (300, [("explore", 9), *[("adaptive", 3)] * 7]),  # its exploration alone would take all that is left
    ],
)
def test_longer_training_leaves_trials_for_its_result(steps, expected):
    blocks = run(Search(START, 36, Analyst(START.model_copy(update={"max_train_steps": steps}))))
    assert sizes(blocks)[: len(expected)] == expected
    repeats = sum(len(b.trained) for b in blocks if b.kind == "repeat")
    assert 1 <= repeats <= MAX_FINAL_REPEATS
    assert sizes(blocks)[-1] == ("repeat", 1)
    assert sum(t.steps for b in blocks for t in b.trained) <= 3600


def test_a_leader_that_is_shorter_than_the_present_space_is_repeated_no_more_than_another():
    short = run(Search(START, 48, Analyst()))[0]
    long = replace(short, spec=MIN_MISMATCH_RATIO, trained=tuple(replace(t, steps=200, cost=t.cost + 9) for t in short.trained))
    search, blocks = Search(START, 51, Analyst()), [short, long]
    while (block := search.next_block(blocks)) is not None:
        worse = tuple(replace(t, cost=t.cost + 9 * (t.steps > 100)) for t in train(block, []).trained)
        blocks.append(replace(block, trained=worse))
    repeats = [b for b in blocks if b.kind == "repeat"]
    assert {b.spec.max_train_steps for b in repeats} == {100}
    assert sum(len(b.trained) for b in repeats) == MAX_FINAL_REPEATS


def test_a_special_study_leads_to_the_study_that_it_prepared_and_has_no_candidates():
    analyst = Analyst(PROBE, None)
    blocks = run(Search(START, 48, analyst))
    assert sizes(blocks)[:3] == [("explore", 12), ("probe", 4), ("extend", 4)]
    assert analyst.asked[1][0].probe == "warmup"
    assert blocks[2].spec.parameters["lr"].high == 0.1
    assert all(t.probe is None for b in blocks[2:] for t in b.trained)


def test_a_special_study_keeps_its_number_of_trials():
    lengths = [{"lr": 1e-3}, {"lr": 2e-3}, {"lr": 3e-3}]
    probe = PROBE.model_copy(update={"settings": tuple(lengths), "trials": 3})
    blocks = run(Search(START, 24, Analyst(probe, None)))
    assert [t.params for t in blocks[1].trained] == lengths


@pytest.mark.parametrize(("rate", "probes"), [(30.0, 1), (40.0, 1), (90.0, 2)])
def test_a_special_study_is_not_run_again_with_nearly_the_same_numbers(rate, probes):
    first, again = (PROBE.model_copy(update={"starts_from": {"unstable_learning_rate": r}}) for r in (30.0, rate))
    blocks = run(Search(START, 48, Analyst(first, WIDER, again)))
    assert sum(b.kind == "probe" for b in blocks) == probes


@pytest.mark.parametrize(("parallel", "first", "block"), [(1, 12, 4), (3, 12, 4), (6, 18, 6)])
def test_a_block_has_at_least_as_many_trials_as_are_trained_at_a_time(parallel, first, block):
    blocks = run(Search(START, 48, Analyst(WIDER), parallel))
    assert sizes(blocks)[:2] == [("explore", first), ("extend", block)]
    repeats = [b for b in blocks if b.kind == "repeat"]
    assert sum(len(b.trained) for b in repeats) == MAX_FINAL_REPEATS
    assert (repeats[0].spec.seeds or 1) == min(parallel, MAX_FINAL_REPEATS)
    assert sum(len(b.trained) for b in blocks) == 48


def test_a_trial_that_was_stopped_costs_the_steps_that_it_trained():
    search = Search(START, 48, Analyst())
    blocks = [train(search.next_block([]), [])]
    half = replace(blocks[0], trained=tuple(replace(t, charged_steps=50) for t in blocks[0].trained))
    assert sum(len(b.trained) for b in run(search, [half])) == 54


def test_a_model_that_expects_more_beyond_an_end_widens_the_range():
    blocks = run(Search(START, 48, Analyst()))
    last = [b.spec for b in blocks if b.kind == "adaptive"][-1]
    assert last.parameters["lr"].high > 1e-3


def test_without_any_result_the_search_ends_with_its_budget():
    def fails(block):
        return Block(block.kind, block.spec, tuple(replace(t, cost=math.nan) for t in train(block, []).trained))

    search, blocks = Search(START, 12, Analyst()), []
    while (block := search.next_block(blocks)) is not None:
        blocks.append(fails(block))
    assert sum(len(b.trained) for b in blocks) == 12


def test_predictions_are_made_for_the_trials_of_the_block():
    prepared = []

    class Recorder(Analyst):
        def next_study(self, spec, trials, prepare):
            return super().next_study(spec, trials, lambda planned: prepared.append(prepare(planned)) or prepared[-1])

    blocks = run(Search(START, 48, Recorder(WIDER)))
    assert (prepared[0].settings, prepared[0].trials) == (blocks[1].spec.settings, 4)
    assert [t.params["lr"] for t in blocks[1].trained] == [s["lr"] for s in prepared[0].settings]
