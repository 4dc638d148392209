"""A hand-written GRPO training of a tiny language model. The training logs the metrics of TRL's `GRPOTrainer` under the same names.

Each prompt has one right answer, which consists of one or two words. Before GRPO, supervised training gives each right answer a
chosen probability.
"""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

PROMPTS, WORDS, END, MAX_LENGTH = 48, 12, 0, 8
MAX_RATIO = 3.0
"""Importance ratio above which TRL leaves a completion out of the loss by default."""
Logs = dict[str, list[tuple[int, float]]]
"""Logged points (step, value) of each metric."""


@dataclass(frozen=True)
class Grpo:
    """The settings of a GRPO training; the defaults are healthy."""

    learning_rate: float = 1e-3
    num_generations: int = 8
    prompts: int = 12
    """Number of prompts in a batch."""
    max_completion_length: int = 6
    beta: float = 0.0
    epsilon: float = 0.2
    num_iterations: int = 2
    """Number of optimizer steps for each batch of completions."""
    entropy_coef: float = 0.0
    temperature: float = 1.0
    max_steps: int = 100
    evaluate_every: int = 10
    # Possible causes.
    low: float = 0.15
    high: float = 0.7
    """Lowest (`low`) and highest (`high`) probability, over the prompts, of a right answer before the GRPO training."""
    per_word: float = 0.0
    """Reward per word, which makes longer texts profitable. With this reward, the right answer may stand at the start of a longer
    text."""
    noise: float = 0.0
    """Standard deviation of the noise added to the reward."""
    rambles: float = 0.0
    """Probability that a text of the supervised training continues after its answer."""
    engine_bits: int | None = None
    """Precision in bits of the weights of the inference engine that samples: 32, 16 (bfloat16), or less for multiples of a unit
    derived from the largest absolute weight. None: the trainer samples the completions itself, and no mismatch is logged."""
    engine_temperature: float = 1.0
    sync_every: int = 1
    """Number of batches of completions after which the inference engine copies the trainer's weights."""
    corrects: bool = True
    """Whether the loss is multiplied by importance ratios, as TRL does by default; otherwise, the mismatch is logged but not
    corrected."""


