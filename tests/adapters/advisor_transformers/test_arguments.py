"""The hyperparameters of an adapter, with configurations as PEFT's are; `test_callback_trl.py` uses PEFT itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from advisor.model import parameter_kinds
from advisor.model.space import counts_training
from advisor_transformers.arguments import TRL_HYPERPARAMETERS, adapter_hyperparameters


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


def test_a_setting_that_an_adapter_lacks_is_left_out() -> None:
    bare = SimpleNamespace(peft_config={"default": SimpleNamespace(lora_alpha=16)}, active_adapters=["default"])
    assert adapter_hyperparameters(bare) == {"lora_alpha": 16}


def test_no_argument_of_trl_counts_as_the_length_the_batch_size_or_adams_epsilon() -> None:
    """A study that sets the length would change the algorithm."""
    for name in TRL_HYPERPARAMETERS:
        assert not counts_training(name)
        assert not parameter_kinds.is_batch_size(name)
        assert name != "epsilon"


def test_models_without_a_lora_adapter_have_none() -> None:
    assert adapter_hyperparameters(SimpleNamespace()) == {}
    prompts = SimpleNamespace(
        peft_config={"default": SimpleNamespace(num_virtual_tokens=8)}, active_adapters=["default"]
    )
    assert adapter_hyperparameters(prompts) == {}
    several = adapted()
    several.active_adapters = ["default", "other"]
    assert adapter_hyperparameters(several) == {}
