"""How a model is parsed, and how pydantic's errors become ours.

A spec is read strictly: a field that this release does not know may be one that makes the run
harmless, so it is refused and not skipped. A status is read with tolerance: anybody with the
subresource may have written it, so what cannot be understood counts as not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import kind, quoted


def wire_name(name: str) -> str:
    """A field's name in the Kubernetes API: `member_id` is `memberID` there, `db_size` `dbSize`."""
    camel = to_camel(name)
    return f"{camel[:-2]}ID" if name.endswith("_id") else camel


class Model(BaseModel):
    """Named as on the wire, where unknown fields are ignored."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        alias_generator=wire_name,
        hide_input_in_errors=True,
    )


class Spec(Model):
    """What a person writes: unknown fields and wrong types are refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: object) -> object:
        # As the API server does for a field that is not nullable, and none of ours is.
        if not isinstance(value, dict):
            return value
        return {name: given for name, given in value.items() if given is not None}


class Status(Model):
    """What a program wrote: unknown fields are ignored; Python names of fields are taken too."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    def to_wire(self) -> dict[str, Any]:
        """As the Kubernetes API has it: camelCase, RFC 3339 times, nothing that is unknown."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


ModelT = TypeVar("ModelT", bound=BaseModel)


def status_of(model: type[ModelT], obj: Mapping[str, Any]) -> ModelT:
    """An object's status alone, whatever its spec is like; never raises."""
    status = obj.get("status")
    return model.model_validate(dict(status) if isinstance(status, Mapping) else {})


def parse(model: type[ModelT], value: object, path: str = "") -> ModelT:
    """Validate a JSON value, whatever it is.

    Raises InvalidInput and nothing else, naming the first field at fault below `path`.
    """
    try:
        return model.model_validate(dict(value) if isinstance(value, Mapping) else value)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        fault = _fault(details)
        field = _join(path, *details["loc"])
        if isinstance(fault, InvalidInput):
            raise InvalidInput(_join(field, fault.field), fault.fault) from None
        raise InvalidInput(field, fault) from None


def _or_none(value: object, inner: Callable[[object], Any]) -> Any:
    try:
        return inner(value)
    except ValidationError:
        return None


def _objects(value: object) -> tuple[Any, ...]:
    items = value if isinstance(value, (list, tuple)) else ()
    return tuple(item for item in items if isinstance(item, dict))


OR_NONE = WrapValidator(_or_none)
"""In an annotation: what does not validate is None."""

OBJECTS = BeforeValidator(_objects)
"""In an annotation of a tuple of dicts: what is no object is left out."""


def readable(model: type[BaseModel], key: str) -> BeforeValidator:
    """In an annotation of a tuple: the items that can be read, the first of each `key`."""

    def read(value: object) -> tuple[BaseModel, ...]:
        found: dict[object, BaseModel] = {}
        for item in value if isinstance(value, (list, tuple)) else ():
            try:
                row = model.model_validate(item)
            except ValidationError:
                continue
            found.setdefault(getattr(row, key), row)
        return tuple(found.values())

    return BeforeValidator(read)


def _join(*steps: str | int) -> str:
    path = ""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step:
            path += f".{step}" if path else step
    return path


def _fault(details: ErrorDetails) -> str | InvalidInput:
    context: Mapping[str, Any] = details.get("ctx", {})
    given = details["input"]
    match details["type"]:
        case "value_error" if isinstance(context["error"], InvalidInput):
            return context["error"]
        case "missing":
            return "is required"
        case "extra_forbidden":
            return "is not a field that this release knows"
        case "string_type" | "string_unicode":
            return f"must be a string, not {kind(given)}"
        case "bool_type":
            return f"must be true or false, not {kind(given)}"
        case "int_type":
            return f"must be an integer, not {kind(given)}"
        case "model_type" | "dict_type":
            return f"must be an object, not {kind(given)}"
        case "tuple_type":
            return f"must be a list, not {kind(given)}"
        case "enum":
            return f"must be one of {context['expected'].replace(chr(39), '')}, not {quoted(given)}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}, not {quoted(given)}"
        case "less_than_equal":
            return f"must be at most {context['le']}, not {quoted(given)}"
        case "too_short":
            return f"needs at least {context['min_length']}"
        case "too_long":
            return f"may have at most {context['max_length']}"
        case _:
            return details["msg"]