class Model(nn.Module):
    """A language model whose inputs are the prompt, the previous word and the word's position. Each prompt is one token, which no
    other prompt uses."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.prompt, self.word, self.place = (nn.Embedding(n, width) for n in (PROMPTS, WORDS, MAX_LENGTH))
        self.body = nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, WORDS))

    def forward(self, prompts: Tensor, previous: Tensor, places: Tensor) -> Tensor:
        """Return the logits of the next words at these positions; all arguments have the same shape."""
        logits: Tensor = self.body(self.prompt(prompts) + self.word(previous) + self.place(places))
        return logits

    def logits(self, prompts: Tensor, words: Tensor) -> Tensor:
        """Return the logits at each position of the completions (n, length), shape (n, length, words)."""
        previous = nn.functional.pad(words[:, :-1], (1, 0), value=END)
        places = torch.arange(words.shape[1]).expand_as(words)
        return self.forward(prompts[:, None].expand_as(words), previous, places)


class Rollout(NamedTuple):
    prompts: Tensor
    words: Tensor
    mask: Tensor
    """True for the words up to and including the end mark, shape (n, length)."""
    truncated: Tensor


@lru_cache(maxsize=1)
def answers() -> Tensor:
    """Return the right answers, shape (prompts, 3): one or two words, followed by end marks."""
    random = torch.Generator().manual_seed(0)
    right = torch.randint(1, WORDS, (PROMPTS, 3), generator=random)
    right[:, 2] = END
    right[torch.rand(PROMPTS, generator=random) < 0.5, 1] = END
    return right


@lru_cache(maxsize=8)
def supervised(low: float, high: float, rambles: float, length: int, seed: int) -> Model:
    """Return a model that answers each prompt correctly with a probability between `low` and `high`."""
    torch.manual_seed(seed)
    model, right = Model(), answers()
    chances = torch.linspace(low, high, PROMPTS)[torch.randperm(PROMPTS)]
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(250):
        prompts = torch.randint(PROMPTS, (192,))
        is_right = torch.rand(192) < chances[prompts]
        texts = torch.where(is_right[:, None], right[prompts], torch.randint(0, WORDS, (192, 3)))
        texts = nn.functional.pad(texts, (0, max(length - 3, 0)), value=END)[:, :length]
        ended = torch.cumsum(texts == END, 1)
        goes_on = (torch.rand(192) < rambles)[:, None] & (ended > 0)
        texts = torch.where(goes_on, torch.randint(1, WORDS, texts.shape), texts)
        mask = goes_on | (ended <= 1)
        loss = nn.functional.cross_entropy(model.logits(prompts, texts).transpose(1, 2), texts, reduction="none")
        optimizer.zero_grad()
        ((loss * mask).sum() / mask.sum()).backward()
        optimizer.step()
    return model


@torch.no_grad()
def sample(model: Model, prompts: Tensor, settings: Grpo) -> Rollout:
    previous, words = torch.full_like(prompts, END), []
    for place in range(settings.max_completion_length):
        logits = model(prompts, previous, torch.full_like(prompts, place))
        previous = torch.multinomial((logits / settings.temperature).softmax(1), 1)[:, 0]
        words.append(previous)
    text = torch.stack(words, 1)
    ended = torch.cumsum(text == END, 1)
    return Rollout(prompts, text, ended - (text == END).int() == 0, ended[:, -1] == 0)


class Engine:
    """An inference engine alongside the trainer, whose policy may differ from that of the trainer."""

    def __init__(self, settings: Grpo) -> None:
        self._settings = settings
        self._batches = 0

    def sample(self, model: Model, prompts: Tensor) -> Rollout:
        """Copy the trainer's weights if a copy is due, and sample completions."""
        if self._settings.engine_bits is None:
            return sample(model, prompts, self._settings)
        if self._batches % self._settings.sync_every == 0:
            self._model = _rounded(model, self._settings.engine_bits)
        self._batches += 1
        return sample(self._model, prompts, replace(self._settings, temperature=self._settings.engine_temperature))

    @torch.no_grad()
    def mismatch(self, model: Model, rollout: Rollout) -> tuple[Tensor, dict[str, float]]:
        """Return the factors of the completions' losses, shape (n, 1), and TRL's metrics of the mismatch between engine and
        trainer."""
        if self._settings.engine_bits is None:
            return torch.ones(len(rollout.words), 1), {}
        own = _log_policy(model, rollout, self._settings.temperature)
        sampled = _log_policy(self._model, rollout, self._settings.engine_temperature)
        chosen = rollout.words[..., None]
        differences = (own - sampled).gather(2, chosen)[..., 0] * rollout.mask
        ratios = differences.sum(1, keepdim=True).exp()
        ratios = torch.where(ratios > MAX_RATIO, 0.0, ratios)
        metrics = {
            "train/sampling/sampling_logp_difference/mean": (differences.abs().sum() / rollout.mask.sum()).item(),
            "train/sampling/importance_sampling_ratio/mean": ratios.mean().item(),
        }
        return ratios if self._settings.corrects else torch.ones_like(ratios), metrics


def _rounded(model: Model, bits: int) -> Model:
    copy = deepcopy(model)
    if bits == 16:
        return copy.bfloat16()
    if bits < 16:
        with torch.no_grad():
            for weights in copy.parameters():
                unit = weights.abs().max() / (2 ** (bits - 1) - 1)
                weights.copy_((weights / unit).round() * unit)
    return copy


def _log_policy(model: Model, rollout: Rollout, temperature: float) -> Tensor:
    """Return the log probabilities of all words at each position, shape (n, length, words)."""
    return (model.logits(rollout.prompts, rollout.words).float() / temperature).log_softmax(2)


