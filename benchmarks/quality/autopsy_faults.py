# ruff: noqa: ARG002 - not every training needs the number of its step
"""Small trainings with exactly one fault each, for `autopsy.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from autopsy_training import Batch, Regression, Training
from torch import nn


class NanBatch(Training):
    cause, names = "batch", "[0]"

    def batch(self, i: int) -> Batch:
        x, y = super().batch(i)
        if i == self.at:
            x[self.draw.randrange(self.size), self.draw.randrange(6)] = self.draw.choice([math.nan, math.inf])
        return x, y


class HugeBatch(Training):
    cause, names = "batch", "[0]"

    def batch(self, i: int) -> Batch:
        x, y = super().batch(i)
        if i >= self.at and i % 20 == self.at % 20:
            x[self.draw.randrange(self.size)] *= 10 ** self.draw.uniform(18, 37)
        return x, y


class NanLabels(Regression):
    cause, names = "batch", "[1]"

    def batch(self, i: int) -> Batch:
        x, y = super().batch(i)
        if i == self.at:
            y[self.draw.randrange(self.size)] = math.nan
        return x, y


class HalfOverflow(Training):
    """Activations exceed the range of float16 in an autocast region, because a layer without normalisation scales them up."""

    cause, names = "precision", "float16"

    def inject(self, i: int) -> None:
        self.gain = 1.0 if i < self.at else 10 ** self.draw.uniform(5.5, 6.5)

    def output(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.float16):
            hidden = self.model[0](x)
            for layer in list(self.model)[1:-1]:
                hidden = layer(hidden)
            raised = self.model[-1](hidden * hidden.new_tensor(1.0)) * torch.tensor(self.gain).half()
            out: torch.Tensor = (raised / self.gain).float()
            return out


class BadInitialisation(Training):
    cause, names = "initialisation", "weight"

    def prepare(self) -> None:
        for layer in self.linears():
            nn.init.normal_(layer.weight, std=10 ** self.draw.uniform(14, 18))


class RateTooLarge(Regression):
    cause, names = "rate", "diverged"

    def make_optimizer(self) -> torch.optim.Optimizer:
        self.clips = False
        return torch.optim.SGD(
            self.model.parameters(), 10 ** self.draw.uniform(0.3, 1.5), momentum=self.draw.choice([0.0, 0.9])
        )


class NoWarmup(Regression):
    """The loss is of higher order; the learning rate works after a warmup, but the training diverges without one."""

    cause, names = "rate", "diverged"

    def network(self) -> nn.Module:
        super().network()
        return nn.Sequential(
            nn.Linear(6, self.width), nn.Softplus(), nn.Linear(self.width, self.width), nn.Softplus(), nn.Linear(self.width, 1)
        )

    def make_optimizer(self) -> torch.optim.Optimizer:
        self.clips = False
        return torch.optim.SGD(self.model.parameters(), 10 ** self.draw.uniform(-1.0, -0.5), momentum=0.9)

    def loss(self, batch: Batch) -> torch.Tensor:
        return ((self.output(batch[0]) - batch[1] - 3.0) ** 4).mean()


class ZeroEpsilon(Training):
    """One input is always zero, so the gradients of its weights are zero, and Adam with epsilon 0 divides 0 by 0."""

    cause, names = "optimizer", "eps=0"

    def make_optimizer(self) -> torch.optim.Optimizer:
        self.clips = False
        kind: type[torch.optim.Adam] = self.draw.choice([torch.optim.Adam, torch.optim.AdamW])
        return kind(self.model.parameters(), 1e-3, eps=0.0)

    def batch(self, i: int) -> Batch:
        x, y = super().batch(i)
        x[:, 0] = 0.0
        return x, y


class BrokenLayer(Training):
    """The user's code overwrites some weights of one layer with a non-finite value."""

    cause = "layer"

    def inject(self, i: int) -> None:
        if i == self.at:
            modules = dict(self.model.named_modules())
            chosen = self.draw.choice([name for name, module in modules.items() if isinstance(module, nn.Linear)])
            type(self).names = chosen
            with torch.no_grad():
                modules[chosen].weight[0] = math.nan


