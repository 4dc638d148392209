"""The base of values that are written down: immutable, with no fields beyond the declared ones."""

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """An immutable value; its JSON writes infinities and NaN as null."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")
