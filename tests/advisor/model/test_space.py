import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from advisor.model.space import (
    Domain,
    is_learning_rate,
    is_training_length,
    natural_limits_of_name,
    round_outwards,
    round_significant,
    scale_of_new_range,
)


def test_positions_are_measured_on_the_domains_own_scale():
    log = Domain(type="float", low=1e-4, high=1.0, scale="log")
    assert log.to_positions([1e-4, 1e-2, 1.0, 10.0]) == pytest.approx([0, 0.5, 1, 1.25])
    linear = Domain(type="float", low=0, high=4)
    assert linear.to_positions([0, 1, 4]) == pytest.approx([0, 0.25, 1])


def test_what_cannot_stand_on_the_scale_is_nan():
    log = Domain(type="float", low=1e-4, high=1.0, scale="log")
    assert np.isnan(log.to_positions([0.0, -1.0, "word"])).all()


def test_a_reverse_log_scale_is_logarithmic_in_what_is_left_to_one():
    momentum = Domain(type="float", low=0.9, high=0.999, scale="reverse-log")
    assert momentum.to_positions([0.9, 0.99, 0.999, 0.9999]) == pytest.approx([0, 0.5, 1, 1.5])
    assert [momentum.value_at_position(u) for u in (0, 0.5, 1, 1.5)] == pytest.approx([0.9, 0.99, 0.999, 0.9999])
    assert np.isnan(momentum.to_positions([1.0, 2.0, "word"])).all()
    assert momentum.contains(0.95)
    assert not momentum.contains(1.0)


@pytest.mark.parametrize(("value", "shown"), [(0.99954321, 0.999543), (0.9473, 0.947), (1234.5, 1230.0), (1 - 1e-9, 1 - 1e-9)])
def test_what_is_just_below_one_is_not_rounded_to_it(value, shown):
    assert round_significant(value) == shown


def test_choices_have_positions_in_their_order():
    domain = Domain(type="categorical", choices=("a", "b", "c"))
    assert domain.to_positions(["a", "b", "c"]) == pytest.approx([0, 0.5, 1])
    assert math.isnan(domain.to_positions(["d"])[0])
    assert [domain.draw(u) for u in (0, 0.34, 0.99)] == ["a", "b", "c"]


@given(st.floats(1e-12, 1e6), st.floats(1.001, 1e9), st.sampled_from(["log", "linear"]), st.floats(0, 1))
def test_there_and_back_again(low, factor, scale, position):
    domain = Domain(type="float", low=low, high=low * factor, scale=scale)
    assert domain.to_positions([domain.value_at_position(position)])[0] == pytest.approx(position, abs=1e-6)


@given(st.floats(1e-6, 10), st.floats(1.001, 1e3), st.floats(0, 1))
def test_there_and_back_again_in_reverse(left, factor, position):
    domain = Domain(type="float", low=1 - left * factor, high=1 - left, scale="reverse-log")
    assert domain.to_positions([domain.value_at_position(position)])[0] == pytest.approx(position, abs=1e-6)
    assert domain.low <= domain.draw(position) <= domain.high


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_every_integer_gets_its_share(scale):
    domain = Domain(type="int", low=1, high=4, scale=scale)
    drawn = [domain.draw(u) for u in np.linspace(0, 1, 4001)[:-1]]
    counts = np.bincount(drawn)[1:]
    assert set(drawn) == {1, 2, 3, 4}
    if scale == "linear":
        assert counts == pytest.approx([1000] * 4, abs=2)
    else:
        assert (np.diff(counts) < 0).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low": 1.0}, "both low and high"),
        ({"low": 2.0, "high": 1.0}, "less than high"),
        ({"low": 0.0, "high": 1.0, "scale": "log"}, "log scale needs low > 0"),
        ({"low": 0.9, "high": 1.0, "scale": "reverse-log"}, "reverse-log scale needs high < 1"),
        ({"type": "int", "low": -3, "high": 0, "scale": "reverse-log"}, "not for an int"),
        ({"low": 0.0, "high": 1.0, "choices": (1, 2)}, "not both"),
        ({"choices": ()}, "must not be empty"),
        ({"low": 0.0, "high": float("inf")}, "finite"),
        ({"low": 1.0, "high": 2.0, "limits": (None, 1.5)}, "exceeds the limits, -inf to 1.5"),
        ({"low": 1.0, "high": 2.0, "limits": (3.0, 1.0)}, "less than the second"),
        ({"choices": (1, 2), "limits": (1.0, 2.0)}, "choices have none"),
        ({"type": "int", "low": 1, "high": 2, "limits": (0.5, 9.0)}, "must be whole numbers"),
    ],
)
def test_contradictions_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        Domain(**fields)


