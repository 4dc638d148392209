"""The hook for plain PyTorch training loops: `from advisor_pytorch import TuningLogger`."""

try:
    import torch as _torch  # noqa: F401 - only to say plainly what is missing
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ImportError('advisor_pytorch needs PyTorch: pip install "tuning-advisor[torch]"') from None

from advisor_pytorch.logger import TuningLogger

__all__ = ["TuningLogger"]
