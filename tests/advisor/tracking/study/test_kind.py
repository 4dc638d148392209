"""The kind of workload, from the names that real tools and trainings log."""

from __future__ import annotations

import mlflow
import numpy as np
import pytest
from studies import make_study

from advisor.analysis import analyze_study
from advisor.engine.registry import load_rules
from advisor.model.reading import Reading, WorkloadKind
from advisor.model.study import Study
from advisor.tracking.runs import Experiment, Points, Run
from advisor.tracking.stores.reading import read_experiment
from advisor.tracking.study.assemble import assemble

FALL = [1.0, 0.5, 0.4, 0.3]


def study(*metrics: str, objective: str, direction: str = "maximize", **params: str) -> Study:
    curves = {m: [FALL, FALL] for m in (objective, *metrics)}
    settings = [{"lr": 0.1, **params}, {"lr": 0.2, **params}]
    return make_study(settings, curves, objective=objective, direction=direction)


METRICS: dict[str, tuple[WorkloadKind, tuple[str, ...]]] = {
    "policy gradient": ("reinforcement-learning", ("success_rate", "policy_loss", "value_loss", "entropy")),
    "Stable-Baselines3": (
        "reinforcement-learning",
        ("score", "rollout/ep_len_mean", "train/value_loss", "train/clip_fraction"),
    ),
    "actor and critic": ("reinforcement-learning", ("win_rate", "loss/actor_loss", "loss/critic_loss")),
    "CleanRL": ("reinforcement-learning", ("charts/episodic_return", "losses/pg_loss", "losses/v_loss")),
    "GAN": ("gan", ("fid", "g_loss", "d_loss")),
    "CycleGAN": ("gan", ("fid", "loss_G", "loss_D_real")),
    "SimCLR": ("self-supervised", ("knn_top1", "train_loss")),
    "probe": ("self-supervised", ("val/linear_probe_accuracy", "loss")),
    "diffusion": ("diffusion", ("fid", "train/eps_loss")),
    "language model": ("language-model", ("val_perplexity", "train_loss", "tokens_seen")),
    "classifier": ("supervised", ("val_accuracy", "train_loss", "val_entropy")),
    "segmentation": ("supervised", ("val/iou", "train/ce_loss", "train/dice_loss")),
    "preferences": ("supervised", ("eval_rewards/accuracies", "train/loss", "rewards/margins")),
    "preferences by TRL": (
        "language-model",
        ("eval_rewards/accuracies", "eval_entropy", "eval_rewards/chosen", "train/rewards/rejected", "train/num_tokens"),
    ),
    "rewards of completions": ("reinforcement-learning", ("eval_loss", "train/reward", "train/entropy")),
    "variational autoencoder": ("supervised", ("val/elbo", "train/kl_loss", "train/recon_loss")),
    "meta-learning": ("supervised", ("val_accuracy", "train_loss", "value_of_shots")),
    "nothing known": ("unknown", ("final_result",)),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_show_the_kind(name: str) -> None:
    kind, (objective, *others) = METRICS[name]
    found = study(*others, objective=objective)
    assert found.kind == kind
    assert all(d.overrule == "--kind supervised" for d in found.decisions)
    assert bool(found.decisions) == (kind in ("reinforcement-learning", "gan", "self-supervised"))


PARAMS: dict[str, tuple[WorkloadKind, dict[str, str]]] = {
    "trees": ("no-network", {"num_leaves": "31", "n_estimators": "200"}),
    "algorithm": ("reinforcement-learning", {"algo": "PPO", "env_id": "CartPole-v1"}),
    "method": ("self-supervised", {"method": "byol"}),
    "schedule": ("diffusion", {"noise_schedule": "cosine"}),
    "a network with depth": ("supervised", {"max_depth": "3", "width": "64"}),
}


@pytest.mark.parametrize("name", PARAMS)
def test_parameters_show_the_kind(name: str) -> None:
    kind, params = PARAMS[name]
    assert study(objective="val_accuracy", **params).kind == kind


def test_a_reward_as_the_objective_is_enough() -> None:
    names = ("episode_reward", "eval/mean_return", "rollout/ep_rew_mean", "episodeReturn")
    assert all(study(objective=name).kind == "reinforcement-learning" for name in names)
    for name in ("val/accuracy", "eval_rewards/accuracies", "score"):
        assert study(objective=name).kind != "reinforcement-learning"


def test_the_user_overrules_it() -> None:
    curve = Points(np.zeros(3, np.int64), np.arange(3), np.array([3.0, 2.0, 1.0]), np.arange(3.0))
    run = Run("0", "run", "FINISHED", {"algo": "ppo", "env_id": "CartPole-v1"}, {}, 0.0, 1.0)
    experiment = Experiment("policies", (run,), {"loss": curve})
    assert assemble(experiment, objective="loss").kind == "reinforcement-learning"
    found = assemble(experiment, objective="loss", reading=Reading(kind="supervised"))
    assert (found.kind, found.decisions) == ("supervised", ())


def test_autologged_scikit_learn_trains_no_network(database: str) -> None:
    from sklearn.datasets import load_digits
    from sklearn.ensemble import GradientBoostingClassifier

    mlflow.set_tracking_uri(database)
    mlflow.set_experiment("boosting")
    mlflow.sklearn.autolog(log_models=False, log_datasets=False, silent=True)
    try:
        x, y = load_digits(n_class=2, return_X_y=True)
        for rate in (0.01, 0.1, 0.3, 1.0):
            model = GradientBoostingClassifier(learning_rate=rate, n_estimators=5, max_depth=2).fit(x[:200], y[:200])
            mlflow.log_metric("val_accuracy", model.score(x[200:], y[200:]), run_id=mlflow.last_active_run().info.run_id)
    finally:
        mlflow.sklearn.autolog(disable=True)
    found = assemble(read_experiment("boosting", tracking_uri=database), objective="val_accuracy")
    assert found.kind == "no-network"
    assert "no network" in found.decisions[0].text
    report = analyze_study(found, rules=load_rules())
    reasons = {v.rule: v.reason or "" for v in report.verdicts if v.status == "not-assessed"}
    assert "no network" in reasons["stability-spikes"]
    assert "no network" not in reasons.get("space-boundary", "")
