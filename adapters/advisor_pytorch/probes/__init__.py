"""Short measurements on your own training step, each logged as a study for `advisor analyze`.

| probe | answers |
|---|---|
| `batch_size_sweep` | examples per second at each batch size, and the largest useful size |
| `learning_rate_range` | the range of learning rates at which training works, and where it diverges |
| `early_instability` | whether the loss blows up in the first steps, between infrequent evaluations |

All of them restore the model, the optimizer, the random states and further given objects, also after an error or Ctrl-C, and leave
data, loaders and files alone. They run in one process; in a distributed training, probe on one device.
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
