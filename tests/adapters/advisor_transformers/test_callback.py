from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from mlflow.tracking import MlflowClient
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import MLflowCallback

from advisor import contract
from advisor_transformers import TuningCallback
from advisor_transformers.callback import evaluation_metrics, trainer_training_metrics
from tests.adapters.fixture_types import History, OnlyRun


@pytest.fixture
def data() -> list[dict[str, Any]]:
    """72 sequences of two classes."""
    ids = torch.randint(5, 30, (72, 6), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": int(row[0] > 15)} for row in ids]


@pytest.fixture
def model() -> BertForSequenceClassification:
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return BertForSequenceClassification(BertConfig(vocab_size=30, max_position_embeddings=8, **size))


@pytest.fixture
def arguments(tmp_path: Path) -> Callable[..., TrainingArguments]:
    known = {"max_steps": 8, "per_device_train_batch_size": 4, "logging_steps": 2, "learning_rate": 0.01}
    plain = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "save_strategy": "no"}
    return lambda **given: TrainingArguments(str(tmp_path / "out"), **{**known, **plain, **given})


@pytest.fixture
def start(uri: str) -> Callable[..., TuningCallback]:
    return lambda **given: TuningCallback("eval_loss", **{"experiment": "test", "tracking_uri": uri, **given})


class Told(TrainerCallback):
    """Records the Trainer's own loss and gradient norm, every `logging_steps`."""

    def __init__(self) -> None:
        self.logs: dict[int, dict[str, float]] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **more: Any) -> None:
        self.logs.setdefault(state.global_step, {}).update(logs)


@pytest.mark.parametrize(
    "given", [{"label_smoothing_factor": 0.1, "max_grad_norm": 0.2}, {"bf16": True, "max_grad_norm": 0.0, "optim": "sgd"}]
)
def test_loss_and_norm_are_the_trainers_own(
    given: dict[str, Any], arguments: Any, model: Any, data: Any, start: Any, only_run: OnlyRun, history: History
) -> None:
    tag = Told()
    settings = arguments(logging_steps=1, gradient_accumulation_steps=3, logging_nan_inf_filter=False, **given)
    Trainer(model, settings, train_dataset=data, callbacks=[start(), tag]).train()
    run = only_run()
    logs = {step - 1: line for step, line in tag.logs.items() if "loss" in line}
    assert list(logs) == list(range(8))
    for metric, name in ((contract.TRAIN_LOSS, "loss"), (contract.GRAD_NORM, "grad_norm")):
        assert history(run, metric) == pytest.approx({i: line[name] for i, line in logs.items()}, rel=1e-3)
    rates = {i: line["learning_rate"] for i, line in logs.items()}
    assert history(run, contract.LEARNING_RATE) == pytest.approx(rates)
    if given["max_grad_norm"]:
        assert history(run, contract.CLIPPED) == {i: float(line["grad_norm"] > 0.2) for i, line in logs.items()}
        assert run.data.tags[contract.TAG_GRAD_CLIP] == "0.2"
    assert run.data.tags[contract.TAG_BATCH_SIZE] == "12"
    assert run.data.tags[contract.TAG_MICRO_BATCHES] == "3"
    assert run.data.tags[contract.TAG_STEPS_PER_EPOCH] == "6"


def test_a_whole_run_beside_transformers_own_logger(
    arguments: Any,
    model: Any,
    data: Any,
    start: Any,
    only_run: OnlyRun,
    uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "test")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    settings = arguments(
        eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, save_total_limit=2, seed=3,
        load_best_model_at_end=True, lr_scheduler_type="cosine", weight_decay=0.1, warmup_steps=2,
    )  # fmt: skip
    callback = start()
    trainer = Trainer(model, settings, train_dataset=data, eval_dataset=data[:16], callbacks=[callback, MLflowCallback])
    trainer.train()
    run = only_run()
    tags = run.data.tags
    client = MlflowClient(uri)
    evaluations = client.get_metric_history(run.info.run_id, "eval_loss")
    by_step = {p.step: p.value for p in evaluations}
    assert list(by_step) == [2, 4, 6, 8]
    assert run.info.status == "FINISHED"
    assert [p.step for p in client.get_metric_history(run.info.run_id, contract.TRAIN_LOSS)] == list(range(8))
    wanted = {
        contract.TAG_STATUS: "complete",
        contract.TAG_SEED: "3",
        contract.TAG_MAX_TRAIN_STEPS: "8",
        contract.TAG_BATCH_SIZE: "4",
        contract.TAG_N_VALID: "16",
        contract.TAG_EVAL_BATCH_SIZE: "8",
        contract.TAG_OPTIMIZER: "AdamW",
    }
    assert {name: tags.get(name) for name in wanted} == wanted
    assert "cosine" in json.loads(tags[contract.TAG_SCHEDULE])["kind"]
    kept = json.loads(tags[contract.TAG_CHECKPOINTS])
    best = min(by_step, key=lambda step: by_step[step])
    assert kept["policy"] == "best-1+last"
    assert kept["chosen"] == best
    values = {c["step"]: c["value"] for c in kept["kept"]}
    assert {best, 8} <= values.keys()
    assert values == pytest.approx({step: by_step[step] for step in values})
    assert all(Path(c["path"]).is_dir() for c in kept["kept"])
    assert len({p.name for p in (tmp_path / "out").glob("checkpoint-*")}) == len(kept["kept"])
    assert [m for m in caplog.messages if m.startswith("advisor:")] == []


