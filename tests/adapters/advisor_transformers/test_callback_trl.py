"""TRL's trainers with the callback: one added line, the same training to the bit, and a report on three runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM, TrainerCallback, set_seed

from advisor import analyze, contract
from advisor_transformers import TuningCallback
from advisor_transformers.arguments import adapter_hyperparameters
from tests.adapters.fixture_types import History, OnlyRun

trl = pytest.importorskip("trl")
peft = pytest.importorskip("peft")
datasets = pytest.importorskip("datasets")

pytestmark = pytest.mark.slow

OBJECTIVES = {
    "sft": "eval_loss",
    "lora": "eval_loss",
    "qlora": "eval_loss",
    "dpo": "eval_rewards/accuracies",
    "grpo": "eval_reward",
}
NO_4_BIT = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
KINDS = [pytest.param(kind, marks=NO_4_BIT if kind == "qlora" else ()) for kind in OBJECTIVES]
STEPS = 8
SUMS = [(a, b) for a in range(8) for b in range(8)]


class Logs(TrainerCallback):
    """Records the trainer's own log lines by step."""

    def __init__(self) -> None:
        self.lines: dict[int, dict[str, Any]] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **more: Any) -> None:
        self.lines.setdefault(state.global_step, {}).update(logs)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny language model of random weights, and a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    words = ["<pad>", "<eos>", "<unk>", *map(str, range(40)), *"+=."]
    words_of = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    words_of.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words_of, **marks).save_pretrained(folder)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(vocab_size=len(words), num_key_value_heads=2, max_position_embeddings=64, **size, **ids)
    ).save_pretrained(folder)
    return folder


def build(kind: str, base: Path, out: Path, callbacks: list[Any], **given: Any) -> Any:
    """Return a trainer for this kind of training."""
    known = {"max_steps": STEPS, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 3e-3}
    plain = {"use_cpu": True, "bf16": False, "disable_tqdm": True, "report_to": "none", "save_strategy": "no", "seed": 1}
    often = {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, "gradient_checkpointing": False}
    settings = {"output_dir": str(out), **known, **plain, **often, **given}
    prompts = [f"{a} + {b} =" for a, b in SUMS]
    model = LlamaForCausalLM.from_pretrained(base, **(four_bits() if kind == "qlora" else {}))
    if kind == "dpo":
        columns = {
            "prompt": prompts,
            "chosen": [f" {a + b} ." for a, b in SUMS],
            "rejected": [f" {a + b + 9} ." for a, b in SUMS],
        }
        trainer, config = trl.DPOTrainer, trl.DPOConfig(**settings, beta=0.2)
    elif kind == "grpo":
        columns = {"prompt": prompts}
        sampling = {"num_generations": 4, "max_completion_length": 5, "beta": 0.04}
        trainer, config = trl.GRPOTrainer, trl.GRPOConfig(**settings, **sampling)
    else:
        columns = {"text": [f"{a} + {b} = {a + b} ." for a, b in SUMS]}
        trainer, config = trl.SFTTrainer, trl.SFTConfig(**settings, max_length=16)
    data = datasets.Dataset.from_dict(columns)
    more: dict[str, Any] = {"reward_funcs": digits} if kind == "grpo" else {}
    if kind in ("lora", "qlora"):
        more["peft_config"] = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    set_seed(1)
    return trainer(model, args=config, train_dataset=data, eval_dataset=data.select(range(16)), callbacks=callbacks, **more)


def four_bits() -> dict[str, Any]:
    """Return the arguments that load a model with weights of four bits, as QLoRA does."""
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    return {"quantization_config": config, "device_map": "cpu"}


def digits(completions: list[str], **_: Any) -> list[float]:
    """Return the reward of each completion: the number of its words that are numbers."""
    return [float(sum(word.isdigit() for word in completion.split())) for completion in completions]


