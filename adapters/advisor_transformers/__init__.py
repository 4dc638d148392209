"""Callback that connects the Transformers Trainer to Tuning Advisor: `from advisor_transformers import TuningCallback`."""

import importlib.util as _util

if not all(_util.find_spec(name) for name in ("torch", "transformers", "accelerate")):
    raise ImportError('advisor_transformers needs the Trainer: pip install "tuning-advisor[transformers]"')

from advisor_transformers.callback import TuningCallback

__all__ = ["TuningCallback"]
