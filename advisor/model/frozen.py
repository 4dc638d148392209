"""Defines the base class of values that are stored: they are immutable and reject undeclared fields."""

import json

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """An immutable value. In JSON, infinity and NaN become null."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")

    def ascii_json(self) -> str:
        """Return the value as indented JSON in ASCII, so that none of its text can control a terminal."""
        return json.dumps(json.loads(self.model_dump_json()), indent=1)
