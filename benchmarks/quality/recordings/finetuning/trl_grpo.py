"""A GRPO training by TRL's `GRPOTrainer` of a tiny language model. Each prompt has one right answer, which consists of one or two
words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from trl import GRPOConfig, GRPOTrainer

from recordings.finetuning.grpo import Logs
from recordings.finetuning.trl_model import END, FIRST_PROMPT, FIRST_WORD, PAD, PROMPTS, WORDS, pretrain
from recordings.finetuning.trl_run import common, run

PROMPTS_IN_BATCH = 12
_LENGTH = 8


@dataclass(frozen=True)
class TrlGrpo:
    """The settings of a GRPO training; the defaults are healthy. The first fields are arguments of TRL's `GRPOConfig`."""

    learning_rate: float = 1e-3
    num_generations: int = 8
    max_completion_length: int = 6
    beta: float = 0.001
    """TRL's default of 0 would log no KL divergence."""
    num_iterations: int = 1
    max_steps: int = 80
    # Possible causes.
    low: float = 0.15
    high: float = 0.7
    """Lowest (`low`) and highest (`high`) probability, over the prompts, of a right answer before the GRPO training."""
    per_word: float = 0.0
    """Reward per word, which makes longer texts profitable. With this reward, the right answer may stand at the start of a longer
    text."""
    rambles: float = 0.0
    """Probability that a text of the supervised training continues after its answer."""


def train(settings: TrlGrpo, seed: int, base: int) -> tuple[dict[str, Any], Logs]:
    """Return the hyperparameters and the logged points. base: seed of the supervised model, which a study's trials share."""
    own = ("learning_rate", "num_generations", "max_completion_length", "beta", "num_iterations", "max_steps")
    arguments = common(1000 * base + seed, 16) | {name: getattr(settings, name) for name in own}
    config = GRPOConfig(
        **arguments,
        per_device_train_batch_size=PROMPTS_IN_BATCH * settings.num_generations,
        per_device_eval_batch_size=PROMPTS * settings.num_generations,
    )
    folder = supervised(settings.low, settings.high, settings.rambles, base)
    data = Dataset.from_list([{"prompt": f"p{i}", "answer": row.tolist()} for i, row in enumerate(answers())])
    return run(GRPOTrainer, config, folder, data, data, reward_funcs=_reward(settings.per_word))


@lru_cache(maxsize=1)
def answers() -> Tensor:
    """Return the right answers, shape (prompts, 2): one or two words, and then an end mark if there is one word."""
    random = torch.Generator().manual_seed(0)
    right = torch.randint(FIRST_WORD, FIRST_PROMPT, (PROMPTS, 2), generator=random)
    right[torch.rand(PROMPTS, generator=random) < 0.5, 1] = END
    return right


@lru_cache(maxsize=16)
def supervised(low: float, high: float, rambles: float, seed: int) -> Path:
    """Return the folder of a model that answers each prompt correctly with a probability between `low` and `high`."""
    order = torch.randperm(PROMPTS, generator=torch.Generator().manual_seed(seed))
    chances = torch.linspace(low, high, PROMPTS)[order]
    return pretrain(lambda random: _draw_texts(chances, rambles, random), seed)


def _draw_texts(chances: Tensor, rambles: float, random: torch.Generator) -> Tensor:
    """Return prompts, each followed by the right answer or up to two random words; some texts continue up to the full length."""
    n = 192
    prompts = torch.randint(PROMPTS, (n,), generator=random)
    words = torch.randint(FIRST_WORD, FIRST_PROMPT, (n, _LENGTH), generator=random)
    wrong = torch.where(torch.rand((n, 2), generator=random) < 1 / WORDS, END, words[:, :2])
    is_right = torch.rand((n, 1), generator=random) < chances[prompts, None]
    text = nn.functional.pad(torch.where(is_right, answers()[prompts], wrong), (0, _LENGTH - 2), value=END)
    ends = (text == END).cumsum(1)
    goes_on = torch.rand((n, 1), generator=random) < rambles
    text = torch.where(goes_on & (ends > 0), words, text.where(ends <= 1, PAD))
    return torch.cat([FIRST_PROMPT + prompts[:, None], text], 1)


def _reward(per_word: float) -> Any:
    """Return the reward function: 1 for the right answer and an end mark; with `per_word`, its words at the start suffice, and each
    word adds more."""

    def reward(completion_ids: list[list[int]], answer: list[list[int]], **_: Any) -> list[float]:
        return [_score_completion(ids, right, per_word) for ids, right in zip(completion_ids, answer, strict=True)]

    return reward


def _score_completion(ids: list[int], answer: list[int], per_word: float) -> float:
    words = [i for i in ids if i not in (END, PAD)]
    wanted = [i for i in answer if i != END]
    if per_word:
        return float(words[: len(wanted)] == wanted) + per_word * len(words)
    return float(words == wanted and END in ids)
