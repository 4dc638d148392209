"""Files, shell words, packed resources, processes of this machine and of Ray clusters."""
