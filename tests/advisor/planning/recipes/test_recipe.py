"""Recipes: every first study reads back and gives trials, and its lengths, ranges and metric are those of the user."""

import pytest

from advisor.contract.metric_direction import direction_of_metric
from advisor.model.errors import AdvisorError
from advisor.model.spec import Parameter
from advisor.model.spec_yaml import format_study_file, parse_study_file
from advisor.planning.recipes.recipe import (
    RECIPE_NAMES,
    RecipeRequest,
    first_study_of_recipe,
    read_recipe,
    recipe_notes,
    step_law_batch_size,
    step_law_batch_tokens,
    step_law_learning_rate,
)
from advisor.planning.sampling.halton import draw_trials


def wish(recipe, **more):
    size = {"model_parameters": 124_000_000} if recipe == "pretrain" else {}
    return RecipeRequest(recipe=recipe, study="s", **{**size, **more})


@pytest.mark.parametrize("recipe", RECIPE_NAMES)
def test_every_recipe_reads_back_with_its_comment_and_gives_trials(recipe):
    comment, spec = first_study_of_recipe(wish(recipe))
    text = comment + format_study_file(spec)
    assert parse_study_file(text) == spec
    assert spec.study == "s"
    assert all(line.startswith("#") and len(line) <= 132 for line in comment.splitlines())
    assert f'TuningCallback("{spec.objective.metric}")' in comment
    assert direction_of_metric(spec.objective.metric) == spec.objective.direction
    drawn = list(draw_trials(spec, spec.trials))
    assert len(drawn) == spec.trials
    assert len({trial["learning_rate"] for trial in drawn}) > 2


@pytest.mark.parametrize("recipe", RECIPE_NAMES)
def test_every_range_has_a_reason_and_a_source(recipe):
    _, spec = first_study_of_recipe(wish(recipe))
    for name, parameter in spec.parameters.items():
        assert parameter.why, name
        if parameter.searched:
            assert "arXiv:" in parameter.why, name


def test_the_rate_of_lora_is_ten_times_that_of_full_fine_tuning():
    full, lora = (read_recipe(recipe)[1].parameters["learning_rate"] for recipe in ("sft", "lora"))
    assert (lora.low, lora.high) == pytest.approx((10 * full.low, 10 * full.high))


def test_alpha_keeps_its_ratio_to_the_rank():
    ranks = Parameter(role="nuisance", choices=(8, 32))
    _, spec = first_study_of_recipe(wish("lora", parameters={"lora_r": ranks}))
    assert {(t["lora_r"], t["lora_alpha"]) for t in draw_trials(spec, 8)} == {(8, 16), (32, 64)}


def test_steps_follow_from_tokens():
    _, spec = first_study_of_recipe(wish("lora", tokens=20_000_000, batch_tokens=50_000))
    assert (spec.max_train_steps, spec.evaluate_every, spec.schedule["warmup_steps"]) == (400, 20, 40)
    assert spec.notes[0].startswith("400 steps of 50,000 tokens are 20 million training tokens.")
    with pytest.raises(AdvisorError, match="fewer than 10 batches of 65,536"):
        first_study_of_recipe(wish("sft", tokens=100_000))


def test_warmup_and_evaluations_keep_their_share_of_the_steps():
    _, spec = first_study_of_recipe(wish("sft", max_train_steps=40))
    assert (spec.evaluate_every, spec.schedule) == (2, {"kind": "cosine", "warmup_steps": 4})
    _, spec = first_study_of_recipe(wish("sft", max_train_steps=1))
    assert (spec.evaluate_every, spec.schedule["warmup_steps"]) == (1, 0)


@pytest.mark.parametrize("recipe", RECIPE_NAMES)
def test_evaluations_are_few_beside_the_steps(recipe):
    _, spec = first_study_of_recipe(wish(recipe))
    assert 10 <= spec.max_train_steps // spec.evaluate_every <= 20


def test_notes_name_no_number_of_warmup_steps_that_a_shorter_study_changes():
    _, spec = first_study_of_recipe(wish("grpo", max_train_steps=60))
    assert spec.schedule["warmup_steps"] == 4
    assert "A constant rate after a short warmup follows DAPO, which warmed up for 20 steps." in spec.notes


def test_pre_training_tries_the_predicted_rate_first():
    _, spec = first_study_of_recipe(wish("pretrain", tokens=2_480_000_000))
    rates = [setting["learning_rate"] for setting in spec.settings]
    assert rates == pytest.approx([0.00232, 0.00116, 0.00464, 0.00058, 0.00929], rel=5e-3)
    assert [t["learning_rate"] for t in draw_trials(spec, 5)] == rates
    assert (min(rates), max(rates)) == (spec.parameters["learning_rate"].low, spec.parameters["learning_rate"].high)
    assert spec.max_train_steps == 18_921  # of 131,072 tokens
    assert (
        "Step Law predicts 0.00232 for 124 million parameters and 2.48 billion tokens" in spec.parameters["learning_rate"].why
    )