LIMITS = {
    (0, math.inf): "learning_rate optimizer.lr weight_decay l2",
    (0, 1): "beta1 adam_beta2 dropout_rate label_smoothing beta_2 model.labelSmoothing one_minus_momentum model_ema",
    (-math.inf, math.inf): "x alphabet schema label2 rhombus bandwidth decayed",
}


@pytest.mark.parametrize(("name", "limits"), [(n, limits) for limits, names in LIMITS.items() for n in names.split()])
def test_hard_limits_are_known_by_name(name, limits):
    assert natural_limits_of_name(name) == pytest.approx(limits)


WARMUP_LENGTHS = (
    "max_train_steps epochs num_epochs training_iterations trainSteps trainer.max_epochs nEpochs num_iterations "
    "num_scheduled_iterations max_iter epoch total_timesteps train_tokens"
)
OTHER_COUNTS = (
    "warmup_steps decay_epochs learning_rate eval_steps accumulation_steps grad_accum_steps steps_per_epoch lr_step_size step "
    "val_loss_every max_tokens timesteps num_inference_steps early_stopping_epochs total_decay_steps n_train total_batch_size "
    "log_every_n_steps"
)
RATES = "lr optimizer.lr learningRate lr_backbone max_lr lr0 lr_sgd"
SCHEDULES = "lr_scheduler lr_power lr_num_cycles lr_drop cos_lr scale_lr auto_lr_find warmup_lr lr_mult"


@pytest.mark.parametrize(
    ("recognises", "names", "expected"),
    [
        (is_training_length, WARMUP_LENGTHS, True),
        (is_training_length, OTHER_COUNTS, False),
        (is_learning_rate, RATES, True),
        (is_learning_rate, SCHEDULES, False),
    ],
)
def test_lengths_of_training_and_learning_rates_are_known_by_name(recognises, names, expected):
    assert [n for n in names.split() if recognises(n) != expected] == []


def test_ends_are_rounded_away_from_the_range_by_at_most_one_percent():
    low = {1.2345e-5: 1.23e-5, 0.0050123: 0.005, 0.123: 0.123, -1.2345: -1.24, 0.99912345: 0.99912, 0.0: 0.0}
    assert {v: round_outwards(v, "low") for v in low} == low
    high = {1.2345e-5: 1.24e-5, 98765.0: 99000.0, -1.2345: -1.23, 0.99912345: 0.99913}
    assert {v: round_outwards(v, "high") for v in high} == high


@pytest.mark.parametrize(
    ("name", "low", "high", "scale"),
    [
        ("lr", 1e-4, 1e-1, "log"),
        ("adam_beta2", 0.63, 0.998, "reverse-log"),
        ("momentum", 0.0, 0.99, "reverse-log"),
        ("momentum", 0.5, 0.9, "linear"),
        ("one_minus_beta1", 0.01, 0.99, "linear"),
        ("dropout", 0.0, 0.95, "linear"),
        ("momentum", 0.5, 1.0, "linear"),
    ],
)
def test_the_scale_of_a_range_follows_its_name_and_ends(name, low, high, scale):
    assert scale_of_new_range(name, low, high, "linear") == scale
