"""The base of settings that are declared once: options, files, the environment and pages are made of their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from hmc.artifact.errors import InvalidRequestError, Violation, plain_problem

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SHOWN = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "literal_error"}
"""Types of problems with a number or a choice, whose value is shown. Other values may be secrets."""


class ConfigurationError(InvalidRequestError):
    """A wrong setting. The message names it as its reader wrote it: an option, a variable, or a key of a file."""


class SettingsModel(BaseModel):
    """Settings. Each field has its default, its bounds, and what it means as the text after it.

    A text in the annotation (`Annotated[float, "SECONDS"]`) is what help shows in place of the value. Raises
    InvalidRequestError, with a violation for each field that has a wrong value.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True, hide_input_in_errors=True
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            violations = [self._violation(problem) for problem in error.errors()]
            raise InvalidRequestError(
                "; ".join(violation.description for violation in violations), violations
            ) from error

    @classmethod
    def _violation(cls, problem: ErrorDetails) -> Violation:
        name = str(problem["loc"][0])
        advice = plain_problem(problem)
        if problem["type"] not in SHOWN:
            return Violation(name, f"{name}: {advice}")
        metadata = cls.model_fields[name].metadata
        least = next((bound.ge for bound in metadata if hasattr(bound, "ge")), None)
        most = next((bound.le for bound in metadata if hasattr(bound, "le")), None)
        if least is not None and most is not None:
            advice = f"choose {least} to {most}"
        return Violation(name, f"{name} {problem['input']}: {advice}")
