"""Files, shell words, processes and packed resources."""
