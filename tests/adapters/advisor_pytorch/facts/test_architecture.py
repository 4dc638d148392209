from __future__ import annotations

import torch
import transformers
from torch import nn

from advisor_pytorch.facts import architecture
from tests.adapters.samples import RootMeanSquareNorm

SMALL = {"vocab_size": 99, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}


def test_batch_norm() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.SyncBatchNorm(2), nn.BatchNorm1d(2, track_running_stats=False))
    wanted = {"layers": 3, "synced": 1, "without_running_stats": 1, "frozen": 0, "momentum": 0.1}
    assert architecture.batch_norm_facts(model) == wanted
    model[0].eval()
    assert architecture.batch_norm_facts(model) == {**wanted, "frozen": 1}
    assert architecture.batch_norm_facts(nn.LayerNorm(2)) is None
    assert architecture.count_norm_layers(nn.Sequential(model, nn.LayerNorm(2), RootMeanSquareNorm())) == {
        "BatchNorm1d": 2,
        "LayerNorm": 1,
        "RootMeanSquareNorm": 1,
        "SyncBatchNorm": 1,
    }


def test_regularisers() -> None:
    class DropPath(nn.Module):
        drop_prob = 0.3

    encoder = nn.TransformerEncoderLayer(8, 2, dropout=0.2)
    model = nn.Sequential(encoder, nn.Dropout(0.1), DropPath(), nn.CrossEntropyLoss(label_smoothing=0.05))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.02)
    assert architecture.regulariser_strengths(model, [optimizer]) == {
        "dropout": 0.2,
        "stochastic_depth": 0.3,
        "label_smoothing": 0.05,
        "weight_decay": 0.02,
    }
    plain = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))
    assert architecture.regulariser_strengths(plain, [torch.optim.SGD(plain.parameters(), lr=0.1)]) == {}


def test_classes_of_a_classifier() -> None:
    config = transformers.BertConfig(**SMALL, num_labels=7)
    assert architecture.number_of_classes(transformers.BertForSequenceClassification(config)) == 7
    assert architecture.number_of_classes(transformers.BertForTokenClassification(config)) is None
    config.problem_type = "regression"
    assert architecture.number_of_classes(transformers.BertForSequenceClassification(config)) is None