def rewards(rollout: Rollout, settings: Grpo) -> Tensor:
    """Return the reward of each completion: 1 if it is the right answer and an end mark, plus the terms that `settings` add."""
    texts = nn.functional.pad(rollout.words * rollout.mask, (0, 3), value=END)[:, :3]
    wanted = answers()[rollout.prompts]
    if settings.per_word:
        right = ((texts == wanted) | (wanted == END)).all(1)
    else:
        right = (texts == wanted).all(1) & ~rollout.truncated & (rollout.mask.sum(1) <= 3)
    lengths = (rollout.mask & (rollout.words != END)).sum(1)
    return right + settings.per_word * lengths + settings.noise * torch.randn(len(right))


def train(settings: Grpo, seed: int, base: int = 0) -> Logs:
    """Train and return the logged points. base: seed of the supervised model, which all trials of a study share."""
    reference = supervised(settings.low, settings.high, settings.rambles, settings.max_completion_length, base)
    torch.manual_seed(1000 * base + seed)
    model, logs = deepcopy(reference), defaultdict(list)
    optimizer, engine = torch.optim.Adam(model.parameters(), settings.learning_rate), Engine(settings)
    for step in range(1, settings.max_steps + 1):
        prompts = torch.randperm(PROMPTS)[: settings.prompts].repeat_interleave(settings.num_generations)
        rollout = engine.sample(model, prompts)
        factors, mismatch = engine.mismatch(model, rollout)
        reward = rewards(rollout, settings)
        groups = reward.view(-1, settings.num_generations)
        deviation = groups.std(1, keepdim=True)
        advantage = ((groups - groups.mean(1, keepdim=True)) / (deviation + 1e-4)).flatten()
        values = mismatch | train_on_rollout(model, reference, optimizer, rollout, advantage, factors, settings)
        values |= {
            "train/reward": reward.mean().item(),
            "train/reward_std": reward.std().item(),
            "train/frac_reward_zero_std": (deviation < 1e-6).float().mean().item(),
            "train/completions/mean_length": rollout.mask.sum(1).float().mean().item(),
            "train/completions/clipped_ratio": rollout.truncated.float().mean().item(),
        }
        if step % settings.evaluate_every == 0:
            values["eval_reward"] = evaluate(model, settings)
        for name, value in values.items():
            logs[name].append((step, value))
    return dict(logs)


def train_on_rollout(
    model: Model,
    reference: Model,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    advantage: Tensor,
    factors: Tensor,
    settings: Grpo,
) -> dict[str, float]:
    """Make the optimizer steps for one batch, and return TRL's metrics of the last step. factors: factors of the losses, shape (n,
    1)."""
    mask, count = rollout.mask.float(), rollout.mask.sum()

    def of_words(of: Model) -> tuple[Tensor, Tensor]:
        logs = _log_policy(of, rollout, settings.temperature)
        return logs.gather(2, rollout.words[..., None])[..., 0], -(logs.exp() * logs).sum(2)

    with torch.no_grad():
        expected = of_words(reference)[0]
    old = None
    for _ in range(settings.num_iterations):
        chosen, entropy = of_words(model)
        old = chosen.detach() if old is None else old
        ratio, gain = (chosen - old).exp(), advantage[:, None]
        clipped = ratio.clamp(1 - settings.epsilon, 1 + settings.epsilon)
        kl = (expected - chosen).exp() - (expected - chosen) - 1
        loss = -torch.min(ratio * gain, clipped * gain) * factors - settings.entropy_coef * entropy
        if settings.beta:  # for a policy far from the reference, the KL divergence is infinite
            loss = loss + settings.beta * kl
        optimizer.zero_grad()
        ((loss * mask).sum() / count).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    outside = ((ratio < 1 - settings.epsilon) & (gain < 0)) | ((ratio > 1 + settings.epsilon) & (gain > 0))
    return {
        "train/entropy": ((entropy * mask).sum() / count).item(),
        "train/kl": ((kl * mask).sum() / count).item(),
        "train/clip_ratio/region_mean": ((outside * mask).sum() / count).item(),
        "train/grad_norm": norm.item(),
    }


def evaluate(model: Model, settings: Grpo) -> float:
    """Return the mean reward over eight completions of each prompt."""
    rollout = sample(model, torch.arange(PROMPTS).repeat_interleave(8), settings)
    return rewards(rollout, settings).mean().item()
