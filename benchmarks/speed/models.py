"""The networks for which the cost of logging is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it


@dataclass
class Training:
    """Trains a model on noise with AdamW; the cost of a step does not depend on the data."""

    model: nn.Module
    loss: Callable[[], torch.Tensor]
    autocast: torch.dtype | None = None

    def __post_init__(self) -> None:
        first = next(self.model.parameters())
        self.device = first.device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=first.is_cuda)

    def step(self, before_step: Callable[[], object] | None = None) -> torch.Tensor:
        with torch.autocast(self.device.type, self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            loss = self.loss()
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        if before_step is not None:
            before_step()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def perceptron(device: torch.device, width: int, layers: int = 6, batch_size: int = 64) -> Training:
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*parts, nn.Linear(width, 300)).to(device)
    x, y = torch.randn(batch_size, width, device=device), torch.randint(300, (batch_size,), device=device)
    return Training(model, lambda: F.cross_entropy(model(x), y))


class Block(nn.Module):
    """A transformer block: attention and a perceptron, each in a residual branch that begins with a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class LanguageModel(nn.Module):
    """The smallest GPT-2, with 124 million parameters."""

    def __init__(
        self, vocabulary: int = 50257, length: int = 1024, width: int = 768, layers: int = 12, heads: int = 12
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


def gpt2(device: torch.device, batch_size: int = 8, length: int = 1024) -> Training:
    model = LanguageModel().to(device)
    tokens = torch.randint(50257, (batch_size, length + 1), device=device)

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return Training(model, loss, torch.bfloat16)


class Bottleneck(nn.Module):
    """A ResNet bottleneck: a residual branch of three convolutions, and a shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.branch = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        same = before == after and stride == 1
        projection = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.shortcut = nn.Identity() if same else projection

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.branch(x) + self.shortcut(x), inplace=True)


def resnet50(device: torch.device, batch_size: int = 64, size: int = 224) -> Training:
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    blocks: list[nn.Module] = []
    before = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for i in range(depth):
            blocks.append(Bottleneck(before, width, 2 if i == 0 and stage > 0 else 1))
            before = 4 * width
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000)).to(device)
    x, y = torch.randn(batch_size, 3, size, size, device=device), torch.randint(1000, (batch_size,), device=device)
    return Training(model, lambda: F.cross_entropy(model(x), y), torch.bfloat16)


MODELS: dict[str, Callable[[torch.device], Training]] = {
    "tiny": lambda device: perceptron(device, 4, batch_size=2),
    "5ms": lambda device: perceptron(device, 250),
    "10M": lambda device: perceptron(device, 1265),
    "gpt2": gpt2,
    "resnet50": resnet50,
}
