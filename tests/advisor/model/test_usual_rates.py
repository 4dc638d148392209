"""Usual learning rates by optimizer and for fine-tuning."""

import pytest
from studies import make_study

from advisor.model import usual_rates
from advisor.model.optimizers import HYPERPARAMETERS_BY_OPTIMIZER
from advisor.planning.recipes.recipe import read_recipe


@pytest.mark.parametrize(
    ("name", "training", "high"),
    [("SGD", "SGD", 1.0), ("torch.optim.AdamW", "AdamW", 0.03), ("adamw_torch", "AdamW", 0.03), ("lion", "Lion", 3e-3)],
)
def test_the_name_of_an_optimizer_gives_its_rates(name: str, training: str, high: float) -> None:
    found = usual_rates.rates_of_optimizer(name)
    assert found is not None
    assert (found.training, found.high) == (training, high)


def test_unknown_optimizers_have_no_usual_rates() -> None:
    assert usual_rates.rates_of_optimizer("shampoo") is None


@pytest.mark.parametrize(
    ("params", "fine_tunes"),
    [
        ({"pretrained": "True"}, True),
        ({"pretrained": "False"}, False),
        ({"model_name_or_path": "bert-base-uncased"}, True),
        ({"lora_r": "8"}, True),
        ({"experiment": "finetune-bert"}, True),
        ({"model": "resnet50", "lr": "0.1"}, False),
    ],
)
def test_fine_tuning_shows_in_logged_parameters(params: dict[str, str], fine_tunes: bool) -> None:
    assert usual_rates.starts_from_pretrained(params) is fine_tunes


@pytest.mark.parametrize("optimizer", HYPERPARAMETERS_BY_OPTIMIZER)
def test_a_first_study_searches_no_unusual_rates(optimizer: str) -> None:
    usual, rate = usual_rates.rates_of_optimizer(optimizer), HYPERPARAMETERS_BY_OPTIMIZER[optimizer][0]
    assert usual is not None
    assert usual.low <= rate.low < rate.high <= usual.high


def test_a_quick_look_at_the_text_misses_no_word_for_fine_tuning() -> None:
    for words in [*({w} for w in usual_rates._PRETRAINED_WORDS), *usual_rates._PRETRAINED_WORD_PAIRS]:
        assert usual_rates.starts_from_pretrained({"-".join(sorted(words)).upper(): "x"})


@pytest.mark.parametrize(
    ("params", "adapter"),
    [
        ({"lora_r": "8"}, True),
        ({"use_peft": "True"}, True),
        ({"use_peft": "False", "model_name_or_path": "m"}, False),
        ({"model_name_or_path": "m"}, False),
    ],
)
def test_adapters_show_in_logged_parameters(params: dict[str, str], adapter: bool) -> None:
    assert usual_rates.trains_adapter(params) is adapter


@pytest.mark.parametrize(("recipe", "facts"), [("sft", {}), ("dpo", {}), ("grpo", {}), ("lora", {"adapter": "true"})])
def test_a_recipe_searches_the_usual_rates_of_its_weights(recipe: str, facts: dict[str, str]) -> None:
    study = make_study([{"lr": 1e-5}], {"val/loss": [[1.0]]}, tags=[facts])
    usual, rate = usual_rates.fine_tuning_rates(study), read_recipe(recipe)[1].parameters["learning_rate"]
    assert rate.low is not None
    assert rate.high is not None
    assert usual.low <= rate.low < rate.high <= usual.high
