"""The base class of stored values: immutable, and without undeclared fields."""

import json

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """An immutable value. In JSON, infinities and NaN become null."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")

    def ascii_json(self) -> str:
        """Return the value as indented JSON of ASCII characters only, so that no text in it can control a terminal."""
        return json.dumps(json.loads(self.model_dump_json()), indent=1)
