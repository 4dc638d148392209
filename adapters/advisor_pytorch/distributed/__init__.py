"""Support for distributed training: one run is recorded for all ranks."""
