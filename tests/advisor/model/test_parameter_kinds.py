"""What a hyperparameter is, by its name."""

from __future__ import annotations

import pytest

from advisor.model import parameter_kinds


@pytest.mark.parametrize("name", ["batch_size", "bs", "trainer.batchSize", "per_device_train_batch_size", "global_batch_size"])
def test_batch_sizes(name: str) -> None:
    assert parameter_kinds.is_batch_size(name)


@pytest.mark.parametrize("name", ["eval_batch_size", "val_bs", "batches", "batch_norm", "size", "auto_find_batch_size"])
def test_no_batch_sizes(name: str) -> None:
    assert not parameter_kinds.is_batch_size(name)


@pytest.mark.parametrize(
    "name",
    "dropout model/dropout_rate weight_decay label_smoothing l2 drop_path_rate wd dropout2 drop_out drop_rate stochastic_depth "
    "weightdecay attn_pdrop augmentation model.regularization reg_strength".split(),
)
def test_regularisers(name: str) -> None:
    assert parameter_kinds.is_regulariser(name)
    assert not parameter_kinds.belongs_to_optimizer(name)


@pytest.mark.parametrize("name", ["lr", "learning_rate_init", "beta1", "momentum", "warmup_steps", "grad_clip", "lr_decay"])
def test_of_the_optimizer(name: str) -> None:
    assert parameter_kinds.belongs_to_optimizer(name)
    assert not parameter_kinds.is_regulariser(name)


@pytest.mark.parametrize("name", ["depth", "n_units_1", "activation", "width", "regression", "drop_last"])
def test_of_the_model(name: str) -> None:
    assert not parameter_kinds.belongs_to_optimizer(name)
    assert not parameter_kinds.is_regulariser(name)


def test_which_optimizer() -> None:
    assert all(parameter_kinds.chooses_optimizer(n) for n in ("optimizer", "train.optimizer_name", "opt", "solver"))
    assert not any(parameter_kinds.chooses_optimizer(n) for n in ("opt_momentum", "lr", "algorithmic_flag", "optimizer.lr"))


SIZES = """depth num_layers model.n_layers hidden_size width kernel_size num_attention_heads d_model lora_r n_units mlp_ratio
embed_dim growth_rate patch_size model.widthFactor"""
OTHERS = """lr dropout hidden_dropout_prob stochastic_depth weight_decay batch_size num_epochs warmup_steps layer_norm_eps
freeze_layers head_loss_weight kernel_initializer num_workers tree_depth activation"""


@pytest.mark.parametrize("name", SIZES.split())
def test_sizes_of_the_model(name: str) -> None:
    assert parameter_kinds.is_architecture_size(name)


@pytest.mark.parametrize("name", OTHERS.split())
def test_no_sizes_of_the_model(name: str) -> None:
    assert not parameter_kinds.is_architecture_size(name)
