"""The hook for Lightning: `from advisor_lightning import TuningCallback`."""
