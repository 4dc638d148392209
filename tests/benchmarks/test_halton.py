import halton
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    not (halton.FOLDER / "halton_reference").is_dir(), reason="ADVISOR_BENCHMARK names no folder with halton_reference"
)


def test_our_trials_are_at_least_as_even_as_the_reference_in_every_view():
    for row in halton.rows(seeds=25):
        assert (np.median(row.ours, axis=0) <= row.reference.min(axis=0)).all(), row.name
        assert (np.median(row.ours, axis=0) < np.median(row.random, axis=0)).all(), row.name


def test_points_that_continue_a_study_keep_it_even():
    ours = []
    for seed in range(10):
        continued = np.concatenate([halton.trial_positions(10, 5, seed), halton.trial_positions(14, 5, seed, skip=10)])
        assert np.array_equal(continued, halton.trial_positions(24, 5, seed))
        ours.append(halton.discrepancies(continued))
    reference = [halton.discrepancies(sequence) for sequence in halton.reference_sequences()[24, 5]]
    assert (np.median(ours, axis=0) <= np.min(reference, axis=0)).all()
