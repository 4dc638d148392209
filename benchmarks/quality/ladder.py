"""Measures how often `advisor ladder` is right about real trainings: its answers, and its predictions for the next width.

    python benchmarks/quality/ladder.py --runs DIR         trains what DIR lacks (40 minutes of two cores), prints the table
    python benchmarks/quality/ladder.py --runs DIR --dev   the same on the seeds on which the method was developed

Networks learn a function from fresh samples with Adam, at three widths and at the next one, twice as wide. With standard
initialization and rates, the best rate falls with the width. With rates of the hidden and output layers in proportion to
1 / width and a smaller output at the start, as in mup, it stays. Each study has eight rates a factor of 2 apart. Answers and
predictions were developed on seeds of the shallow networks only; the advised runs were also looked at on ten of the deep ones.

The truth of a width is the lowest point of a parabola through the mean results of all seeds, at rates a factor of 1.4 apart.

Columns: number of answers of each kind; how often the 90 % intervals of the best rate and loss at the next width contain the truth,
and their mean width (octaves; loss); how often the predicted rate of the third width was judged kept, not kept and not decided;
decided answers after the runs that undecided ones ask for, and the mean number of these runs.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from worlds.world import Store

from advisor import contract
from advisor.history.ladder import Ladder, read_ladder
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.tracking.study.assemble import assemble

RATES = tuple(2.0 ** (k / 2) for k in range(-20, -5))
NEXT_SEEDS = 12
CHUNKS = {16: 15, 32: 15, 64: 5, 128: 3, 256: 1}
"""For each width: number of seeds that are trained at once, which is smaller for large models because of the processor's cache."""
INPUTS, BATCH, NOISE = 16, 64, 0.1
Layers = list[torch.Tensor]
Trial = tuple[int, int, int]
"""(width, index of the learning rate, seed) of a trial."""


@dataclass(frozen=True)
class Family:
    """A family of trainings that differ in width, learning rate and seed."""

    name: str
    scaled: bool
    """Whether initialization and learning rates depend on the width as in mup."""
    widths: tuple[int, int, int]
    next: int
    hidden: int
    """Number of hidden layers."""
    steps: int
    cosine: bool
    task: int
    """Seed of the function that the networks learn."""
    seeds: int
    developed: int
    """Number of seeds that were used to develop the method."""

    def parameters(self, width: int) -> int:
        """Return the number of parameters of a network of this width."""
        return sum((a + 1) * b for a, b in itertools.pairwise(self.layers(width)))

    def layers(self, width: int) -> list[int]:
        """Return the sizes of the network's layers."""
        return [INPUTS, *[width] * self.hidden, 1]


SHALLOW = Family(
    "standard", scaled=False, widths=(32, 64, 128), next=256, hidden=2, steps=400, cosine=True, task=123, seeds=45, developed=15
)
DEEP = Family(
    "deep-standard",
    scaled=False,
    widths=(16, 32, 64),
    next=128,
    hidden=3,
    steps=300,
    cosine=False,
    task=7,
    seeds=30,
    developed=10,
)
FAMILIES = [SHALLOW, replace(SHALLOW, name="scaled", scaled=True), DEEP, replace(DEEP, name="deep-scaled", scaled=True)]


# --- trainings ------------------------------------------------------------------------------------------------------------------


