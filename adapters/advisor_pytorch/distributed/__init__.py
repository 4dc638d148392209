"""The ranks of a distributed training: who records, and what the others tell it."""
