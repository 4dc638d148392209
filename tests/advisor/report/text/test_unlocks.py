"""What to log so that more checks can run."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from studies import make_study

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.model.finding import DataNeed, MissingDataKind, Verdict
from advisor.model.study import Study
from advisor.report.text.unlocks import code_to_log, logging_framework, missing_data_actions, uses_training_hook
from advisor.tracking import read_study


def thin(evaluations: int, *, trials: int = 12, seeds: list[int] | None = None) -> Study:
    """A study that logged its settings and a validation loss, nothing else."""
    rng = np.random.default_rng(3)
    rates = 10 ** rng.uniform(-4, -1, trials)
    at = np.arange(1, evaluations + 1) / evaluations
    curves = [1 + 0.3 * (np.log10(r) + 2.5) ** 2 + 2 * np.exp(-4 * at) + 0.01 * rng.normal(size=evaluations) for r in rates]
    params = [{"learning_rate": float(r), "dropout": float(rng.uniform(0, 0.5))} for r in rates]
    return make_study(params, {"val/loss": curves}, steps=list((10_000 * at).astype(int)), seeds=seeds)


def missing(*needs: DataNeed) -> list[Verdict]:
    return [Verdict(rule=f"rule-{i}", status="not-assessed", reason="why", needs=n) for i, n in enumerate(needs)]


def test_a_thin_study_is_told_a_few_things_to_log_instead_of_forty_reasons():
    study = thin(5)
    verdicts = judge(study, load_rules())
    found = missing_data_actions(study, verdicts)
    lacking = [v for v in verdicts if v.status == "not-assessed"]
    assert len(lacking) >= 30
    assert len(found) <= 7
    grouped = [rule for entry in found for rule in entry.checks]
    assert len(grouped) == len(set(grouped)) >= 0.8 * len([v for v in lacking if v.needs and v.needs.lack != "design"])
    assert found[0].text.parts[0] != ""
    assert "Add the training hook, which logs " in found[0].text
    assert "the gradient norm (" in found[0].text
    assert "TuningLogger(" in found[0].code
    assert sum("seed of each run" in str(e.text) for e in found) == 1


def test_pruned_trials_do_not_count_as_rarely_evaluated():
    study = thin(20)
    status = ["pruned" if i > 3 else "complete" for i in range(12)]
    cut = make_study(
        [t.params for t in study.trials],
        {"val/loss": [study.cost_curve(t).values[: 20 if status[t.index] == "complete" else 1] for t in study.trials]},
        status=status,
    )
    (entry,) = missing_data_actions(cut, missing(DataNeed("evaluations", 32)))
    assert "Evaluate 32 times per run instead of 20" in entry.text


def test_more_evaluations_unlock_the_checks_that_the_line_names():
    study = thin(5)
    entries = missing_data_actions(study, judge(study, load_rules()))
    lines = [e for e in entries if "Evaluate" in e.text]
    assert lines
    assert any("the learning rate (" in e.text for e in entries)
    for line in lines:
        needed = int(str(line.text).split()[1])
        assert f"Evaluate {needed} times per run instead of 5" in line.text
        after = {v.rule: v for v in judge(thin(needed), load_rules())}
        still = [after[rule] for rule in line.checks if after[rule].status == "not-assessed"]
        # Only the curves themselves show whether the learning rate is constant; if they do not, it must be logged, too.
        assert [v.rule for v in still if v.needs != DataNeed("learning_rate")] == []
        assert len(still) < len(line.checks) / 2


def test_checks_that_need_much_more_have_a_line_of_their_own():
    needs = [DataNeed("evaluations", 8)] * 4 + [DataNeed("evaluations", 100)]
    texts = [str(e.text) for e in missing_data_actions(thin(5), missing(*needs))]
    assert texts == [
        "Evaluate 8 times per run instead of 5: then 4 checks can run.",
        "Evaluate 100 times per run instead of 5: then 1 check can run.",
    ]


def test_a_check_that_needs_two_things_is_promised_by_neither():
    study = thin(1, trials=4)
    entries = missing_data_actions(study, judge(study, load_rules()))
    promised = {rule: str(entry.text) for entry in entries for rule in entry.checks}
    assert not promised.keys() & {"eval-size", "tuning-saturated", "curve-best-is-regularised-by-accident"}
    assert promised["space-insensitive"].startswith("Run 16 settings to a result instead of 4")


def test_what_a_study_has_is_not_asked_for():
    assert missing_data_actions(thin(20), missing(DataNeed("evaluations", 8), DataNeed("design"), DataNeed("other"))) == ()
    assert missing_data_actions(thin(5), [Verdict(rule="r", status="quiet")]) == ()


def test_one_lack_is_named_by_itself_and_several_are_what_the_hook_logs():
    (line,) = missing_data_actions(thin(5), missing(DataNeed("grad_norm"), DataNeed("grad_norm")))
    assert line.text == "Log the gradient norm at every step, before clipping: then 2 checks can run."
    (line,) = missing_data_actions(thin(5), missing(DataNeed("grad_norm"), DataNeed("timing"), DataNeed("timing")))
    assert line.text == (
        "Add the training hook, which logs step times (2 checks) and the gradient norm (1 check): then 3 checks can run."
    )
    assert line.checks == ("rule-1", "rule-2", "rule-0")


def test_a_study_with_the_hook_is_asked_for_what_the_hook_cannot_see():
    study = thin(5)
    hooked = replace(study, trials=tuple(replace(t, facts={"schema": "1"}) for t in study.trials))
    (line,) = missing_data_actions(hooked, missing(DataNeed("facts"), DataNeed("facts")))
    assert "such as the validation loader: then 2 checks can run" in line.text
    assert "valid_loader=valid_loader" in line.code


def test_data_that_a_study_cannot_have_are_not_asked_for():
    """Gradients without a network, the use of a GPU on a CPU, and more hyperparameters of a study that searches one."""
    study = thin(5)
    on_cpu = replace(study, trials=tuple(replace(t, facts={"device": "cpu"}) for t in study.trials))
    for lack, other in (("grad_norm", replace(study, kind="no-network")), ("gpu", on_cpu), ("searched", plain())):
        assert missing_data_actions(other, missing(DataNeed(lack))) == ()
        assert len(missing_data_actions(study, missing(DataNeed(lack)))) == 1


@pytest.mark.parametrize(("seconds", "asked"), [(1.0, 1), (4.0, 0)])
def test_evaluations_that_take_long_are_not_made_more_often(seconds, asked):
    """Ten evaluations after every 5 steps of one second each."""
    steps = np.arange(1, 51)
    curves = {
        "val/loss": [np.linspace(2, 1, 10)] * 2,
        "train/step_time_s": [np.ones(50)] * 2,
        "train/data_wait_s": [np.zeros(50)] * 2,
    }
    at = {"val/loss": [steps[4::5]] * 2, "train/step_time_s": [steps] * 2, "train/data_wait_s": [steps] * 2}
    times = {"val/loss": [(5 + seconds) * np.arange(1, 11)] * 2}
    study = make_study([{"lr": 0.1}, {"lr": 0.2}], curves, steps=at, times=times)
    assert len(missing_data_actions(study, missing(DataNeed("evaluations", 20)))) == asked


def test_the_callback_for_transformers_is_asked_for_the_score_before_the_first_step():
    study = thin(5)
    facts = {"schema": "1"}
    trials = tuple(replace(t, facts=facts, params={**t.params, "per_device_train_batch_size": 8}) for t in study.trials)
    (line,) = missing_data_actions(replace(study, trials=trials), missing(DataNeed("facts")))
    assert "Evaluate the untrained model before the first step" in line.text
    assert line.code == "arguments = TrainingArguments(..., eval_on_start=True)"


def test_evaluations_are_those_of_trials_with_a_comparable_result() -> None:
    curves = [[1.0]] * 8 + [[1.0, 0.9, 0.8, 0.7, 0.6, 0.5]] * 2
    params = [{"learning_rate": 0.1 / (i + 1)} for i in range(10)]
    study = make_study(params, {"val/loss": curves}, status=["pruned"] * 8 + ["complete"] * 2)
    evaluate, unpruned = missing_data_actions(study, missing(DataNeed("evaluations", 32), DataNeed("full_length")))
    assert "32 times per run instead of 6" in evaluate.text
    assert "Train trials to their end, without pruning" in unpruned.text


def plain(**tags: str):
    return make_study([{"lr": 0.1 / (i + 1)} for i in range(3)], {"val/loss": [[1.0, 0.5]] * 3}, tags=[tags] * 3)


def test_a_loop_over_epochs_gets_no_interval_below_one() -> None:
    study = plain()
    short = replace(study, spec=study.spec.model_copy(update={"max_train_steps": 27}))
    assert "step % 2 == 0" in code_to_log(short, "evaluations", 12)
    assert code_to_log(short, "evaluations", 32) is None


def test_a_plain_loop_gets_the_logger_and_its_own_objective():
    lines = code_to_log(plain(), "grad_norm")
    assert "from advisor_pytorch import TuningLogger" in lines
    assert 'objective="val/loss", direction="minimize"' in lines
    assert (uses_training_hook(plain()), uses_training_hook(plain(schema="1"))) == (False, True)


def test_a_loop_with_the_hook_gets_lines_that_use_it():
    hooked = plain(schema="1")
    assert logging_framework(hooked) == "hook"
    assert "valid_loader=" in code_to_log(hooked, "facts")
    assert 'log.evaluate({"val/loss": evaluate(model)})' in code_to_log(hooked, "evaluations", 12)


def test_the_lines_are_python():
    for lack in get_args(MissingDataKind):
        for study in (plain(), plain(schema="1"), plain(autologging="pytorch"), plain(autologging="transformers")):
            lines = code_to_log(study, lack, 12)
            assert lines is None or ast.parse(lines.replace("..., ", "").replace("(...)", "()"))


@pytest.mark.slow
def test_lightning_is_recognised(tmp_path: Path):
    lightning = pytest.importorskip("lightning.pytorch")
    import torch
    from lightning.pytorch.loggers import MLFlowLogger

    class Module(lightning.LightningModule):
        def __init__(self, rate):
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, _):
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch, _):
            self.log("val_loss", self.layer(batch[0]).square().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), self.hparams.rate)

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 2)), batch_size=8)
    for rate in (0.1, 0.01):
        logger = MLFlowLogger("study", tracking_uri=uri)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        lightning.Trainer(max_epochs=2, logger=logger, accelerator="cpu", **quiet).fit(Module(rate), data, data)
    study = read_study("study", tracking_uri=uri)
    assert logging_framework(study) == "lightning"
    assert "advisor_lightning" in code_to_log(study, "grad_norm")
    assert f"val_check_interval={study.spec.max_train_steps // 2}," in code_to_log(study, "evaluations", 2)


@pytest.mark.slow
def test_transformers_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    transformers = pytest.importorskip("transformers")
    import mlflow
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x, labels=None):
            return {"loss": self.layer(x).square().mean(), "logits": self.layer(x)}

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    mlflow.set_tracking_uri(uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "study")
    data = [{"x": torch.randn(2), "labels": torch.zeros(1)} for _ in range(16)]
    for rate in (0.1, 0.01):
        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"),
            report_to="mlflow",
            learning_rate=rate,
            max_steps=4,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        transformers.Trainer(Model(), arguments, train_dataset=data, eval_dataset=data).train()
        mlflow.end_run()
    study = read_study("study", tracking_uri=uri, objective="eval_loss")
    assert logging_framework(study) == "transformers"
    assert "advisor_transformers" in code_to_log(study, "facts")
    assert "eval_steps=1 / 4" in code_to_log(study, "evaluations", 4)
