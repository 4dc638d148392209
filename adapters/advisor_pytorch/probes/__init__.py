"""Short measurements on a training step of your own, each logged as a study that `advisor analyze` reads.

| probe | answers |
|---|---|
| `batch_size_sweep` | how many examples per second each batch size gives, and which one is worth its size |
| `learning_rate_range` | between which learning rates training works, and from where it diverges |
| `early_instability` | whether the loss blows up in the first steps, as evaluations far apart do not show |

All of them put the model, the optimizer, the random states and what else they are given back as they found them, also after an
error or Ctrl-C, and leave data, loaders and files alone. They run in one process; in a distributed training, probe on one device.
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