def test_another_store_than_that_of_the_active_run_gets_a_run_of_its_own(
    arguments: Any,
    model: Any,
    data: Any,
    start: Any,
    only_run: OnlyRun,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of no other test: MLflow keeps stores open in this process.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path_factory.mktemp('other') / 'other.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "other")
    Trainer(model, arguments(report_to="mlflow"), train_dataset=data, callbacks=[start()]).train()
    run = only_run()
    assert run.info.status == "FINISHED"
    assert contract.TRAIN_LOSS in run.data.metrics


def test_the_hyperparameters_are_params(arguments: Any, model: Any, data: Any, start: Any, only_run: OnlyRun) -> None:
    settings = arguments(adam_beta2=0.95, warmup_steps=3)
    trainer = Trainer(model, settings, train_dataset=data, eval_dataset=data[:8], callbacks=[start()])
    trainer.train()
    trainer.evaluate()  # after the training: not part of it
    assert "eval_loss" not in only_run().data.metrics
    params = only_run().data.params
    wanted = {"learning_rate": "0.01", "adam_beta2": "0.95", "warmup_steps": "3", "max_steps": "8", "hidden_size": "8"}
    wanted |= {"per_device_train_batch_size": "4", "lr_scheduler_type": "linear", "weight_decay": "0.0"}
    assert {name: params.get(name) for name in wanted} == wanted
    assert not {"output_dir", "seed", "logging_steps", "num_train_epochs", "report_to"} & params.keys()


def test_loaded_weights_are_noted_but_not_a_configuration_alone(
    arguments: Any, model: Any, data: Any, start: Any, uri: str, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path / "model")
    loaded = BertForSequenceClassification.from_pretrained(tmp_path / "model")
    fresh = BertForSequenceClassification(BertConfig.from_pretrained(tmp_path / "model"))
    for made in (loaded, fresh):
        Trainer(made, arguments(max_steps=2), train_dataset=data, callbacks=[start()]).train()
    client = MlflowClient(uri)
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()], order_by=["start_time"])
    assert [run.data.tags.get(contract.TAG_PRETRAINED) for run in runs] == ["true", None]


class Rewarded(Trainer):
    """Logs a metric of its own with the Trainer's, and one of the evaluation that only the log shows, as older TRL does."""

    def log(self, logs: dict[str, float], *args: Any, **more: Any) -> None:
        evaluated = any(name.startswith("eval_") for name in logs)
        super().log({**logs, ("eval_reward" if evaluated else "reward"): float(self.state.global_step)}, *args, **more)


def test_a_trainers_own_metrics_are_logged(
    arguments: Any, model: Any, data: Any, start: Any, only_run: OnlyRun, history: History
) -> None:
    settings = arguments(eval_strategy="steps", eval_steps=4)
    Rewarded(model, settings, train_dataset=data, eval_dataset=data[:8], callbacks=[start()]).train()
    run = only_run()
    assert history(run, "train/reward") == {1: 2, 3: 4, 5: 6, 7: 8}
    assert history(run, "eval_reward") == {4: 4, 8: 8}
    assert list(history(run, contract.TRAIN_LOSS)) == list(range(8))
    assert not {"train/loss.own", "train/epoch", "train/train_runtime", "reward"} & run.data.metrics.keys()


def test_resumed_from_a_checkpoint(
    arguments: Any, model: Any, data: Any, start: Any, only_run: OnlyRun, history: History
) -> None:
    settings = {"save_strategy": "steps", "save_steps": 4}
    first = start()
    Trainer(model, arguments(**settings), train_dataset=data, callbacks=[first]).train()
    assert first.recording is not None
    again = start(run_id=first.recording.run_id)
    longer = arguments(**settings | {"max_steps": 12})
    Trainer(model, longer, train_dataset=data, callbacks=[again]).train(resume_from_checkpoint=True)
    run = only_run()
    assert list(history(run, contract.TRAIN_LOSS)) == list(range(12))
    assert [c["step"] for c in json.loads(run.data.tags[contract.TAG_CHECKPOINTS])["kept"]] == [12]


