"""The plan `batch-sweep`: the throughput at batch sizes of powers of two.

Playbook: "Determining the feasible batch sizes and estimating training throughput".

*What calls for it.* The batch size is to be chosen and no throughput is known, or it still grows at the largest size that was
tried (`batch-throughput`). Numbers: `from`, the smallest size to try.

*What it does.* A few steps at each of eight sizes, each twice the one before, until the device runs out of memory: a trial that
does is recorded as that and ends nobody else's. `batch-throughput` reads it. `advisor_pytorch.probes.batch_size_sweep` measures
the same in one process on the training's own step function, and stops at the first size that does not fit.
"""

from __future__ import annotations

from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, RunPlan
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning.base import best_setting, fixed

SIZES = 8
STEPS = 200
"""Long enough for a reliable estimate: the first steps compile, fill caches and start loaders."""
PROBE = (
    "advisor_pytorch.probes.batch_size_sweep measures the throughput of batch sizes on your own step function, and stops where "
    "memory ends."
)


def design(ask: RunPlan, study: Study, base: StudySpec) -> StudySpec | tuple[Change, ...]:
    """The sweep; advice where no hyperparameter is the batch size."""
    name = next((n for n in base.parameters if parameter_kinds.is_batch_size(n)), None)
    if name is None:
        return (Advise(text=PROBE),)
    known = fixed(best_setting(study, base), base, "as in the best trial so far")
    spec = sweep(base.objective, name, max(int(ask.numbers.get("from", 1)), 1), study=base.study)
    return spec.model_copy(update={"parameters": known | dict(spec.parameters)})


def sweep(objective: Objective, name: str, smallest: int, *, study: str) -> StudySpec:
    """The study of batch sizes from `smallest` on."""
    sizes = tuple(smallest * 2**i for i in range(SIZES))
    why = "powers of two until the device runs out of memory; the largest that still raises the throughput is the one to use"
    return StudySpec(
        study=study,
        goal=f"Measure throughput: {name} from {sizes[0]} to {sizes[-1]}",
        objective=objective,
        parameters={name: Parameter(role="scientific", type="int", choices=sizes, why=why)},
        trials=SIZES,
        max_train_steps=STEPS,
        evaluate_every=STEPS,
        probe="batch-size",
        notes=(
            PROBE,
            "Or run this study: each trial is to log train/examples_per_s, as the advisor's training hook does.",
        ),
    )
