"""The base of all settings: one table of a recipe, checked by Pydantic."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """One table of a recipe. Unknown keys, infinity, NaN, and true or false in place of another type are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, defer_build=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _not_a_truth_value(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError(f"{str(value).lower()} is neither a number nor a text")
        return value
