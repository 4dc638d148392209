"""Step Law: the published formula, and a batch that a trainer can use."""

import pytest

from advisor.planning.recipes.step_law import batch_tokens, batch_tokens_power_of_two, learning_rate


def test_the_formula_is_the_published_one():
    assert learning_rate(1e9, 1e11) == pytest.approx(1.79 * 1e9**-0.713 * 1e11**0.307)
    assert learning_rate(1e9, 1e11) == pytest.approx(1.63e-3, rel=0.01)
    assert batch_tokens(1e11) == pytest.approx(1.11e6, rel=0.01)


def test_the_rate_falls_with_the_model_and_rises_with_the_data():
    assert learning_rate(1e9, 1e10) < learning_rate(1e8, 1e10) < learning_rate(1e8, 1e11)


@pytest.mark.parametrize("tokens", [1, 1e6, 2.5e9, 1e13])
def test_the_batch_is_the_nearest_power_of_two(tokens):
    batch = batch_tokens_power_of_two(tokens)
    assert batch & (batch - 1) == 0
    assert batch == 1 or 2**-0.5 <= batch / batch_tokens(tokens) <= 2**0.5
