from __future__ import annotations

import math

import pytest
import torch
from mlflow.tracking import MlflowClient
from probing import Training, analyzed, runs_of
from torch.utils.data import DataLoader, TensorDataset

from advisor import contract
from advisor_pytorch.probes import learning_rate_range

EXPERIMENT = "learning-rate probe"


def test_a_range_is_a_study_and_leaves_no_trace(uri: str) -> None:
    undisturbed = Training()
    undisturbed.goes_on(3)
    expected = undisturbed.goes_on()
    training = Training()
    training.goes_on(3)
    training.batches.clear()
    found = learning_rate_range(
        training.step,
        training.model,
        training.optimizer,
        low=1e-6,
        high=1e3,
        trials=10,
        steps=40,
        max_train_steps=1000,
        also=[training.scheduler],
        tracking_uri=uri,
    )
    first = training.batches[:40]
    assert training.goes_on() == expected
    assert training.batches[40:80] == first  # the same batches at each rate
    assert [t.learning_rate for t in found.trials] == pytest.approx([10.0**k for k in range(-6, 4)])
    assert found.best is not None
    assert 1e-4 < found.best < 0.2
    assert found.diverges_from is not None
    assert found.best < found.diverges_from
    assert all(t.learning_rate > 5e-6 for t in found.working)  # at the lowest nothing happens
    assert f"It diverges at {found.diverges_from:.3g} and above." in str(found)
    runs = runs_of(uri, EXPERIMENT)
    assert len(runs) == 10
    for run, trial in zip(runs, found.trials, strict=True):
        assert float(run.data.params["learning_rate"]) == trial.learning_rate
        assert run.data.tags[contract.TAG_PROBE] == "learning-rate"
        assert run.data.tags[contract.TAG_STATUS] == ("complete" if trial.diverged_at is None else "diverged")
        assert run.data.tags[contract.TAG_OPTIMIZER + ".learning_rate"] == str(trial.learning_rate)
        client = MlflowClient(uri)
        rates = client.get_metric_history(run.info.run_id, contract.LEARNING_RATE)
        assert [p.value for p in rates] == pytest.approx(
            [trial.learning_rate] * len(rates)
        )  # the probe overrides the scheduler
        objective = client.get_metric_history(run.info.run_id, "probe/loss")
        if trial.diverged_at is None:
            assert [p.step for p in objective] == list(range(3, 40, 4))
            assert objective[-1].value == pytest.approx(trial.loss)
    report = analyzed(uri, EXPERIMENT)
    assert report.spec.max_train_steps == 1000
    judged = {v.rule: v.status for v in report.verdicts if v.status != "not-assessed"}
    assert set(judged) <= {
        "space-boundary",
        "space-boundary-infeasible",
        "space-infeasible",
        "stability-early",
        "stability-edge",
        "residual-norm",
    }
    (infeasible,) = [f for f in report.findings if f.rule == "space-infeasible"]
    assert infeasible.subject == "learning_rate"
    assert infeasible.side == "high"


def test_a_loader_starts_anew_where_it_is_told(uri: str) -> None:
    training = Training()
    loader = DataLoader(TensorDataset(training.x, training.y), batch_size=64, shuffle=True)
    seen: list[float] = []
    batches = iter(loader)

    def reset() -> None:
        nonlocal batches
        batches = iter(loader)

    def step() -> torch.Tensor:
        x, y = next(batches)
        seen.append(float(x.sum()))
        loss = (training.model(x) - y).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        training.optimizer.step()
        training.optimizer.zero_grad()
        return loss

    learning_rate_range(
        step, training.model, training.optimizer, low=1e-3, high=1e-2, trials=2, steps=8, reset=reset, tracking_uri=uri
    )
    assert seen[:8] == seen[8:16] == seen[16:]


def test_groups_keep_their_proportion_and_warmup_rises(uri: str) -> None:
    training = Training()
    layers = training.model[0].parameters(), training.model[3].parameters()
    optimizer = torch.optim.AdamW([{"params": layers[0]}, {"params": layers[1], "lr": 0.03}], lr=0.01)
    training.optimizer = optimizer  # type: ignore[assignment]
    training.scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)  # type: ignore[assignment]
    learning_rate_range(
        training.step, training.model, optimizer, low=0.1, high=1.0, trials=1, steps=6, warmup_steps=4, tracking_uri=uri
    )
    (run,) = runs_of(uri, EXPERIMENT)
    history = {
        name: [p.value for p in MlflowClient(uri).get_metric_history(run.info.run_id, name)]
        for name in (contract.LEARNING_RATE, contract.LEARNING_RATE + ".group1")
    }
    assert history[contract.LEARNING_RATE] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.1])
    assert history[contract.LEARNING_RATE + ".group1"] == pytest.approx([0.06, 0.12, 0.18, 0.24, 0.3, 0.3])
    assert [g["lr"] for g in optimizer.param_groups] == [0.01, 0.03]


def test_an_untrained_loss_that_is_no_number_is_a_bug(uri: str) -> None:
    training = Training()
    with pytest.raises(ValueError, match="look for a bug") as caught:
        learning_rate_range(lambda: math.nan, training.model, training.optimizer, steps=2, tracking_uri=uri)
    assert "\n" not in str(caught.value)
    for message, settings in (
        ("positive", {"low": 0.0}),
        ("in this order", {"low": 1.0, "high": 0.1}),
        ("trials", {"trials": 0}),
    ):
        with pytest.raises(ValueError, match=message):
            learning_rate_range(training.step, training.model, training.optimizer, **settings)  # type: ignore[arg-type]
