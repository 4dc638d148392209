"""The rule engine loads rules, applies them to a study and explains their findings. The engine does not depend on specific
rules."""
