"""Trains a tiny language model and its tokenizer, and saves them in the format that TRL's trainers load. The training is
supervised, and precedes the fine-tuning by TRL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, END, FIRST_WORD, WORDS, PROMPTS = 0, 1, 2, 11, 32
FIRST_PROMPT = FIRST_WORD + WORDS
MAX_LENGTH = 12
Texts = Callable[[torch.Generator], Tensor]
"""Function that returns a batch of token ids (n, length), in which PAD follows END."""


@lru_cache(maxsize=1)
def tokenizer() -> PreTrainedTokenizerFast:
    names = ["<pad>", "<eos>", *(f"w{i}" for i in range(WORDS)), *(f"p{i}" for i in range(PROMPTS))]
    words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def text(ids: Tensor) -> str:
    """Return the token ids of words and prompts as text."""
    return tokenizer().decode(ids.tolist(), skip_special_tokens=True)


def pretrain(texts: Texts, seed: int, steps: int = 300) -> Path:
    """Train a randomly initialised model on these texts, and return the folder in which it is saved."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=FIRST_PROMPT + PROMPTS,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=MAX_LENGTH,
            initializer_range=0.1,
            pad_token_id=PAD,
            eos_token_id=END,
            bos_token_id=END,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = texts(random)
        logits = model(input_ids=batch).logits[:, :-1]
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], ignore_index=PAD).backward()
        optimizer.step()
        schedule.step()
    folder = _folder() / f"model-{len(list(_folder().iterdir()))}"
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@lru_cache(maxsize=1)
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="trl-models-")
    _kept.append(folder)
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []
"""Keeps the folders of models until the process ends."""