def test_pre_training_says_whether_the_law_was_right():
    (prediction,) = first_study_of_recipe(wish("pretrain", tokens=2_480_000_000))[1].predictions
    assert (prediction.rule, prediction.expects.value) == ("step-law", 0.00232)
    elsewhere = {"learning_rate": Parameter(low=1e-4, high=1e-3, scale="log")}
    assert first_study_of_recipe(wish("pretrain", parameters=elsewhere))[1].predictions == ()
    assert first_study_of_recipe(wish("sft"))[1].predictions == ()


def test_pre_training_takes_twenty_tokens_per_parameter_unless_told():
    _, spec = first_study_of_recipe(wish("pretrain"))
    assert spec.max_train_steps == 18_921
    assert any("arXiv:2203.15556" in note for note in spec.notes)
    _, spec = first_study_of_recipe(wish("pretrain", tokens=10**9, batch_tokens=10**6))
    assert spec.max_train_steps == 1000
    assert any("a smaller batch needs a lower rate" in note for note in spec.notes)
    with pytest.raises(AdvisorError, match="--params 124M"):
        first_study_of_recipe(RecipeRequest(recipe="pretrain", study="s"))


def test_other_trials_or_ranges_replace_the_grid():
    assert first_study_of_recipe(wish("pretrain", trials=9))[1].settings == ()
    own = {"learning_rate": Parameter(low=1e-4, high=1e-3, scale="log")}
    _, spec = first_study_of_recipe(wish("pretrain", parameters=own))
    assert spec.settings == ()
    assert (spec.parameters["learning_rate"].low, spec.parameters["learning_rate"].why) == (
        1e-4,
        "optimizer hyperparameters interact with every other change, so tune them in each study; set by the user",
    )
    decay = {"weight_decay": Parameter(role="fixed", value=0.0)}
    assert len(first_study_of_recipe(wish("pretrain", parameters=decay))[1].settings) == 5


@pytest.mark.parametrize("name", ["learning_rate", "lr"])
def test_a_note_keeps_the_range_that_the_users_replaces_and_its_reason(name):
    own = {name: Parameter(low=0.03, high=3.0, scale="log")}
    _, spec = first_study_of_recipe(wish("pretrain", tokens=2_480_000_000, parameters=own))
    start = "Without your values, the recipe searches learning_rate from 5.81e-4 to 0.0093: "
    assert any(n.startswith(start) and "Step Law predicts 0.00232 for 124 million" in n for n in spec.notes)
    assert set(spec.notes) - set(recipe_notes(spec)) == {n for n in spec.notes if "training tokens. Set" in n}


def test_a_rate_under_another_name_is_not_there_twice():
    _, spec = first_study_of_recipe(wish("dpo", parameters={"lr": Parameter(low=1e-7, high=1e-6, scale="log")}))
    assert set(spec.searched) == {"lr", "beta"}
    with pytest.raises(AdvisorError, match="nothing is left to tune"):
        first_study_of_recipe(wish("sft", parameters={"learning_rate": Parameter(role="fixed", value=1e-5)}))


def test_the_metric_is_the_users():
    comment, spec = first_study_of_recipe(wish("grpo", metric="eval_accuracy", direction="maximize"))
    assert spec.objective.metric == "eval_accuracy"
    assert 'TuningCallback("eval_accuracy")' in comment


def test_the_formula_is_the_published_one():
    assert step_law_learning_rate(1e9, 1e11) == pytest.approx(1.79 * 1e9**-0.713 * 1e11**0.307)
    assert step_law_learning_rate(1e9, 1e11) == pytest.approx(1.63e-3, rel=0.01)
    assert step_law_batch_tokens(1e11) == pytest.approx(1.11e6, rel=0.01)


def test_the_rate_falls_with_the_model_and_rises_with_the_data():
    assert step_law_learning_rate(1e9, 1e10) < step_law_learning_rate(1e8, 1e10) < step_law_learning_rate(1e8, 1e11)


@pytest.mark.parametrize("tokens", [1, 1e6, 2.5e9, 1e13])
def test_the_batch_is_the_nearest_power_of_two(tokens):
    batch = step_law_batch_size(tokens)
    assert batch & (batch - 1) == 0
    assert batch == 1 or 2**-0.5 <= batch / step_law_batch_tokens(tokens) <= 2**0.5
