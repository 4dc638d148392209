"""The hyperparameters of an adapter, with configurations as PEFT's are; `test_callback_trl.py` uses PEFT itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from advisor_transformers.arguments import adapter_hyperparameters


def adapted(**settings: Any) -> SimpleNamespace:
    known = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": {"v_proj", "q_proj"}}
    return SimpleNamespace(peft_config={"default": SimpleNamespace(**known | settings)}, active_adapter="default")


def test_loras_settings_have_the_names_of_trls_command_line() -> None:
    assert adapter_hyperparameters(adapted(use_rslora=False, use_dora=True)) == {
        "lora_r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "lora_target_modules": "q_proj,v_proj",
        "use_dora": True,
    }


def test_paths_of_modules_become_their_kinds() -> None:
    paths = {"layers.0.mlp.up_proj", "layers.1.mlp.up_proj", "layers.0.attn.q_proj"}
    assert adapter_hyperparameters(adapted(target_modules=paths))["lora_target_modules"] == "q_proj,up_proj"
    assert adapter_hyperparameters(adapted(target_modules=".*_proj"))["lora_target_modules"] == ".*_proj"
    assert "lora_target_modules" not in adapter_hyperparameters(adapted(target_modules=None))


def test_models_without_a_lora_adapter_have_none() -> None:
    assert adapter_hyperparameters(SimpleNamespace()) == {}
    prompts = SimpleNamespace(peft_config={"default": SimpleNamespace(num_virtual_tokens=8)}, active_adapter="default")
    assert adapter_hyperparameters(prompts) == {}
    several = adapted()
    several.active_adapter = ["default"]
    assert adapter_hyperparameters(several) == {}
