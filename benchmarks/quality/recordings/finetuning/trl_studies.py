"""The studies that TRL's trainers train: the same causes as in `studies`, with TRL's own logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from datasets import disable_progress_bars
from transformers.utils.logging import disable_progress_bar

from recordings.finetuning import trl_grpo, trl_sft
from recordings.finetuning.grpo import Logs
from recordings.finetuning.studies import POLICY, TunedStudy
from recordings.finetuning.trl_grpo import TrlGrpo
from recordings.finetuning.trl_sft import TrlDpo, TrlSft

_TRAIN = {TrlGrpo: trl_grpo.train, TrlSft: trl_sft.train_sft, TrlDpo: trl_sft.train_dpo}


@dataclass(frozen=True)
class TrlStudy(TunedStudy):
    """A study whose trials are trained by a trainer of TRL."""

    def trials(self, seed: int) -> list[tuple[Mapping[str, Any], Logs]]:
        return [_TRAIN[type(s)](s, i, seed) for i, s in enumerate(self.variants(seed))]


def studies() -> list[TunedStudy]:
    """Return all studies. The first call turns off the progress bars of Transformers and of the library `datasets`."""
    disable_progress_bars()
    disable_progress_bar()
    return [*_by_rewards(), *_by_examples()]


def _by_rewards() -> list[TunedStudy]:
    grpo, usual = TrlGrpo(), (5e-4, 3e-3)

    def study(
        name: str, cause: str, settings: TrlGrpo, fires: str = "", rates: tuple[float, float] = usual, accept: str = ""
    ) -> TrlStudy:
        return TrlStudy.of_policy(f"trl-grpo-{name}", cause, settings, rates, fires, accept)

    return [
        study("healthy", "nothing was switched on", grpo),
        study("small-groups", "groups of four completions", replace(grpo, num_generations=4)),
        study("penalty", "a KL penalty", replace(grpo, beta=0.04)),
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
            "rate-high", "a learning rate so high that the policy settles on its first answers", grpo, "entropy-collapse",
            (0.02, 0.05), "policy-jumps groups-without-advantage",
        ),
        study(
            "no-brake", "a high learning rate and many optimizer steps on each batch",
            replace(grpo, num_iterations=6, max_steps=132), "policy-jumps", (0.02, 0.08),
            "entropy-collapse groups-without-advantage",
        ),
        study(
            "length-pays", "the reward pays for each word", replace(grpo, per_word=0.2, max_completion_length=8),
            "completions-truncated", usual, "policy-jumps",
        ),
        study(
            "limit-short", "the limit is shorter than half of the right answers", replace(grpo, max_completion_length=2),
            "completions-truncated", (2e-4, 6e-4), "groups-without-advantage entropy-collapse",
        ),
    ]  # fmt: skip


def _by_examples() -> list[TunedStudy]:
    tuning = TrlSft()

    def study(name: str, cause: str, settings: TrlSft, *, forgets: bool) -> TrlStudy:
        rules = ("forgetting",)
        return TrlStudy(
            f"trl-sft-{name}", cause, settings, (1e-3, 5e-3), "eval_new_loss", "minimize",
            rules if forgets else (), () if forgets else rules,
        )  # fmt: skip

    return [
        study("new-order", "training only on texts in which other words follow each other", tuning, forgets=True),
        study("replay", "the same with half of the texts in the old order", replace(tuning, replay=0.5), forgets=False),
        study("old-order", "texts in which the usual words follow more often", replace(tuning, new_order=False), forgets=False),
        *_by_preferences(),
    ]  # fmt: skip


def _by_preferences() -> list[TunedStudy]:
    preferences, usual, high = TrlDpo(), (4e-4, 4e-3), (0.03, 0.08)
    rules = ("chosen-unlikely", "preferences-unlearned")

    def study(name: str, cause: str, settings: TrlDpo, rates: tuple[float, float], fires: str = "") -> TrlStudy:
        absent = (*POLICY, "forgetting", *(rule for rule in rules if rule != fires))
        return TrlStudy(
            f"trl-dpo-{name}", cause, settings, rates, "eval_rewards/accuracies", "maximize",
            (fires,) if fires else (), absent,
        )  # fmt: skip

    return [
        study("healthy", "preferences for right answers; nothing was switched on", preferences, usual),
        study("rate-low", "rates so low that the model hardly changes", preferences, (1e-8, 1e-6), "preferences-unlearned"),
        study(
            "rate-high", "a learning rate so high that preferred answers become unlikely", preferences, high, "chosen-unlikely",
        ),
        study(
            "beta-low", "a small beta and a high rate, so that preferred answers become unlikely", replace(preferences, beta=0.01),
            (0.015, 0.05), "chosen-unlikely",
        ),
        study("beta-high", "a large beta", replace(preferences, beta=0.5), usual),
        study(
            "preferred-loss", "high rates with the loss of the preferred answers, which prevents that they become unlikely",
            replace(preferences, preferred_loss=True), high,
        ),
    ]  # fmt: skip
