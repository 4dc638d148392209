"""Names of hyperparameters, and that PyTorch's updates differ from the playbook's formulas as documented and in no other way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from advisor_pytorch.facts.optimizers import further_optimizer_tags, hyperparameters

LR, GAMMA, BETA1, BETA2, RHO, EPS = 0.1, 0.9, 0.8, 0.99, 0.95, 1e-2
GRADIENTS = [0.5, -0.2, 0.7, 0.1, -0.4, 0.3]
RATES = [LR, LR, LR / 2, LR / 2, LR / 4, LR]
"""They change, because where the learning rate stands in a rule shows only then."""


def positions(optimizer_class: type[torch.optim.Optimizer], **settings: object) -> list[float]:
    """Return the positions of PyTorch's optimizer, starting from 1.0."""
    weight = nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = optimizer_class([weight], lr=LR, **settings)  # type: ignore[call-arg]
    found = []
    for gradient, rate in zip(GRADIENTS, RATES, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        found.append(weight.item())
    return found


def follow(steps: Callable[[], Iterator[float]], weight_decay: float = 0.0) -> list[float]:
    """Return the positions of a rule; `steps` yields its steps (without decoupled weight decay)."""
    at, found = 1.0, []
    for step, rate in zip(steps(), RATES, strict=True):
        at = at - rate * weight_decay * at - step
        found.append(at)
    return found


def both() -> Iterator[tuple[float, float]]:
    yield from zip(GRADIENTS, RATES, strict=True)


# The playbook's formulas, and PyTorch's ways to differ from them as arguments.


def momentum(nesterov: bool, dampening: float = 0.0) -> Iterator[float]:
    v = 0.0
    for t, (g, rate) in enumerate(both()):
        v = GAMMA * v + (1 - dampening if t else 1.0) * g
        yield rate * (GAMMA * v + g if nesterov else v)


def rmsprop(start: float = 1.0, outside: bool = False) -> Iterator[float]:
    """With `outside`, epsilon is outside the root, and the learning rate outside the buffer."""
    v, m = start, 0.0
    for g, rate in both():
        v = RHO * v + (1 - RHO) * g * g
        scaled = g / (math.sqrt(v) + EPS) if outside else rate * g / math.sqrt(v + EPS)
        m = GAMMA * m + scaled
        yield rate * m if outside else m


def adam(eps_of: Callable[[int], float] = lambda t: EPS) -> Iterator[float]:
    m = v = 0.0
    for t, (g, rate) in enumerate(both(), start=1):
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
        b = math.sqrt(1 - BETA2**t) / (1 - BETA1**t)
        yield rate * m / (math.sqrt(v) + eps_of(t)) * b


def nadam(eps_of: Callable[[int], float] = lambda t: EPS, ahead: int = 0) -> Iterator[float]:
    """`ahead`: number of steps by which the bias correction of the momentum is ahead of the gradient's."""
    m = v = 0.0
    for t, (g, rate) in enumerate(both(), start=1):
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
        top = BETA1 * m / (1 - BETA1 ** (t + ahead)) + (1 - BETA1) * g / (1 - BETA1**t)
        yield rate * top / (math.sqrt(v) + eps_of(t)) * math.sqrt(1 - BETA2**t)


def epsilon_as_in_pytorch(t: int) -> float:
    return EPS * math.sqrt(1 - BETA2**t)


def test_momentum_and_nesterov_are_the_playbook_s() -> None:
    sgd = torch.optim.SGD
    assert positions(sgd) == pytest.approx(follow(lambda: (rate * g for g, rate in both())))
    assert positions(sgd, momentum=GAMMA) == pytest.approx(follow(lambda: momentum(False)))
    assert positions(sgd, momentum=GAMMA, nesterov=True) == pytest.approx(follow(lambda: momentum(True)))
    dampened = positions(sgd, momentum=GAMMA, dampening=0.5)
    assert dampened == pytest.approx(follow(lambda: momentum(False, dampening=0.5)))


def test_rmsprop_differs_in_its_start_its_epsilon_and_the_place_of_the_learning_rate() -> None:
    found = positions(torch.optim.RMSprop, alpha=RHO, eps=EPS, momentum=GAMMA)
    assert found == pytest.approx(follow(lambda: rmsprop(start=0.0, outside=True)))
    for other in (rmsprop, lambda: rmsprop(start=0.0), lambda: rmsprop(outside=True)):
        assert found != pytest.approx(follow(other), rel=1e-3)
    assert abs(found[0] - 1) > 2 * abs(follow(rmsprop)[0] - 1)  # larger first steps


def test_adam_differs_in_its_epsilon_early_on() -> None:
    found = positions(torch.optim.Adam, betas=(BETA1, BETA2), eps=EPS)
    assert found == pytest.approx(follow(lambda: adam(epsilon_as_in_pytorch)))
    assert found != pytest.approx(follow(adam), rel=1e-3)
    assert epsilon_as_in_pytorch(1000) == pytest.approx(EPS, rel=1e-4)


def test_nadam_differs_in_its_epsilon_its_growing_beta1_and_a_bias_correction() -> None:
    # So large a decay makes beta1 constant, which leaves the other two differences.
    found = positions(torch.optim.NAdam, betas=(BETA1, BETA2), eps=EPS, momentum_decay=1e6)
    assert found == pytest.approx(follow(lambda: nadam(epsilon_as_in_pytorch, ahead=1)))
    for other in (nadam, lambda: nadam(epsilon_as_in_pytorch), lambda: nadam(ahead=1)):
        assert found != pytest.approx(follow(other), rel=1e-3)
    assert positions(torch.optim.NAdam, betas=(BETA1, BETA2), eps=EPS) != pytest.approx(found, rel=1e-3)


def test_nadam_s_beta1_grows_as_documented() -> None:
    decay = 0.004

    def grown() -> Iterator[float]:
        m = v = 0.0
        product = 1.0
        for t, (g, rate) in enumerate(both(), start=1):
            now, ahead = (BETA1 * (1 - 0.5 * 0.96 ** (s * decay)) for s in (t, t + 1))
            product *= now
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
            top = ahead * m / (1 - product * ahead) + (1 - now) * g / (1 - product)
            yield rate * top / (math.sqrt(v) + epsilon_as_in_pytorch(t)) * math.sqrt(1 - BETA2**t)

    found = positions(torch.optim.NAdam, betas=(BETA1, BETA2), eps=EPS, momentum_decay=decay)
    assert found == pytest.approx(follow(grown))


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Adam", "NAdam", "Adagrad"])
def test_weight_decay_is_part_of_the_gradient(name: str) -> None:
    optimizer_class = getattr(torch.optim, name)
    weight = nn.Parameter(torch.tensor(1.0))
    optimizer = optimizer_class([weight], lr=LR, weight_decay=0.5)
    weight.grad = torch.tensor(0.25)
    optimizer.step()
    other = nn.Parameter(torch.tensor(1.0))
    plain = optimizer_class([other], lr=LR)
    other.grad = torch.tensor(0.25 + 0.5)
    plain.step()
    assert float(weight) == pytest.approx(float(other))


def test_weight_decay_of_adamw_is_apart_from_the_gradient() -> None:
    found = positions(torch.optim.AdamW, betas=(BETA1, BETA2), eps=EPS, weight_decay=0.1)
    assert found == pytest.approx(follow(lambda: adam(epsilon_as_in_pytorch), weight_decay=0.1))


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_weight_decay_of_others_is_apart_from_the_gradient(name: str) -> None:
    if not hasattr(torch.optim, name):
        pytest.skip(f"this PyTorch has no {name}")
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = getattr(torch.optim, name)([weight], lr=LR, weight_decay=0.5)
    weight.grad = torch.zeros(2, 2)
    optimizer.step()
    assert weight.tolist() == [pytest.approx([1 - LR * 0.5] * 2)] * 2


def test_adagrad_s_decay_divides_the_learning_rate() -> None:
    total, steps = 0.0, []
    for t, (g, rate) in enumerate(both()):
        total += g * g
        steps.append(rate / (1 + t * 0.5) * g / (math.sqrt(total) + EPS))
    assert positions(torch.optim.Adagrad, lr_decay=0.5, eps=EPS) == pytest.approx(follow(lambda: iter(steps)))


def weights() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(2, 2))]


