"""The rule engine: it loads rules, applies them to a study and explains their findings. It does not depend on specific rules."""
