"""Captures each optimizer step, from the hooks in the training thread to the rows in the writer thread."""
