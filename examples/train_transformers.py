"""A training with the Transformers Trainer and the tuning advisor's callback: a tiny transformer that learns to add.

    python examples/train_transformers.py --learning-rate 0.003 --weight-decay 0.1

The model starts from random weights, and the sums are made up: nothing is downloaded. Takes seconds on a CPU. The line that the
advisor needs is marked with `# advisor`. The run is stored in `mlflow.db`, or in the store that MLFLOW_TRACKING_URI names; after a
handful of runs with different hyperparameters, run `advisor analyze sums`.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from advisor_transformers import TuningCallback

ALPHABET = "0123456789+=."


def parse_arguments() -> argparse.Namespace:
    """Return the hyperparameters that a study may vary, and fixed settings."""
    parser = argparse.ArgumentParser(description="Train a tiny transformer on sums.")
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--warmup-steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--max-train-steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load() -> tuple[list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    """Return sums such as `07+15=022.`: 90 % for training, 10 % for validation; the split does not depend on the seed."""
    sums = [f"{a:02}+{b:02}={a + b:03}." for a in range(100) for b in range(100)]
    codes = torch.tensor([[ALPHABET.index(letter) for letter in line] for line in sums])
    codes = codes[torch.randperm(len(codes), generator=torch.Generator().manual_seed(0))]
    examples = [{"input_ids": line, "labels": line} for line in codes]
    return examples[:9000], examples[9000:9250]


def build_model(dropout: float) -> GPT2LMHeadModel:
    """Return a transformer with one block of 32 units."""
    size = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": len(ALPHABET)}
    drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return GPT2LMHeadModel(GPT2Config(**size, **drop, bos_token_id=0, eos_token_id=0))


def main() -> None:
    """Train one trial."""
    args = parse_arguments()
    torch.set_num_threads(1)  # more threads do not speed up such a small network
    set_seed(args.seed)
    train, valid = load()
    tuning = TuningCallback("eval_loss", experiment="sums")  # advisor
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            learning_rate=args.learning_rate,
            weight_decay=args.weight_decay,
            warmup_steps=args.warmup_steps,
            per_device_train_batch_size=args.batch_size,
            max_steps=args.max_train_steps,
            lr_scheduler_type="cosine",
            eval_strategy="steps",
            eval_steps=20,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=args.seed,
        )
        model = build_model(args.dropout)
        Trainer(model, settings, train_dataset=train, eval_dataset=valid, callbacks=[tuning]).train()
    if tuning.recording is not None and tuning.recording.best is not None:
        best = tuning.recording.best
        print(f"lowest validation loss {best.value:.4f} at step {best.step}")


if __name__ == "__main__":
    main()
