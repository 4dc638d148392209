from __future__ import annotations

from dataclasses import replace

import pytest
from small_experiments import experiment, points, run

from advisor.tracking.study.assemble import assemble

SIZES = (32, 64, 128, 256, 512, 1024) * 3


def read(fails, *, tags=None, logs=lambda size: False, sizes=SIZES):
    """Return the study of trials at several batch sizes. Some trials fail; by default, these log nothing."""
    runs = [
        replace(
            run(i, status="FAILED" if fails(i, s) else "FINISHED", tags=tags if fails(i, s) else {}, batch_size=s, lr=i + 1),
            started=100.0 + i,
        )
        for i, s in enumerate(sizes)
    ]
    logged = [i for i, s in enumerate(sizes) if not fails(i, s) or logs(s)]
    return assemble(
        experiment(runs, val__loss=points(*((i, step, 1.0 / step, 100 + step) for i in logged for step in (1, 2, 3)))),
        objective="val/loss",
    )


def out_of_memory(study):
    return [t.facts.get("error", "").startswith("out of memory") for t in study.trials]


def test_silent_failures_at_the_largest_batch_sizes_ran_out_of_memory():
    study = read(lambda i, size: size >= 512)
    assert out_of_memory(study) == [s >= 512 for s in SIZES]
    assert [t.status == "infeasible" for t in study.trials] == [s >= 512 for s in SIZES]
    (text,) = [d.text for d in study.decisions if "memory" in d.text]
    assert text.startswith("6 of 18 trials probably ran out of memory: ")
    assert text.endswith("only with batch_size of 512 or more.")


@pytest.mark.parametrize(
    ("fails", "options"),
    [
        (lambda i, size: i % 5 == 0, {}),
        (lambda i, size: size <= 64, {}),
        (lambda i, size: size >= 512, {"logs": lambda size: True}),
        (lambda i, size: size >= 512 and i != 4, {}),
        (lambda i, size: i == 17, {}),
        (lambda i, size: size >= 512, {"tags": {"error": "ValueError: more heads than dimensions"}}),
        (lambda i, size: size >= 512, {"sizes": sorted(SIZES)}),
    ],
    ids=["any size", "small sizes", "logged", "one large size trained", "too few", "another error", "an outage at the end"],
)
def test_other_failures_did_not(fails, options):
    study = read(fails, **options)
    assert not any(out_of_memory(study))
    assert not any("memory" in d.text for d in study.decisions)