def test_rules_have_the_playbook_s_names() -> None:
    rules = [
        (torch.optim.SGD(weights(), lr=0.1), "SGD"),
        (torch.optim.SGD(weights(), lr=0.1, momentum=0.9), "momentum"),
        (torch.optim.SGD(weights(), lr=0.1, momentum=0.9, nesterov=True), "Nesterov"),
        (torch.optim.RMSprop(weights()), "RMSProp"),
        (torch.optim.Adam(weights()), "Adam"),
        (torch.optim.NAdam(weights()), "NAdam"),
        (torch.optim.AdamW(weights()), "AdamW"),
        (torch.optim.LBFGS(weights()), "LBFGS"),
    ]
    assert [hyperparameters(optimizer)["update_rule"] for optimizer, _ in rules] == [name for _, name in rules]


def test_any_optimizer_of_pytorch_can_be_described() -> None:
    described = 0
    for name in dir(torch.optim):
        optimizer_class = getattr(torch.optim, name)
        if isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.Optimizer) and name != "Optimizer":
            found = hyperparameters(optimizer_class(weights(), lr=0.5))
            assert found["learning_rate"] == "0.5", name
            assert not {"lr", "eps", "betas", "foreach", "fused", "params"} & set(found)
            described += 1
    assert described >= 12
    assert hyperparameters(torch.optim.Adafactor(weights()))["epsilon"] == "(None, 0.001)"


