"""Synthetic studies and findings with every kind of evidence and of change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import AddParameter, Advise, FixParameter, SetField, SetRange, SetSchedule
from advisor.model.evidence import AxisEvidence, CurveEvidence, FigureEvidence, HistogramEvidence, Line, Mark
from advisor.model.finding import DataNeed, Explanation, Finding, Verdict
from advisor.model.message import Name, say
from advisor.model.space import HyperparameterValue
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.study import CurveBlock, Study, Trial, TrialStatus
from advisor.planning import Plan, plan
from advisor.report import Report, build_report


class SpaceBoundary(Rule):
    """The best trials crowd one end of the range that was searched.

    ## Why it matters
    A better value may lie just outside of the range.
    """

    id = "space-boundary"
    playbook = "Identifying bad search space boundaries"
    goal = "boundary"

    best: Count = 5
    edge: Share = 0.2


class StabilitySpikes(Rule):
    """Gradient norms have a heavy tail.

    ## Why it matters
    A few steps with very large gradients undo what many steps have learned.
    """

    id = "stability-spikes"
    playbook = "How can optimization failures be debugged and mitigated?"
    goal = "stability"


class InputBound(Rule):
    """The step waits for data."""

    id = "input-bound"
    playbook = "Optimizing the input pipeline"
    goal = "efficiency"


RULES: tuple[Rule, ...] = (SpaceBoundary(), StabilitySpikes(), InputBound())


def block(curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> CurveBlock:
    """The curves (steps, values) of all trials, in their order."""
    offsets = np.concatenate([[0], np.cumsum([len(s) for s, _ in curves])]).astype(np.int64)
    steps = np.concatenate([np.asarray(s, np.int64) for s, _ in curves]) if curves else np.empty(0, np.int64)
    values = np.concatenate([np.asarray(v, np.float64) for _, v in curves]) if curves else np.empty(0)
    return CurveBlock(steps, values, np.full(len(steps), np.nan), offsets)


def make_study(
    trials: int = 200,
    *,
    spec: StudySpec | None = None,
    name: str = "cifar-resnet50",
    names: Sequence[str] | None = None,
    statuses: Mapping[int, TrialStatus] | None = None,
    dense: bool = True,
    maximize: bool = False,
    steps: int = 10_000,
    seed: int = 0,
    repeats: int = 0,
) -> Study:
    """A study with a plausible response to its hyperparameters; too large a learning rate diverges."""
    rng = np.random.default_rng(seed)
    spec = spec or default_spec(name, maximize=maximize)
    made: list[Trial] = []
    objective, loss, norm, rate = [], [], [], []
    evaluations = np.arange(200, steps + 1, 200)
    for i in range(trials):
        params: dict[str, HyperparameterValue] = {n: p.value_at_position(float(rng.random())) for n, p in spec.searched.items()}
        if repeats and i >= trials - repeats and made:
            params = dict(made[0].params)
        lr = float(params.get("learning_rate", 0.03))
        off = abs(math.log10(max(lr, 1e-9)) - math.log10(0.05))
        status: TrialStatus = "diverged" if lr > 0.35 else "complete"
        status = (statuses or {}).get(i, status)
        final = 0.19 + 0.09 * off**1.4 + 0.02 * abs(rng.normal())
        progress = evaluations / steps
        error = final + (0.9 - final) * np.exp(-7 * progress) + rng.normal(0, 0.003, len(evaluations))
        if status == "diverged":
            error[len(error) // 3 :] = [1e12, *[math.nan] * (len(error) - len(error) // 3 - 1)]
        if status in ("no_data", "infeasible"):
            error = np.empty(0)
        objective.append((evaluations[: len(error)], 1 - error if maximize else error))
        if dense and i < 60:
            at = np.unique(np.round(np.geomspace(1, steps, 1500)).astype(int))
            noise = np.exp(rng.normal(0, 0.12, len(at)))
            train = (0.05 + 2.3 * np.exp(-5 * at / steps) * (1 + at / 50) ** -0.15) * noise
            gradient = 1.1 * np.exp(rng.normal(0, 0.3, len(at)))
            if i % 3 == 0:
                gradient[rng.integers(len(at) // 2, len(at), 8)] *= 25
            loss.append((at, train))
            norm.append((at, gradient))
            rate.append((at, lr * np.minimum(at / 500, 1) * 0.5 * (1 + np.cos(np.pi * at / steps))))
        else:
            for target in (loss, norm, rate):
                target.append(([], []))
        given = names[i % len(names)] if names else f"trial-{i:04d}"
        made.append(Trial(i, f"{i:08x}c0ffee", given, status, params, started=1.79e9 + 60 * i, ended=1.79e9 + 60 * i + 3000))
    metrics = {spec.objective.metric: block(objective)}
    signals = {}
    if dense:
        metrics |= {"train/loss": block(loss), "train/grad_norm": block(norm), "train/learning_rate": block(rate)}
        signals = {"train_loss": "train/loss", "grad_norm": "train/grad_norm", "learning_rate": "train/learning_rate"}
    inferred = {"direction": "inferred from the metric's name", "dropout": "inferred from the trials"}
    return Study(spec, tuple(made), metrics, signals, inferred, ("3 trials logged each evaluation twice.",))


def of_one_optimizer(trials: int, **how: Any) -> Study:
    """Return a study that searches no optimizer, so that the next study is not divided by optimizers."""
    study = make_study(trials, **how)
    return replace(study, spec=study.spec.with_parameter("optimizer", Parameter(role="fixed", value="adamw")))


def default_spec(name: str = "cifar-resnet50", *, maximize: bool = False) -> StudySpec:
    metric = "validation/accuracy" if maximize else "validation/error"
    return StudySpec(
        study=name,
        goal="Find a good learning rate for ResNet-50",
        objective=Objective(metric=metric, direction="maximize" if maximize else "minimize"),
        parameters={
            "learning_rate": Parameter(type="float", low=1e-4, high=1.0, scale="log"),
            "weight_decay": Parameter(type="float", low=1e-6, high=0.1, scale="log"),
            "dropout": Parameter(type="float", low=0.0, high=0.6),
            "warmup_steps": Parameter(type="int", low=0, high=2000),
            "optimizer": Parameter(role="scientific", type="categorical", choices=("adamw", "nadam", "sgd")),
            "batch_size": Parameter(role="fixed", type="int", value=256, why="fills the device"),
        },
        max_train_steps=10_000,
    )


def make_verdicts(study: Study) -> tuple[Verdict, ...]:
    """One finding of each severity and more, with every kind of evidence and change."""
    best = [t.id for t in study.ranked()[:10]]
    metric = study.spec.objective.metric
    spikes = Finding(
        rule="stability-spikes",
        goal="stability",
        severity="critical",
        confidence=0.97,
        subject="train/grad_norm",
        trials=tuple(best[:4]),
        message="Four of the ten best trials have gradient norms above 20, over 15 times their median of 1.1",
        action="Clip the gradient norm at 1.62, its 90th percentile, and run the best five settings again.",
        playbook="How can optimization failures be debugged and mitigated?",
        evidence=(
            CurveEvidence(
                metrics=("train/grad_norm",),
                caption="Norms jump to 30 late in training",
                trials=tuple(best[:7]),
                marks=(Mark(trial=best[0], step=4000, label="first spike"),) if best else (),
                lines=(Line(value=1.62, label="90th percentile"),),
            ),
            HistogramEvidence(
                quantity="gradient norm",
                caption="Nine of ten norms are below 1.62",
                edges=tuple(np.geomspace(0.3, 40, 31).tolist()),
                counts=tuple(int(900 * math.exp(-(((i - 8) / 4) ** 2))) + (i > 20) for i in range(30)),
                lines=(Line(value=1.1, label="median 1.1"), Line(value=1.62, label="90th percentile 1.62")),
                log=True,
            ),
            FigureEvidence(rows=(("Norms looked at", "7,500"), ("Excess over a log-normal tail", "31 (p = 2e-9)"))),
        ),
        changes=(
            AddParameter(
                name="grad_clip_norm",
                parameter=Parameter(type="float", low=0.8, high=3.2, scale="log", why="around the 90th percentile, 1.62"),
            ),
            SetSchedule(schedule={"kind": "cosine", "warmup_steps": 500}, why="a warmup hides the first spikes"),
        ),
    )
    boundary = Finding(
        rule="space-boundary",
        goal="boundary",
        severity="critical",
        confidence=0.84,
        subject="weight_decay",
        side="low",
        trials=tuple(best[:5]),
        message="Four of the five best trials lie in the lowest fifth of weight_decay, where chance alone puts one",
        action="Search weight_decay down to 1e-8 in the next study.",
        playbook="Identifying bad search space boundaries",
        evidence=(
            AxisEvidence(
                parameter="weight_decay",
                caption="The best values of validation/error lie near 1e-6, the low end of weight_decay",
                trials=tuple(best[:5]),
                lines=(Line(value=6.3e-6, label="lowest fifth"),),
                next_low=1e-8,
                next_high=0.01,
            ),
            FigureEvidence(rows=(("Best trials in the outer fifth", "4 of 5"), ("By chance", "0.7 % of studies"))),
        ),
        changes=(
            SetRange(parameter="weight_decay", low=1e-8, high=0.01, scale="log", why="the best trials lie at the low end"),
        ),
    )
    steps = Finding(
        rule="step-position",
        goal="steps",
        severity="warning",
        confidence=0.75,
        message="The best trials are still improving at step 10,000: 0.004 more is expected by step 15,000",
        action="Train for 15,000 steps.",
        playbook="Deciding how long to train when training is not compute-bound",
        evidence=(
            CurveEvidence(metrics=(metric,), caption="Still falling at the end", trials=tuple(best[:3])),
            CurveEvidence(metrics=(metric, "train/loss"), caption="Both fall together", trials=tuple(best[:2])),
        ),
        changes=(SetField(field="max_train_steps", value=15_000, why="the best trials still improve"),),
    )
    insensitive = Finding(
        rule="space-insensitive",
        goal="sampling",
        severity="note",
        confidence=0.6,
        subject="warmup_steps",
        message="warmup_steps explains 0 to 3 % of the differences between trials",
        action="Fix warmup_steps at 500 in the next study.",
        playbook="Extracting insight from experimental results",
        evidence=(
            AxisEvidence(parameter="warmup_steps", caption="No trend beyond noise"),
            AxisEvidence(parameter="optimizer", caption="All three optimizers reach 0.20", trials=tuple(best[:5])),
        ),
        changes=(
            FixParameter(parameter="warmup_steps", value=500, why="it does not matter here"),
            Advise(text="Keep the checkpoints of the three best steps."),
        ),
    )
    return (
        *map(verdict_on, (spikes, boundary, steps, insensitive)),
        Verdict(rule="curve-overfitting", status="quiet", reason="12 trials looked at"),
        Verdict(rule="curve-periodic", status="quiet"),
        Verdict(rule="input-bound", status="not-assessed", reason=WAITS_UNKNOWN, needs=DataNeed("timing")),
        Verdict(rule="my-own-rule", status="broken", reason="ZeroDivisionError: division by zero"),
    )


WAITS_UNKNOWN = "no trial logged how long it waits for data"
COMMAND = "advisor analyze cifar-resnet50 --objective validation/error"


def make_report(study: Study, verdicts: Sequence[Verdict] | None = None, rules: Sequence[Rule] = RULES) -> Report:
    """The report as the analysis makes it."""
    judged = make_verdicts(study) if verdicts is None else tuple(verdicts)
    following: Plan = plan(study, judged)
    return build_report(study, judged, following.specs, following.deferred, rules=rules, command=COMMAND)


@cache
def explained_report() -> Report:
    """A report like the usual one, with its last finding explained by its first."""
    study = make_study(40)
    *others, last = (v for v in make_verdicts(study) if v.status == "fired")
    because = Explanation(rule="stability-spikes", subject="train/grad_norm", because="Spikes drown what it does.", waits=True)
    effect = last.findings[0].model_copy(update={"explained_by": because})
    return make_report(study, (last.model_copy(update={"findings": (effect,)}), *others))


def fired(severity: str, goal: str, subject: str = "lr", **fields: Any) -> Verdict:
    """Return a verdict with one finding about this hyperparameter."""
    message = say("The best trials lie at the top of {name}", name=Name(subject))
    action, rule = say("Search higher {name}", name=Name(subject)), f"r-{severity}-{goal}-{subject}"
    plain = {"confidence": 0.8, "subject": subject, "message": message, "action": action, "playbook": "p"}
    return verdict_on(Finding(rule=rule, goal=goal, severity=severity, **{**plain, **fields}))


def verdict_on(finding: Finding, **update: Any) -> Verdict:
    """Return the verdict of a rule that fired with this finding alone."""
    made = finding.model_copy(update=update)
    return Verdict(rule=made.rule, status="fired", findings=(made,))
