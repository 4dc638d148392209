"""Supervised fine-tuning and DPO of tiny language models by TRL's trainers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from recordings.finetuning import trl_grpo
from recordings.finetuning.grpo import Logs
from recordings.finetuning.trl_model import END, FIRST_PROMPT, FIRST_WORD, PROMPTS, WORDS, pretrain, text
from recordings.finetuning.trl_run import common, run

_LENGTH = 10


@dataclass(frozen=True)
class TrlSft:
    """The settings of fine-tuning on new texts, with evaluations on new and old texts."""

    learning_rate: float = 1e-3
    new_order: bool = True
    """Whether words have different successors in new texts; otherwise, the usual successors are more frequent."""
    replay: float = 0.0
    """Share of old texts in the training data of the fine-tuning."""
    max_steps: int = 120


@dataclass(frozen=True)
class TrlDpo:
    """The settings of a training by preferences: the right answer is the chosen one, and a wrong answer is rejected."""

    learning_rate: float = 1e-3
    beta: float = 0.1
    preferred_loss: bool = False
    """Whether the loss of the preferred answers is added."""
    max_steps: int = 60


def train_sft(settings: TrlSft, seed: int, base: int) -> tuple[dict[str, Any], Logs]:
    """Return the hyperparameters and the logged points. base: seed of the pretrained model, which a study's trials share."""
    random, rows = torch.Generator().manual_seed(base), 16 * settings.max_steps
    old, new = Order(), Order(seed=1, mark=1) if settings.new_order else Order(mark=1, usual=0.97)
    count = round(rows * settings.replay)
    mixed = torch.cat([texts(old, count, random), texts(new, rows - count, random)])
    valid = {"new": texts(new, 64, random), "old": texts(old, 64, random)}
    config = SFTConfig(
        **common(1000 * base + seed, 10),
        learning_rate=settings.learning_rate,
        max_steps=settings.max_steps,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=64,
    )
    sets = {name: _make_dataset(rows) for name, rows in valid.items()}
    return run(SFTTrainer, config, pretrained(base), _make_dataset(mixed), sets)


def train_dpo(settings: TrlDpo, seed: int, base: int) -> tuple[dict[str, Any], Logs]:
    """Return the hyperparameters and the logged points. base: seed of the supervised model, which a study's trials share."""
    random = torch.Generator().manual_seed(base)
    right = trl_grpo.answers().repeat(8, 1)
    wrong = right[torch.randperm(len(right), generator=random)]
    rows = [
        {"prompt": f"p{i % PROMPTS} ", "chosen": text(a), "rejected": text(b)}
        for i, (a, b) in enumerate(zip(right, wrong, strict=True))
        if not torch.equal(a, b)
    ]
    config = DPOConfig(
        **common(1000 * base + seed, 10),
        learning_rate=settings.learning_rate,
        beta=settings.beta,
        loss_type=["sigmoid", *["sft"] * settings.preferred_loss],
        max_steps=settings.max_steps,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=64,
    )
    train, valid = Dataset.from_list(rows[:-64]), Dataset.from_list(rows[-64:])
    return run(DPOTrainer, config, trl_grpo.supervised(0.15, 0.7, 0.0, base), train, valid)


@lru_cache(maxsize=4)
def pretrained(seed: int) -> Path:
    """Return the folder of a model that has learned the old order of words, after any first token."""

    def old(random: torch.Generator) -> Tensor:
        rows = nn.functional.pad(texts(Order(), 96, random), (0, 1), value=END)
        rows[:, 0] = torch.randint(FIRST_PROMPT, FIRST_PROMPT + PROMPTS, (len(rows),), generator=random)
        return rows

    return pretrain(old, seed)


@dataclass(frozen=True)
class Order:
    """The order of words in texts: each word is usually followed by one of two other words."""

    seed: int = 0
    """Seed of the two usual successors of each word."""
    mark: int = 0
    """Number of the prompt that is the first token of each text."""
    usual: float = 0.9
    """Probability that a word is followed by one of its two usual successors instead of any word."""


def texts(order: Order, count: int, random: torch.Generator) -> Tensor:
    """Return texts, shape (count, length)."""
    pairs = torch.rand((WORDS, WORDS), generator=torch.Generator().manual_seed(order.seed)).argsort(1)[:, :2]
    follow = torch.full((WORDS, WORDS), (1 - order.usual) / WORDS)
    follow.scatter_add_(1, pairs, order.usual * torch.tensor([[2 / 3, 1 / 3]]).expand(WORDS, 2))
    rows = torch.full((count, _LENGTH), FIRST_PROMPT + order.mark)
    words = torch.randint(WORDS, (count,), generator=random)
    for place in range(1, _LENGTH if count else 0):
        rows[:, place] = FIRST_WORD + words
        words = torch.multinomial(follow[words], 1, generator=random)[:, 0]
    return rows


def _make_dataset(rows: Tensor) -> Dataset:
    return Dataset.from_list([{"text": text(row)} for row in rows])
