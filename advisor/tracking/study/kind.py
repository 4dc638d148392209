"""Infers the kind of workload from metrics, parameters and tags. A sign is a set of words in one name. A group of signs shows
one property, such as a policy loss. A single group may mislead (classifiers also log an entropy), so each kind needs signs from
a minimum number of its groups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from advisor.contract import metric_direction
from advisor.model.message import list_message, say
from advisor.model.reading import Decision, Reading, WorkloadKind
from advisor.model.space import IntArray
from advisor.tracking.runs import Experiment

_AUTOLOGGING_TAG = "mlflow.autologging"
_LIBRARIES_WITHOUT_NETWORKS = {*"xgboost lightgbm catboost sklearn statsmodels prophet spark pyspark.ml".split()}
"""Values of MLflow's autologging tag for libraries that train no network."""
_POLICY_RETURN_SIGNS = ", ".join(
    f"{word} -accuracy -accuracies -margin -margins -chosen -rejected"
    for word in ("reward", "rewards", "rew", "return", "returns", "episode")
)
"""Signs of metrics that measure a policy, unlike the rewards of answers that it did not generate."""
_MIN_LOGGING_TRIALS_FRACTION = 0.5
"""Minimum share of the trials that must have logged a name for it to count."""
_MAX_LISTED_SIGNS = 3


class _SignGroup(NamedTuple):
    """Signs of one property of a kind of workload; any one of them shows the property."""

    metrics: str = ""
    """Signs in names of metrics, separated by commas: words in any order; "-word" excludes names with this word."""
    params: str = ""
    """Signs in names of parameters."""
    values: str = ""
    """Signs in values of parameters, and in the experiment's name."""


class _KindSignature(NamedTuple):
    kind: WorkloadKind
    sign_groups: tuple[_SignGroup, ...]
    min_matching_groups: int = 1
    consequence: str = ""
    """End of the sentence "The runs seem to ..."; empty if all rules apply as usual."""


_KIND_SIGNATURES = (
    _KindSignature(
        "no-network",
        (
            _SignGroup(params="num leaves, min child weight, min child samples, min data leaf, colsample, bagging fraction"),
            _SignGroup(params="estimators, boost round, boosting, trees, tree method, reg lambda, reg alpha"),
            _SignGroup(params="max leaf nodes, min samples leaf, min samples split, max features, criterion"),
            _SignGroup(params="max depth, n neighbors, kernel C"),
        ),
        2,
        "train no network, so only the rules about the search space and about decisions apply",
    ),
    _KindSignature(
        "reinforcement-learning",
        (
            _SignGroup("policy loss, actor loss, pg loss, pi loss, surrogate, policy gradient"),
            _SignGroup("value loss, critic loss, vf loss, v loss, q loss, qf loss, qf1 loss, td loss, td error"),
            _SignGroup("entropy -cross -bce, approx kl, approxkl, policy kl, clip fraction, clipfrac, explained variance"),
            _SignGroup(_POLICY_RETURN_SIGNS),
            _SignGroup("rollout, ep len, env steps"),
            _SignGroup(params="env id, env name, gym, n envs, num envs, gae, ent coef, entropy coef, clip range, rollout"),
            _SignGroup(values="ppo, a2c, a3c, sac, td3, ddpg, dqn, trpo, impala, grpo, reinforce, rainbow"),
        ),
        2,
        "train a policy, whose training losses need not fall; only its results are judged",
    ),
    _KindSignature(
        "gan",
        (
            _SignGroup("g loss, gen loss, generator, errg, lossg"),
            _SignGroup("d loss, disc loss, discriminator, critic loss, errd, lossd, d real, d fake"),
            _SignGroup(values="gan, wgan, dcgan, stylegan, cyclegan, biggan, sngan, vqgan"),
        ),
        2,
        "train adversarial networks, whose losses need not fall; only other metrics are judged",
    ),
    _KindSignature(
        "diffusion",
        (
            _SignGroup(
                "eps loss, noise loss, denoising, denoise, diffusion -coefficient, score matching, noise mse, eps mse",
                "noise schedule, beta schedule, diffusion -coefficient, train timesteps, noise steps, sampling timesteps",
                "ddpm, ddim, diffusion, edm, unet2dmodel, v_prediction",
            ),
        ),
    ),
    _KindSignature(
        "self-supervised",
        (
            _SignGroup(
                "probe, knn, linear eval, contrastive, simclr, byol, moco, infonce, info nce, nt xent, ntxent, dino, vicreg, "
                "barlow, simsiam, swav, ssl, pretext, rankme",
                "projection head, moco, byol, simclr, ssl",
                "simclr, byol, moco, dino, dinov2, vicreg, barlow, simsiam, swav, ssl, contrastive, infonce, ntxent",
            ),
        ),
        consequence="learn without labels, so a lower training loss need not mean a better model; only other metrics are judged",
    ),
    _KindSignature(
        "language-model",
        (
            _SignGroup(
                "perplexity, ppl, tokens, bpb, bpc, bits byte, bits character",
                "seq len, sequence length, block size, context length, vocab, n ctx",
            ),
        ),
    ),
)
"""In the order in which they are tested."""


