"""The fine-tuning studies, their causes, and the rules that should or should not fire on each study.

Each study can be trained with several seeds: `finetuning.py` measures the rules on seeds on which no rule was developed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from worlds.world import Store

from advisor.model.spec import Direction
from advisor.tracking.runs import Experiment
from recordings.finetuning import forgetting, grpo
from recordings.finetuning.forgetting import FineTuning
from recordings.finetuning.grpo import Grpo, Logs

TRIALS = 3
POLICY = ("groups-without-advantage", "entropy-collapse", "policy-jumps", "completions-truncated", "rollout-mismatch")
"""Rules about training by rewards, which all studies of policies check."""


@dataclass(frozen=True)
class TunedStudy:
    """A fine-tuning study of several learning rates."""

    name: str
    cause: str
    """Description of the cause that is switched on in the study."""
    settings: Any
    """Settings of one training, with a field `learning_rate`."""
    rates: tuple[float, float]
    """Lowest and highest learning rate of the study."""
    objective: str
    direction: Direction
    fires: tuple[str, ...] = ()
    """Rules that must fire on the study."""
    quiet: tuple[str, ...] = ()
    """Rules that must not fire on the study."""
    accept: tuple[str, ...] = ()
    """Rules that may also fire, because the cause has several effects."""

    @classmethod
    def of_policy(
        cls, name: str, cause: str, settings: Any, rates: tuple[float, float], fires: str = "", accept: str = ""
    ) -> Self:
        """Return a study of a policy. fires, accept: rule ids, separated by blanks; other rules about policies must not fire."""
        wanted, allowed = tuple(fires.split()), tuple(accept.split())
        quiet = tuple(rule for rule in POLICY if rule not in (*wanted, *allowed))
        return cls(name, cause, settings, rates, "eval_reward", "maximize", wanted, quiet, allowed)

    def variants(self, seed: int) -> list[Any]:
        """Return the settings of each trial of the study."""
        random = np.random.default_rng([seed, *self.name.encode()])
        low, high = np.log(self.rates)
        rates = [float(np.exp(low + (high - low) * (i + random.random()) / TRIALS)) for i in range(TRIALS)]
        return [replace(self.settings, learning_rate=float(f"{rate:.3g}")) for rate in rates]

    def trials(self, seed: int) -> list[tuple[Mapping[str, Any], Logs]]:
        """Train the trials, and return the hyperparameters and the logged points of each trial."""
        return [(params(s), train(s, i, seed)) for i, s in enumerate(self.variants(seed))]

    def experiment(self, seed: int) -> Experiment:
        """Train the trials and return their logs as an experiment."""
        store = Store(self.name)
        for hyperparameters, logs in self.trials(seed):
            metrics = {name: ([step for step, _ in curve], [value for _, value in curve]) for name, curve in logs.items()}
            store.log(hyperparameters, metrics)
        return store.experiment()


def train(settings: Grpo | FineTuning, seed: int, base: int) -> Logs:
    return grpo.train(settings, seed, base) if isinstance(settings, Grpo) else forgetting.train(settings, seed, base)


def params(settings: Grpo | FineTuning) -> dict[str, Any]:
    """Return the hyperparameters that a training script would log."""
    names = ["learning_rate", "max_steps"]
    if isinstance(settings, FineTuning):
        return {name: getattr(settings, name) for name in names} | {"base_model": "digits-mlp"}
    names += ["num_generations", "max_completion_length", "beta", "epsilon", "num_iterations", "temperature"]
    return {name: getattr(settings, name) for name in names}


def studies() -> list[TunedStudy]:
    """Return all studies."""
    return [*_reward_studies(), *_supervised_studies()]


def _reward_studies() -> list[TunedStudy]:
    grpo, usual = Grpo(), (7e-4, 5e-3)

    def study(
        name: str, cause: str, settings: Grpo, fires: str = "", rates: tuple[float, float] = usual, accept: str = ""
    ) -> TunedStudy:
        return TunedStudy.of_policy(f"grpo-{name}", cause, settings, rates, fires, accept)

    return [
        study("healthy", "nothing was switched on", grpo),
        study("small-groups", "groups of four completions", replace(grpo, num_generations=4)),
        study("penalty", "a KL penalty", replace(grpo, beta=0.04)),
        study("noisy-reward", "noise in the reward", replace(grpo, noise=0.5)),
        study(
            "solved", "the task is easy to learn: the policy settles at full reward", replace(grpo, low=0.3, high=0.9),
            rates=(2e-3, 6e-3),
        ),
        study("rambling-start", "many completions are cut off at first, and the policy learns to stop", replace(grpo, rambles=0.6)),
        study(
            "prompts-hard", "nearly no completion is right at first, and groups are small",
            replace(grpo, low=0.002, high=0.02, num_generations=4), "groups-without-advantage",
        ),
        study(
            "prompts-easy", "nearly every completion is right at first", replace(grpo, low=0.96, high=0.998, num_generations=4),
            "groups-without-advantage",
        ),
        study(
            "rate-high", "a learning rate so high that the policy settles on its first answers", replace(grpo, max_steps=160),
            "entropy-collapse",
            (0.025, 0.05), "policy-jumps groups-without-advantage",
        ),
        study(
            "no-brake", "a high learning rate and many optimizer steps on each batch", replace(grpo, num_iterations=6),
            "policy-jumps", (0.02, 0.08), "entropy-collapse groups-without-advantage",
        ),
        study(
            "length-pays", "the reward pays for each word", replace(grpo, per_word=0.2, max_completion_length=8),
            "completions-truncated", (2e-3, 6e-3), "policy-jumps",
        ),
        study(
            "limit-short", "the limit is shorter than half of the right answers", replace(grpo, max_completion_length=2),
            "completions-truncated", rates=(3e-4, 8e-4), accept="groups-without-advantage entropy-collapse",
        ),
        *_engine_studies(study),
    ]  # fmt: skip


def _engine_studies(study: Callable[..., TunedStudy]) -> list[TunedStudy]:
    engine, any_effect = replace(Grpo(), engine_bits=16), "entropy-collapse policy-jumps"

    def apart(name: str, cause: str, settings: Grpo) -> TunedStudy:
        return study(f"engine-{name}", cause, settings, "rollout-mismatch", accept=any_effect)

    return [
        study("engine", "an engine samples in bfloat16", engine),
        study("engine-int6", "an engine samples with weights of 6 bits", replace(engine, engine_bits=6)),
        study("engine-behind", "the engine gets new weights every 4 batches", replace(engine, sync_every=4)),
        apart("int3", "an engine samples with weights of 3 bits", replace(engine, engine_bits=3)),
        apart("int3-uncorrected", "the same without importance ratios", replace(engine, engine_bits=3, corrects=False)),
        apart("forgotten", "the engine never gets new weights", replace(engine, sync_every=10**6)),
        apart("forgotten-uncorrected", "the same without importance ratios", replace(engine, sync_every=10**6, corrects=False)),
        apart("cold", "the engine samples at a temperature of 0.5", replace(engine, engine_temperature=0.5)),
    ]  # fmt: skip


def _supervised_studies() -> list[TunedStudy]:
    tuning = FineTuning()

    def study(name: str, cause: str, settings: FineTuning, *, forgets: bool) -> TunedStudy:
        rules = ("forgetting",)
        return TunedStudy(
            f"tuned-{name}", cause, settings, (4e-4, 4e-3), "eval_new_accuracy", "maximize",
            rules if forgets else (), () if forgets else rules,
        )  # fmt: skip

    return [
        study("turned", "training on turned digits only, which the old features do not fit", tuning, forgets=True),
        study("replay", "the same with half of each batch from the old digits", replace(tuning, replay=0.5), forgets=False),
        study("noisy", "training on noisy digits, which need the old features", replace(tuning, turned=False), forgets=False),
    ]  # fmt: skip