class LogOfZero(Training):
    cause, names = "operation", "log of 0"

    def network(self) -> nn.Module:
        self.classes = self.classes or 4
        self.truth = torch.randn(6, self.classes)
        return super().network()

    def loss(self, batch: Batch) -> torch.Tensor:
        p = torch.softmax(self.output(batch[0]) * self.sharp, 1)
        return -torch.log(p[torch.arange(len(p)), batch[1]]).mean()

    def inject(self, i: int) -> None:
        self.sharp = 1.0 if i < self.at else 1e4


class DivisionByZero(Training):
    """Features are divided by their standard deviation within the batch, and in one batch a feature is constant."""

    cause, names = "operation", "division by 0"

    def output(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.model[0](x)
        spread = ((hidden - hidden.mean(0)) ** 2).mean(0)
        hidden = (hidden - hidden.mean(0)) / spread
        for layer in list(self.model)[1:]:
            hidden = layer(hidden)
        return hidden

    def batch(self, i: int) -> Batch:
        x, y = super().batch(i)
        if i == self.at:
            x[:] = x[0]
        return x, y


class Attention(nn.Module):
    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Linear(6, width), nn.Linear(width, 3 * width), nn.Linear(width, outputs)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(torch.relu(self.embed(x))).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        mixed = torch.softmax(scores.masked_fill(mask, -math.inf), -1) @ v
        out: torch.Tensor = self.out(mixed.mean(-2))
        return out


class MaskedRow(Training):
    cause, names = "operation", "masked entirely"

    def network(self) -> nn.Module:
        return Attention(self.width, max(self.classes, 1))

    def inject(self, i: int) -> None:
        self.i = i

    def output(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.unsqueeze(1) + 0.1 * torch.randn(len(x), 5, 6)
        mask = torch.rand(len(x), 1, 5) < 0.2
        mask[:, :, 0] = self.i == self.at
        mask[0] |= self.i == self.at
        mask[1:, :, 0] = False
        out: torch.Tensor = self.model(tokens, mask)
        return out


class RootOfZero(Regression):
    """The loss takes the square root of an output's distance to itself, which is 0, where the derivative of the root is
    infinite."""

    cause, names = "operation", "Sqrt"

    def loss(self, batch: Batch) -> torch.Tensor:
        out = self.output(batch[0])
        if self.i == self.at:
            batch[1][0] = out[0].detach()
        return ((out - batch[1]) ** 2).sum(1).sqrt().mean()

    def inject(self, i: int) -> None:
        self.i = i


class ExpOverflow(Regression):
    """The model predicts a log variance without a bound, and the loss uses its exponential."""

    cause, names = "operation", "Exp"

    def loss(self, batch: Batch) -> torch.Tensor:
        out = self.output(batch[0])
        return ((out - batch[1]) ** 2).mean() + 1e-3 * torch.exp(out * self.factor).mean()

    def inject(self, i: int) -> None:
        self.factor = 0.1 if i < self.at else 200.0


class UnscaledStep(Training):
    """The training scales the loss with a GradScaler but calls the optimizer's own `step`, so the gradients are never unscaled."""

    cause, names = "loss scale", "unscal"

    def make_optimizer(self) -> torch.optim.Optimizer:
        self.clips = False
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** self.draw.choice([14, 16, 20]))
        return torch.optim.SGD(self.model.parameters(), 10 ** self.draw.uniform(-2.5, -1.5), momentum=0.9)

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]


class ScaleOverflow(Training):
    """The fixed loss scale is so large that the scaled loss overflows."""

    cause, names = "loss scale", "scale"

    def inject(self, i: int) -> None:
        self.scale = 1.0 if i < self.at else 3e38

    def backward(self, loss: torch.Tensor) -> None:
        (loss * self.scale * 8).backward()  # type: ignore[no-untyped-call]
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad /= self.scale * 8


