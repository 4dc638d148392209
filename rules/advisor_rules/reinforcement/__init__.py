"""Training of a policy by rewards, such as GRPO for language models."""
