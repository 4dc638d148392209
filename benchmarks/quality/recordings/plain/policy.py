"""A hand-written PPO training on a cart-pole with 16 carts at once; a policy is evaluated by the share of poles that stay
upright."""

from __future__ import annotations

from typing import Any

import mlflow
import numpy as np
import torch
from torch import Tensor, nn

from advisor.model.space import FloatArray
from recordings.plain.common import log_uniform, mlp, uniform

TRIALS, UPDATES, CARTS, STEPS, LIMIT = 12, 50, 16, 48, 200


class Carts:
    """Independent cart-pole environments. An episode ends when the pole falls, when the cart leaves the track, or at the limit of
    steps."""

    def __init__(self, n: int, random: np.random.Generator) -> None:
        self.random = random
        self.state: FloatArray = random.uniform(-0.05, 0.05, (n, 4))
        self.age = np.zeros(n, dtype=int)

    def step(self, action: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Apply a push to the left (0) or right (1) to each cart; return which episodes ended, and their lengths (0 for those that
        did not end)."""
        _, v, angle, turn = self.state.T
        force = 20.0 * action - 10.0
        cos, sin = np.cos(angle), np.sin(angle)
        push = (force + 0.05 * turn**2 * sin) / 1.1
        turning = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        moving = push - 0.05 * turning * cos / 1.1
        self.state = self.state + 0.02 * np.stack([v, moving, turn, turning], 1)
        self.age += 1
        fell = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.21)
        done = fell | (self.age >= LIMIT)
        lengths = np.where(done, self.age, 0).astype(float)
        self.state[done] = self.random.uniform(-0.05, 0.05, (int(done.sum()), 4))
        self.age[done] = 0
        return done.astype(float), lengths


def ppo() -> dict[str, str]:
    random = np.random.default_rng(3)
    for number in range(TRIALS):
        params = {
            "learning_rate": log_uniform(random, 1e-4, 0.03),
            "clip_range": uniform(random, 0.1, 0.4),
            "ent_coef": log_uniform(random, 1e-4, 0.03),
            "gamma": uniform(random, 0.95, 0.995),
        }
        with mlflow.start_run():
            mlflow.log_params(params)
            train(params, number)
    return {}


def train(params: dict[str, float], seed: int) -> None:
    torch.manual_seed(seed)
    carts = Carts(CARTS, np.random.default_rng(seed))
    policy, value = mlp(4, 32, 2), mlp(4, 32, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], params["learning_rate"])
    for update in range(UPDATES):
        rollout = collect(policy, value, carts, params["gamma"])
        losses = [learn(policy, value, optimizer, rollout, params) for _ in range(8)]
        mlflow.log_metrics({name: float(np.mean([step[name] for step in losses])) for name in losses[0]}, step=update)
        if len(rollout["lengths"]):
            mlflow.log_metric("rollout/ep_len_mean", float(rollout["lengths"].mean()), step=update)
        if update % 2 == 1:
            mlflow.log_metric("success_rate", success_rate(policy, seed), step=update)


@torch.no_grad()
def collect(policy: nn.Module, value: nn.Module, carts: Carts, gamma: float) -> dict[str, Any]:
    """Make some steps in every cart; return states, actions, their log-probabilities, returns and advantages."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    ends, lengths = [], []
    for _ in range(STEPS):
        state = torch.tensor(carts.state, dtype=torch.float32)
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        done, ended = carts.step(action.numpy().astype(float))
        seen.append((state, action, choice.log_prob(action)))
        ends.append(torch.tensor(done, dtype=torch.float32))
        lengths.append(ended[ended > 0])
    states, actions, logs = (torch.stack(part) for part in zip(*seen, strict=True))
    later = value(torch.tensor(carts.state, dtype=torch.float32))[:, 0]
    returns = []
    for done in reversed(ends):
        later = 1 + gamma * later * (1 - done)
        returns.append(later)
    target = torch.stack(returns[::-1])
    gain = target - value(states)[..., 0]
    return {
        "states": states.reshape(-1, 4),
        "actions": actions.reshape(-1),
        "logs": logs.reshape(-1),
        "returns": target.reshape(-1),
        "gains": ((gain - gain.mean()) / (gain.std() + 1e-8)).reshape(-1),
        "lengths": np.concatenate(lengths),
    }


def learn(
    policy: nn.Module, value: nn.Module, optimizer: torch.optim.Optimizer, rollout: dict[str, Any], params: dict[str, float]
) -> dict[str, float]:
    """Make one optimizer step on a subset of the rollout's samples, and return the losses."""
    some = torch.randint(len(rollout["states"]), (256,))
    choice = torch.distributions.Categorical(logits=policy(rollout["states"][some]))
    gain, clip = rollout["gains"][some], params["clip_range"]
    change = choice.log_prob(rollout["actions"][some]) - rollout["logs"][some]
    ratio = change.exp()
    policy_loss = -torch.min(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean()
    value_loss = (value(rollout["states"][some])[:, 0] - rollout["returns"][some]).square().mean()
    entropy = choice.entropy().mean()
    optimizer.zero_grad()
    (policy_loss + 0.5 * value_loss - params["ent_coef"] * entropy).backward()
    optimizer.step()
    return {
        "policy_loss": policy_loss.item(),
        "value_loss": value_loss.item(),
        "entropy": entropy.item(),
        "approx_kl": -change.mean().item(),
    }


@torch.no_grad()
def success_rate(policy: nn.Module, seed: int) -> float:
    """Return the share of 40 episodes in which the pole stays upright until the limit of steps."""
    carts = Carts(40, np.random.default_rng(1000 + seed))
    upright = np.ones(40, dtype=bool)
    for _ in range(LIMIT - 1):
        action = policy(torch.tensor(carts.state, dtype=torch.float32)).argmax(1)
        done, _ = carts.step(action.numpy().astype(float))
        upright &= done == 0
        if not upright.any():
            break
    return float(upright.mean())