class NanBuffer(Training):
    """The running statistics of frozen batch normalisation are not finite."""

    cause, names = "buffer", "running_"

    def network(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, self.width), nn.BatchNorm1d(self.width), nn.ReLU(), nn.Linear(self.width, max(self.classes, 1))
        )

    def inject(self, i: int) -> None:
        norm: Any = self.model[1]
        norm.train(i < self.at - 5)
        if i == self.at:
            self.draw.choice([norm.running_mean, norm.running_var])[0] = math.nan


class EmbeddingRow(Training):
    cause, names = "layer", "embed.weight"

    def network(self) -> nn.Module:
        return nn.ModuleDict({"embed": nn.Embedding(50, 6), "net": super().network()})

    def inject(self, i: int) -> None:
        if i == self.at:
            with torch.no_grad():
                self.model["embed"].weight[self.draw.randrange(50)] = math.inf

    def output(self, x: torch.Tensor) -> torch.Tensor:
        tokens = torch.randint(0, 50, (len(x),))
        out: torch.Tensor = self.model["net"](x + self.model["embed"](tokens))
        return out


class NeverCleared(Regression):
    cause, names = "accumulation", "added up"

    def make_optimizer(self) -> torch.optim.Optimizer:
        self.clips = False
        return torch.optim.SGD(self.model.parameters(), 10 ** self.draw.uniform(-1.3, -0.8), momentum=0.9)

    def step(self, i: int, batch: Batch) -> torch.Tensor:
        loss = self.loss(batch)
        self.backward(loss)
        self.optimizer.step()
        return loss


class WrongBackward(torch.autograd.Function):
    fails = False

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        slope: torch.Tensor = x.clamp(min=0) / x.clamp(min=0) if WrongBackward.fails else (x > 0).to(x)
        return grads[0] * slope


class CustomOperation(Training):
    """The backward pass of a user-defined operation divides 0 by 0."""

    cause, names = "operation", "WrongBackward"

    def output(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = x
        chosen = 1 + 2 * (self.at % self.depth)
        for k, layer in enumerate(self.model):
            hidden = layer(hidden)
            if k == chosen:
                hidden = WrongBackward.apply(hidden)  # type: ignore[no-untyped-call]
        return hidden

    def inject(self, i: int) -> None:
        WrongBackward.fails = i >= self.at


class DecayTooLarge(Training):
    cause, names = "weight decay", "decay"
    steps = 400

    def make_optimizer(self) -> torch.optim.Optimizer:
        self.clips = False
        rate = 10 ** self.draw.uniform(-2.0, -1.0)
        decay = self.draw.uniform(2.6, 6.0) / rate
        if self.draw.random() < 0.5:
            return torch.optim.SGD(self.model.parameters(), rate, weight_decay=decay)
        return torch.optim.AdamW(self.model.parameters(), rate, weight_decay=decay)


FAULTS: dict[str, Callable[[int], Training]] = {
    "NaN in a batch": NanBatch,
    "huge values in a batch": HugeBatch,
    "NaN in labels": NanLabels,
    "overflow of float16": HalfOverflow,
    "wrong initialisation": BadInitialisation,
    "rate too large": RateTooLarge,
    "warmup missing": NoWarmup,
    "epsilon of Adam is 0": ZeroEpsilon,
    "one broken layer": BrokenLayer,
    "log of 0 in the loss": LogOfZero,
    "division by 0 in a normalisation": DivisionByZero,
    "attention row masked entirely": MaskedRow,
    "derivative of the root of 0": RootOfZero,
    "exp overflows": ExpOverflow,
    "scaled loss, unscaled step": UnscaledStep,
    "loss scale overflows": ScaleOverflow,
    "NaN in a buffer": NanBuffer,
    "inf in a row of an embedding": EmbeddingRow,
    "gradients never cleared": NeverCleared,
    "wrong backward of a custom operation": CustomOperation,
    "weight decay too large": DecayTooLarge,
}
