"""The hyperparameters of an adapter, with configurations as PEFT's are; `test_callback_trl.py` uses PEFT itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from transformers import PretrainedConfig

from advisor.model import parameter_kinds
from advisor.model.space import is_training_length
from advisor.model.usual_rates import starts_from_pretrained
from advisor_logging.limits import MAX_VALUE_CHARS
from advisor_transformers.arguments import TRL_HYPERPARAMETERS, adapter_hyperparameters, hyperparameters


def adapted(**settings: Any) -> SimpleNamespace:
    known = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.0}
    return SimpleNamespace(peft_config={"default": SimpleNamespace(**known | settings)}, active_adapters=["default"])


def test_loras_settings_have_the_names_of_trls_command_line() -> None:
    assert adapter_hyperparameters(adapted(use_rslora=False, use_dora=True)) == {
        "lora_r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "use_dora": True,
    }


def test_an_adapter_that_transformers_added_counts_as_well() -> None:
    """Its `active_adapters` is a method."""
    added = adapted(target_modules={"v_proj", "q_proj"})
    added.active_adapters = lambda: ["default"]
    assert adapter_hyperparameters(added)["lora_r"] == 8
    assert adapter_hyperparameters(added)["lora_target_modules"] == "q_proj v_proj"
    added.active_adapters = ["default"]
    added.peft_config["default"].target_modules = ".*attn.*"
    assert adapter_hyperparameters(added)["lora_target_modules"] == ".*attn.*"


def with_layers(**settings: Any) -> SimpleNamespace:
    """A model with two blocks, as PEFT wraps it."""
    model = adapted(**settings)
    paths = [f"base_model.model.layers.{i}.self_attn.{kind}" for i in range(2) for kind in ("q_proj", "v_proj")]
    model.named_modules = lambda: [(path, None) for path in ("", *paths, *(f"{path}.base_layer" for path in paths))]
    return model


def logged_targets(model: SimpleNamespace) -> object:
    return adapter_hyperparameters(model)["lora_target_modules"]


def test_layers_are_shortened_to_their_kinds_only_if_all_of_a_kind_are_adapted() -> None:
    first, second = "layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj"
    assert logged_targets(with_layers(target_modules=[first, second])) == "q_proj"
    assert logged_targets(with_layers(target_modules=[first])) == first
    assert logged_targets(with_layers(target_modules=[second])) == second
    assert logged_targets(with_layers(target_modules=["self_attn.q_proj"])) == "q_proj"
    assert logged_targets(adapted(target_modules=[second, first])) == f"{first} {second}"


def test_the_adapted_blocks_are_logged() -> None:
    some = adapter_hyperparameters(with_layers(target_modules=["q_proj"], layers_to_transform=[1]))
    assert (some["lora_target_modules"], some["lora_layers_to_transform"]) == ("q_proj", [1])
    assert adapter_hyperparameters(with_layers(layers_to_transform=0))["lora_layers_to_transform"] == 0


def test_long_lists_of_layers_are_cut_and_stay_different() -> None:
    names = [f"layers.{i}.self_attn.q_proj" for i in range(1000)]
    one, other = (str(logged_targets(adapted(target_modules=part))) for part in (names, [*names[:-1], "z"]))
    assert len(one) == len(other) == MAX_VALUE_CHARS
    assert one != other


def test_a_setting_that_an_adapter_lacks_is_left_out() -> None:
    bare = SimpleNamespace(peft_config={"default": SimpleNamespace(lora_alpha=16)}, active_adapters=["default"])
    assert adapter_hyperparameters(bare) == {"lora_alpha": 16}


def test_no_argument_of_trl_counts_as_the_length_the_batch_size_or_adams_epsilon() -> None:
    """A study that sets the length would change the algorithm."""
    for name in TRL_HYPERPARAMETERS:
        assert not is_training_length(name)
        assert not parameter_kinds.is_batch_size(name)
        assert name != "epsilon"


def test_the_pretrained_model_is_logged() -> None:
    """It tells that a training is a fine-tuning."""
    arguments = SimpleNamespace(max_steps=10, to_dict=lambda: {"learning_rate": 0.1})
    loaded = SimpleNamespace(config=PretrainedConfig(name_or_path="gpt2"))
    assert hyperparameters(arguments, loaded)["_name_or_path"] == "gpt2"
    assert starts_from_pretrained(hyperparameters(arguments, loaded))
    fresh = SimpleNamespace(config=PretrainedConfig())
    assert hyperparameters(arguments, fresh) == {"learning_rate": 0.1}


def test_models_without_a_lora_adapter_have_none() -> None:
    assert adapter_hyperparameters(SimpleNamespace()) == {}
    prompts = SimpleNamespace(peft_config={"default": SimpleNamespace(num_virtual_tokens=8)}, active_adapters=["default"])
    assert adapter_hyperparameters(prompts) == {}
    several = adapted()
    several.active_adapters = ["default", "other"]
    assert adapter_hyperparameters(several) == {}
