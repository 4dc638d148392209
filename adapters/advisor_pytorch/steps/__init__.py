"""Capture of each optimizer step: from the hooks in the training thread to rows in the writer thread."""