def test_further_optimizers_and_groups_are_described_where_they_differ() -> None:
    first = torch.optim.SGD([{"params": weights()}, {"params": weights(), "lr": 0.5}], lr=0.1)
    second = torch.optim.AdamW([{"params": weights()}, {"params": weights(), "weight_decay": 0.0}], lr=0.01)
    tags = further_optimizer_tags([first, second])
    wanted = {
        "advisor.optimizer.group1.learning_rate": "0.5",
        "advisor.optimizer.optimizer1": "AdamW",
        "advisor.optimizer.optimizer1.learning_rate": "0.01",
        "advisor.optimizer.optimizer1.group1.weight_decay": "0.0",
    }
    assert {name: tags.get(name) for name in wanted} == wanted
    assert "advisor.optimizer.group1.momentum" not in tags
    assert "advisor.optimizer.learning_rate" not in tags


def test_hyperparameters_have_the_playbook_s_names() -> None:
    sgd = hyperparameters(torch.optim.SGD(weights(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01))
    assert sgd | {"learning_rate": "0.1", "momentum": "0.9", "nesterov": "True", "weight_decay": "0.01"} == sgd
    rmsprop = hyperparameters(torch.optim.RMSprop(weights(), lr=0.1, alpha=0.95, eps=1e-6, momentum=0.5))
    assert rmsprop | {"rho": "0.95", "epsilon": "1e-06", "momentum": "0.5"} == rmsprop
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam):
        adam = hyperparameters(kind(weights(), lr=0.1, betas=(0.8, 0.99), eps=1e-7))
        assert adam | {"learning_rate": "0.1", "beta1": "0.8", "beta2": "0.99", "epsilon": "1e-07"} == adam
        assert not {"foreach", "fused", "params", "betas", "lr"} & set(adam)
    scheduled = torch.optim.Adam(weights(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(scheduled, lambda step: step / 100)
    assert hyperparameters(scheduled)["learning_rate"] == "0.1"
    assert "rho" in hyperparameters(torch.optim.Adadelta(weights()))
