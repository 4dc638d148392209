"""The base class of stored values: immutable, and without undeclared fields."""

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """An immutable value. Its JSON represents infinities and NaN as null."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")
