"""The rule engine. It loads rules, holds a study against them and explains their findings; it knows no rule by name."""
