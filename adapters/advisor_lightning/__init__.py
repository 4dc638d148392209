"""Callback that connects Lightning to Tuning Advisor: `from advisor_lightning import TuningCallback`."""

import importlib.util as _util

if not any(_util.find_spec(name) for name in ("lightning", "pytorch_lightning")):
    raise ImportError('advisor_lightning needs Lightning: pip install "tuning-advisor[lightning]"')

from advisor_lightning.callback import TuningCallback

__all__ = ["TuningCallback"]
