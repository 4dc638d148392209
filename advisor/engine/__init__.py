"""The rule engine loads rules, applies them to a study and explains their findings. It depends on no specific rule."""