class Failing(Trainer):
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 3:
            raise RuntimeError("CUDA out of memory.")
        return super().training_step(*args, **kwargs)


@pytest.mark.parametrize("in_context", [True, False])
def test_an_exception_ends_the_run_and_another_training_has_a_run_of_its_own(
    in_context: bool, arguments: Any, model: Any, data: Any, start: Any, uri: str, history: History
) -> None:
    before, tuning = Accelerator.backward, start()
    with pytest.raises(RuntimeError, match="memory"), tuning if in_context else nullcontext():
        Failing(model, arguments(), train_dataset=data, callbacks=[tuning]).train()
    assert (Accelerator.backward is before) == in_context
    failed = tuning.recording
    Trainer(model, arguments(), train_dataset=data, callbacks=[tuning], eval_dataset=data[:8]).train()
    assert Accelerator.backward is before
    client = MlflowClient(uri)
    first, second = (client.get_run(log.run_id) for log in (failed, tuning.recording))
    assert list(history(first, contract.TRAIN_LOSS)) == [0, 1, 2]
    assert list(history(second, contract.TRAIN_LOSS)) == list(range(8))
    if in_context:
        assert first.data.tags[contract.TAG_STATUS] == "infeasible"
        assert first.data.tags[contract.TAG_ERROR].startswith("out of memory")


class Verdict(TrainerCallback):
    """Gives the logger a verdict, as the guard's process does, before step 4, or before the evaluation after it."""

    def __init__(self, tuning: TuningCallback, at_evaluation: bool) -> None:
        self.tuning, self.at_evaluation = tuning, at_evaluation

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 3 and not self.at_evaluation:
            self.give()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 4 and self.at_evaluation:
            self.give()

    def give(self) -> None:
        assert self.tuning.recording is not None
        self.tuning.recording._guard.on_verdict(
            {"state": "doomed", "step": 1, "stop": True, "message": "It cannot become the best.", "at": 1e9}
        )


@pytest.mark.parametrize(
    ("guard", "at_evaluation", "steps", "status"),
    [("stop", True, 4, "pruned"), ("stop", False, 4, "pruned"), ("warn", True, 8, "complete")],
)
def test_the_guard_ends_a_training_after_a_step(
    guard: str,
    at_evaluation: bool,
    steps: int,
    status: str,
    arguments: Any,
    model: Any,
    data: Any,
    start: Any,
    only_run: OnlyRun,
) -> None:
    callback = start(guard=guard)
    settings = arguments(eval_strategy="steps", eval_steps=2)
    trainer = Trainer(
        model, settings, train_dataset=data, eval_dataset=data[:8], callbacks=[callback, Verdict(callback, at_evaluation)]
    )
    trainer.train()
    assert trainer.state.global_step == steps
    tags = only_run().data.tags
    assert tags[contract.TAG_STATUS] == status
    assert (contract.TAG_GUARD_STOP in tags) == (status == "pruned")


def test_an_autopsy_sees_the_model_but_no_batch(
    arguments: Any, model: Any, data: Any, start: Any, uri: str, only_run: OnlyRun, tmp_path: Path
) -> None:
    class Broken(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step == 5:
                with torch.no_grad():
                    model.classifier.weight[0] = torch.nan

    Trainer(model, arguments(max_grad_norm=1.0), train_dataset=data, callbacks=[start(), Broken()]).train()
    path = MlflowClient(uri).download_artifacts(only_run().info.run_id, contract.AUTOPSY_PATH, str(tmp_path))
    record = json.loads(Path(path).read_text())
    assert (record["step"], record["batch"]) == (5, None)
    assert record["parameters"]["bad_names"] == ["classifier.weight"]


def test_values_beyond_the_trainers_own_are_metrics_of_the_training() -> None:
    line = {"loss": 1.0, "grad_norm": 2.0, "learning_rate": 1e-3, "epoch": 0.5, "reward": 3, "rewards/margins": 0.25}
    assert trainer_training_metrics(line) == {"train/reward": 3.0, "train/rewards/margins": 0.25}


def test_values_that_are_no_numbers_and_summaries_are_left_out() -> None:
    line = {
        "kl": None,
        "note": "text",
        "train_runtime": 3.0,
        "train_loss": 0.1,
        "total_flos": 1e9,
        "train/loss": 0.3,
        "eval_loss": 1.0,
    }
    assert trainer_training_metrics(line) == {}
    assert trainer_training_metrics({"train_runtime": 3.0, "reward": 1.0}) == {}
    assert trainer_training_metrics({"test_loss": 1.0, "test_runtime": 2.0}) == {}, "an evaluation with a prefix of its own"
    assert evaluation_metrics(line) == {"eval_loss": 1.0}
