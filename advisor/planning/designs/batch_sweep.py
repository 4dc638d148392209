"""The design `batch-sweep`: measure the training throughput at batch sizes that are powers of two.

Playbook: "Determining the feasible batch sizes and estimating training throughput".

*When.* The batch size must be chosen although throughput was not measured, or throughput still grows at the largest size tried.
The request's number `from` is the smallest batch size to try.

*What.* Each of eight batch sizes is trained for `STEPS_PER_BATCH_SIZE` steps, and each size is twice the previous one. If a
trial runs out of memory, the remaining trials still run. The rule on throughput analyses the result."""

from __future__ import annotations

from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, RunPlan
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning.base import best_trial_setting, fixed_parameters

N_BATCH_SIZES = 8
STEPS_PER_BATCH_SIZE = 200
"""Number of steps per batch size. The first ones compile, fill caches and start data loaders."""
MEASURE_THROUGHPUT_NOTE = (
    "Measure the throughput of batch sizes with advisor_pytorch.probes.batch_size_sweep: it runs your own step function and stops "
    "at the first size that does not fit in memory."
)
TOTAL_COST_NOTE = (
    "Weigh the whole cost: the cost of a step times the number of steps, and the setup cost of a larger batch, such as more "
    "machines and distributed training code."
)


def design(request: RunPlan, study: Study, base: StudySpec) -> StudySpec | tuple[Change, ...]:
    """Return the batch-size sweep, or advice if the study has no hyperparameter for the batch size."""
    name = next((n for n in base.parameters if parameter_kinds.is_batch_size(n)), None)
    if name is None:
        return (Advise(text=MEASURE_THROUGHPUT_NOTE),)
    smallest_size = max(int(request.numbers.get("from", 1)), 1)
    batch_sizes = tuple(smallest_size * 2**i for i in range(N_BATCH_SIZES))
    why = "powers of two until the device runs out of memory; use the largest size that still raises the throughput"
    batch_size_parameter = Parameter(role="scientific", type="int", choices=batch_sizes, why=why)
    return StudySpec(
        study=base.study,
        goal=f"Measure throughput: {name} from {batch_sizes[0]} to {batch_sizes[-1]}",
        objective=base.objective,
        parameters={**fixed_parameters(best_trial_setting(study, base), base), name: batch_size_parameter},
        trials=N_BATCH_SIZES,
        max_train_steps=STEPS_PER_BATCH_SIZE,
        evaluate_every=STEPS_PER_BATCH_SIZE,
        probe="batch-size",
        notes=(
            MEASURE_THROUGHPUT_NOTE,
            "Or run this study and log train/examples_per_s in each trial, as the advisor's training hook does.",
            TOTAL_COST_NOTE,
        ),
    )