def examples(task: int, count: int, made: torch.Generator, noise: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of random examples."""
    weights = torch.Generator().manual_seed(task)
    hidden = torch.randn(INPUTS, 32, generator=weights) * 2 / math.sqrt(INPUTS)
    out = torch.randn(32, 1, generator=weights) / math.sqrt(32)
    x = torch.randn(count, INPUTS, generator=made)
    y = torch.tanh(x @ hidden) @ out
    return x, y + noise * torch.randn(y.shape, generator=made) if noise else y


def initial(family: Family, width: int, seeds: Sequence[int]) -> tuple[Layers, Layers]:
    """Return the initial weights and biases of one network per learning rate and seed; each has shape (rates * seeds, inputs,
    outputs)."""
    weights = []
    for i, (a, b) in enumerate(itertools.pairwise(family.layers(width))):
        spread = math.sqrt((2 if 0 < i < family.hidden else 1) / a)
        if family.scaled and i == family.hidden:
            spread = math.sqrt(family.widths[0]) / a
        drawn = [torch.randn(a, b, generator=torch.Generator().manual_seed(1000 * s + i)) * spread for s in seeds]
        weights.append(torch.stack(drawn).repeat(len(RATES), 1, 1).requires_grad_())
    models = len(RATES) * len(seeds)
    return weights, [torch.zeros(models, 1, b, requires_grad=True) for b in family.layers(width)[1:]]


def outputs(weights: Layers, biases: Layers, x: torch.Tensor) -> torch.Tensor:
    """Return the outputs of all networks, shape (models, examples, 1)."""
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x = torch.relu(torch.baddbmm(bias, x, weight))
    return torch.baddbmm(biases[-1], x, weights[-1])


def train(family: Family, width: int, seeds: Sequence[int]) -> FloatArray:
    """Return the validation losses of shape (rates, seeds), relative to the variance of the targets. All networks are trained at
    once."""
    weights, biases = initial(family, width, seeds)
    trained = [*weights, *biases]
    factors = [1.0, *[family.widths[0] / width if family.scaled else 1.0] * family.hidden, *[1.0] * len(biases)]
    rates = torch.tensor(RATES).repeat_interleave(len(seeds)).view(-1, 1, 1)
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in trained]
    streams = [torch.Generator().manual_seed(77 + s) for s in seeds]
    for step in range(1, family.steps + 1):
        drawn = [examples(family.task, BATCH, stream, NOISE) for stream in streams]
        x, y = (torch.stack(part).repeat(len(RATES), 1, 1) for part in zip(*drawn, strict=True))
        loss = (outputs(weights, biases, x) - y).square().mean((1, 2)).sum()
        gradients = torch.autograd.grad(loss, trained)
        decay = 0.5 * (1 + math.cos(math.pi * step / family.steps)) if family.cosine else 1.0
        with torch.no_grad():
            for p, g, (m, v), factor in zip(trained, gradients, moments, factors, strict=True):
                m.mul_(0.9).add_(g, alpha=0.1)
                v.mul_(0.99).addcmul_(g, g, value=0.01)
                p.sub_(rates * decay * factor * (m / (1 - 0.9**step)) / ((v / (1 - 0.99**step)).sqrt() + 1e-8))
    with torch.no_grad():
        x, y = examples(family.task, 1024, torch.Generator().manual_seed(9))
        losses = (outputs(weights, biases, x.expand(len(RATES) * len(seeds), -1, -1)) - y).square().mean((1, 2)) / y.var()
    return losses.view(len(RATES), -1).numpy().astype(np.float64)


def results(family: Family, width: int, folder: Path) -> FloatArray:
    """Return the validation losses of networks of this width, shape (rates, seeds). The networks are trained only if the folder
    lacks their losses."""
    path = folder / f"{family.name}-{width}.npy"
    if not path.exists():
        seeds = range(NEXT_SEEDS if width == family.next else family.seeds)
        chunks = [seeds[i : i + CHUNKS[width]] for i in range(0, len(seeds), CHUNKS[width])]
        np.save(path, np.concatenate([train(family, width, c) for c in chunks], axis=1))
    return np.asarray(np.load(path), dtype=np.float64)


# --- studies --------------------------------------------------------------------------------------------------------------------


def study(family: Family, losses: dict[int, FloatArray], trials: Sequence[Trial]) -> Study:
    """Return a study that consists of these trials."""
    store = Store("ladder")
    for width, i, seed in trials:
        tags = {contract.TAG_MODEL_PARAMETERS: str(family.parameters(width)), contract.TAG_SEED: str(seed)}
        metrics = {"val/loss": ([family.steps], [losses[width][i, seed]])}
        store.log({"learning_rate": RATES[i], "width": width}, metrics, tags=tags)
    return assemble(store.experiment(), objective="val/loss", direction="minimize")


def advised_trials(family: Family, found: Ladder, seeds: Sequence[int]) -> list[Trial]:
    """Return the trials that the ladder's answer asks for, if their learning rates were trained, with seeds that the study
    lacks."""
    widths = {family.parameters(width): width for width in family.widths}
    fresh = [seed for seed in (*range(seeds[-1] + 1, family.seeds), *range(seeds[0])) if seed not in seeds]
    trials: list[Trial] = []
    for runs in found.runs:
        nearest = [(int(np.argmin(np.abs(np.log(RATES) - math.log(rate)))), rate) for rate in runs.rates]
        known = [i for i, rate in nearest if abs(math.log(RATES[i] / rate)) < 0.1]
        trials += itertools.product([widths[int(runs.size)]], known, fresh[: runs.seeds])
    return trials


def truth(losses: FloatArray) -> tuple[float, float]:
    """Return (log of the best learning rate, loss at that rate)."""
    x, means = np.log(RATES), losses.mean(1)
    best = int(np.nanargmin(means))
    near = slice(max(best - 2, 0), best + 3)
    parabola = np.polyfit(x[near], means[near], 2)
    turn = float(-parabola[1] / (2 * parabola[0]))
    return turn, float(np.polyval(parabola, turn))


def row(family: Family, repeats: int, folder: Path, seeds: range) -> str:
    """Return the table's line for studies with `repeats` seeds per setting."""
    losses = {width: results(family, width, folder) for width in family.widths}
    rate, value = truth(results(family, family.next, folder))
    groups = [seeds[i : i + repeats] for i in range(0, len(seeds) - repeats + 1, repeats)]
    trials = [list(itertools.product(family.widths, range(0, len(RATES), 2), group)) for group in groups]
    found = [read_ladder([study(family, losses, t)], next_size=family.parameters(family.next)) for t in trials]
    more = [advised_trials(family, f, g) for f, g in zip(found, groups, strict=True)]
    repeated = [read_ladder([study(family, losses, [*t, *m])]) for t, m in zip(trials, more, strict=True) if m]
    answers = Counter(f.transfer for f in found)
    rates = [f.next.rate for f in found if f.next.rate is not None]
    values = [f.next.value for f in found if f.next.value is not None]
    cells = [
        family.name,
        f"{repeats}",
        f"{len(found)}",
        *(f"{answers[name]}" for name in ("moves", "stays", "cannot be told")),
        f"{sum(e.low <= math.exp(rate) <= e.high for e in rates)} / {len(rates)}",
        f"{np.mean([math.log2(e.high / e.low) for e in rates]):.1f}",
        f"{sum(e.low <= value <= e.high for e in values)} / {len(values)}",
        f"{np.mean([e.high - e.low for e in values]):.3f}",
        rate_verdicts(found),
        f"{sum(f.transfer != 'cannot be told' for f in repeated)} / {len(repeated)}",
        f"{np.mean([len(m) for m in more if m] or [0]):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def rate_verdicts(found: Sequence[Ladder]) -> str:
    """Return how many predicted learning rates of the largest width were kept, not kept, and not decided."""
    counts = Counter(f.last_rate for f in found)
    return f"{counts['kept']} / {counts['not kept']} / {counts['cannot be told']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the trainings' results")
    parser.add_argument("--dev", action="store_true", help="use the seeds on which the method was developed")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    families = [f for f in FAMILIES if f.developed or not options.dev]
    for family in families:
        optima = [truth(results(family, width, options.runs)) for width in (*family.widths, family.next)]
        print(
            f"{family.name}: best rates", *(f"{math.exp(r):.4f}" for r, _ in optima), "losses", *(f"{v:.4f}" for _, v in optima)
        )
    head = "trainings seeds studies moves stays cannot-be-told rate-held octaves loss-held width last-rate decided runs".split()
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for family, repeats in itertools.product(families, (1, 3)):
        seeds = range(family.developed) if options.dev else range(family.developed, family.seeds)
        print(row(family, repeats, options.runs, seeds), flush=True)


if __name__ == "__main__":
    main()