@pytest.fixture
def train(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that trains and returns the trainer."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(kind: str, callbacks: list[Any], **given: Any) -> Any:
        trainer = build(kind, base, tmp_path / "out", callbacks, **given)
        trainer.train()
        return trainer

    return run


WANTED_PARAMS = {
    "sft": {"max_length": "16", "packing": "False"},
    "lora": {"lora_r": "4", "lora_alpha": "8", "lora_dropout": "0.0", "max_length": "16"},
    "qlora": {"lora_r": "4", "lora_alpha": "8", "max_length": "16"},
    "dpo": {"beta": "0.2"},
    "grpo": {"beta": "0.04", "num_generations": "4", "max_completion_length": "5"},
}
WANTED_METRICS = {
    "sft": {"train/entropy", "train/num_tokens", "train/mean_token_accuracy"},
    "lora": {"train/entropy", "train/num_tokens"},
    "qlora": {"train/entropy", "train/num_tokens"},
    "dpo": {"train/rewards/margins", "train/rewards/accuracies", "eval_rewards/margins"},
    "grpo": {"train/reward", "train/kl", "train/entropy", "train/completions/mean_length", "train/frac_reward_zero_std"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_training_is_the_same_to_the_bit_and_logged_as_the_trainer_says(
    kind: str, train: Any, uri: str, only_run: OnlyRun, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    logs = Logs()
    plain = train(kind, []).model.state_dict()
    callbacks = [TuningCallback(OBJECTIVES[kind], experiment="test", tracking_uri=uri), logs]
    hooked = train(kind, callbacks).model.state_dict()
    assert plain.keys() == hooked.keys()
    assert all(torch.equal(plain[name], hooked[name]) for name in plain)
    run = only_run()
    own = {step - 1: line for step, line in logs.lines.items() if "loss" in line}
    assert list(own) == list(range(STEPS))
    for metric, name in ((contract.TRAIN_LOSS, "loss"), (contract.GRAD_NORM, "grad_norm")):
        wanted = {step: float(line[name]) for step, line in own.items()}
        assert history(run, metric) == pytest.approx(wanted, rel=1e-3, abs=1e-6), metric
    for metric in WANTED_METRICS[kind] - {"eval_rewards/margins"}:
        wanted = {step: line[metric.removeprefix("train/")] for step, line in own.items()}
        assert history(run, metric) == pytest.approx(wanted), metric
    assert WANTED_METRICS[kind] <= run.data.metrics.keys()
    assert list(history(run, OBJECTIVES[kind])) == [2, 4, 6, 8]
    assert {name: run.data.params.get(name) for name in WANTED_PARAMS[kind]} == WANTED_PARAMS[kind]
    if kind == "lora":
        assert "q_proj" in run.data.params["lora_target_modules"].split()
    tags = run.data.tags
    assert tags[contract.TAG_PRETRAINED] == "true"
    assert (tags[contract.TAG_SEED], tags[contract.TAG_MAX_TRAIN_STEPS], tags[contract.TAG_BATCH_SIZE]) == ("1", "8", "8")
    if kind in ("lora", "qlora"):
        assert contract.TAG_NORM_ORDER not in tags  # its norms are frozen, so the graph does not show them
    else:
        assert tags[contract.TAG_NORM_ORDER] == "pre-norm"
    assert [m for m in caplog.messages if m.startswith("advisor:")] == []


def test_an_adapter_of_the_model_itself_is_logged(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Transformers may ask for a later version of PEFT than the published ones.
    monkeypatch.setattr("transformers.integrations.peft.check_peft_version", lambda **_: None)
    model = LlamaForCausalLM.from_pretrained(base)
    assert adapter_hyperparameters(model) == {}
    model.add_adapter(peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
    wanted = {"lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "lora_target_modules": "q_proj v_proj"}
    assert adapter_hyperparameters(model) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_on_three_runs(kind: str, train: Any, uri: str) -> None:
    for rate in (3e-4, 3e-3, 3e-2):
        callback = TuningCallback(OBJECTIVES[kind], experiment="test", tracking_uri=uri)
        train(kind, [callback], learning_rate=rate, max_steps=24)
    report = analyze("test", tracking_uri=uri)
    assert report.spec.objective.metric == OBJECTIVES[kind]
    assert report.best is not None
    assert {v.rule for v in report.verdicts if v.status == "broken"} == set()
    policy = any("train a policy" in decision.text for decision in report.decisions)
    assert policy == (kind == "grpo")
