"""Base class of stored values, which are immutable and have no undeclared fields."""

import json

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """An immutable value. In JSON, infinity and NaN become null."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")

    def ascii_json(self) -> str:
        """Return the value as indented JSON with only ASCII characters, so that no text in it can control a terminal."""
        return json.dumps(json.loads(self.model_dump_json()), indent=1)
