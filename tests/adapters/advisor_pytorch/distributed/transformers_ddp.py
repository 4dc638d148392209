"""A training of two ranks by the Transformers Trainer, with the callback."""

from __future__ import annotations

import torch
from script import expect, write_expected
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from advisor_transformers import TuningCallback


class Reference(TrainerCallback):
    def on_pre_optimizer_step(self, args: object, state: object, control: object, **settings: object) -> None:
        model = settings["model"]
        assert isinstance(model, torch.nn.Module)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        expect("transformers", torch.stack([g.norm() for g in gradients]).norm().item())


class Words(torch.utils.data.Dataset[dict[str, object]]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> dict[str, object]:
        return {"input_ids": torch.arange(i, i + 4) % 10, "labels": i % 2}


torch.manual_seed(0)
small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 10}
Trainer(
    model=BertForSequenceClassification(BertConfig(**small)),
    args=TrainingArguments(
        output_dir="out",
        use_cpu=True,
        max_steps=8,
        per_device_train_batch_size=2,
        eval_strategy="steps",
        eval_steps=4,
        report_to=[],
        save_strategy="no",
        max_grad_norm=0.0,
        disable_tqdm=True,
        run_name="transformers",
        ddp_find_unused_parameters=False,
    ),
    train_dataset=Words(),
    eval_dataset=Words(),
    callbacks=[TuningCallback("eval_loss", experiment="test"), Reference()],
).train()
write_expected()