def choose_kind(
    experiment: Experiment, runs: IntArray, objective: str, reading: Reading
) -> tuple[WorkloadKind, tuple[Decision, ...]]:
    """Return the kind of workload, stated or inferred, and a decision that says which rules do not apply to it."""
    if reading.kind is not None:
        return reading.kind, ()
    logged_names = _logged_names(experiment, runs, objective)
    # The library of autologging counts if it recorded most of the runs.
    tags = [experiment.runs[index].tags.get(_AUTOLOGGING_TAG, "") for index in runs.tolist()]
    by_library = [tag for tag in tags if tag in _LIBRARIES_WITHOUT_NETWORKS]
    for signature in _KIND_SIGNATURES:
        matches = [sign for group in signature.sign_groups if (sign := _first_matching_name(group, logged_names))]
        if signature.kind == "no-network" and len(by_library) >= max(_MIN_LOGGING_TRIALS_FRACTION * len(tags), 1):
            matches = [f"tag {_AUTOLOGGING_TAG} {by_library[0]}"]
        elif signature.kind == "reinforcement-learning" and _matches_sign(objective, _POLICY_RETURN_SIGNS):
            matches = [f"objective {objective}"]
        elif len(matches) < signature.min_matching_groups or (signature.kind == "no-network" and logged_names.has_network):
            continue
        if not signature.consequence:
            return signature.kind, ()
        signs = list_message(matches, _MAX_LISTED_SIGNS)
        text = say("The runs seem to {meaning}. Evidence: {signs}.", meaning=signature.consequence, signs=signs)
        return signature.kind, (Decision(topic="kind", text=str(text), overrule="--kind supervised"),)
    held_out = any(metric_direction.split_of_metric(m) in ("valid", "test") for m in logged_names.metrics)
    return ("supervised" if held_out else "unknown"), ()


@dataclass(frozen=True, slots=True)
class _LoggedNames:
    metrics: tuple[str, ...]
    params: tuple[str, ...]
    values: Mapping[str, str]
    """Text that a parameter has in most runs, and the experiment's name."""

    @property
    def has_network(self) -> bool:
        return any({"grad", "gradient", "epoch", "epochs"} & set(metric_direction.words_of_metric(m)) for m in self.metrics)


def _logged_names(experiment: Experiment, runs: IntArray, objective: str) -> _LoggedNames:
    trials = np.intersect1d(experiment.points[objective].runs, runs)
    min_trials = _MIN_LOGGING_TRIALS_FRACTION * max(len(trials), 1)
    metrics = [m for m, p in experiment.points.items() if len(np.intersect1d(p.runs, trials)) >= min_trials]
    values_by_name: defaultdict[str, list[str]] = defaultdict(list)
    for index in trials.tolist():
        for name, value in experiment.runs[index].params.items():
            values_by_name[name].append(value)
    params = {name: Counter(values) for name, values in values_by_name.items() if len(values) >= min_trials}
    usual_values = {name: min(counts, key=lambda value: (-counts[value], value)) for name, counts in params.items()}
    texts = {name: value for name, value in usual_values.items() if params[name][value] >= min_trials}
    return _LoggedNames(tuple(sorted(metrics)), tuple(sorted(params)), texts | {"the experiment's name": experiment.name})


def _first_matching_name(group: _SignGroup, traces: _LoggedNames) -> str | None:
    metrics = (f"metric {metric}" for metric in traces.metrics if _matches_sign(metric, group.metrics))
    params = (f"parameter {name}" for name in traces.params if _matches_sign(name, group.params))
    values = (f"{name} {v}" for name, v in traces.values.items() if len(v) <= 80 and _matches_sign(v, group.values))
    return next(chain(metrics, params, values), None)


def _matches_sign(text: str, signs: str) -> bool:
    words = set(metric_direction.words_of_metric(text)) | {text.lower()}
    return any(wanted <= words and not unwanted & words for wanted, unwanted in _parse_signs(signs))


@cache
def _parse_signs(signs: str) -> tuple[tuple[set[str], set[str]], ...]:
    """Return (required words, excluded words) for each sign."""
    split = [sign.lower().split() for sign in filter(None, map(str.strip, signs.split(",")))]
    return tuple(({p for p in parts if not p.startswith("-")}, {p[1:] for p in parts if p.startswith("-")}) for parts in split)
