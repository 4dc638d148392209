"""The hook for the Transformers Trainer: `from advisor_transformers import TuningCallback`."""
