"""Short measurements of your training step; each is logged as a study that `advisor analyze` can read.

| probe | measures |
|---|---|
| `batch_size_sweep` | examples per second at each batch size, and the largest useful batch size |
| `learning_rate_range` | the range of learning rates at which training works, and the rate at which it starts to diverge |
| `early_instability` | whether the loss blows up in the first steps, which infrequent evaluations miss |

Every probe restores the model, the optimizer, the random states and the objects in `also`, even after an error or Ctrl-C. A
probe does not restore data, loaders and files. A probe runs in one process; for a distributed training, run it on one device.
"""

from advisor_pytorch.probes.batch_size import BatchSizeSweep, batch_size_sweep
from advisor_pytorch.probes.early_instability import EarlyInstability, early_instability
from advisor_pytorch.probes.learning_rate import LearningRateRange, learning_rate_range

__all__ = [
    "BatchSizeSweep",
    "EarlyInstability",
    "LearningRateRange",
    "batch_size_sweep",
    "early_instability",
    "learning_rate_range",
]
