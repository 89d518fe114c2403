"""How a key of a campaign file is declared: reading what is written, writing it into a document, and its JSON schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, is_dataclass
from functools import cached_property
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, ValidationInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, PydanticSerializationError, core_schema

from farm.errors import FarmError

TEXT = {"type": "string"}
NUMBER = {"type": "number"}

_PLAIN = (str, int, float)
"""Types whose values may be wrong: they are read although they are of the type already."""


class FileModel(BaseModel):
    """A mapping of a campaign file. Unknown keys are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, ignored_types=(cached_property,)
    )


def wrong_key(model: type[BaseModel], key: str, why: str) -> ValidationError:
    """The error of a key whose value does not fit those of others, for a validator of the whole model to raise."""
    error = PydanticCustomError("value_error", "{error}", {"error": why})
    return ValidationError.from_exception_data(model.__name__, [InitErrorDetails(type=error, loc=(key,), input=None)])


def as_list(written: object) -> list[Any]:
    """The entries of a list. A lone value stands for a list of one."""
    return list(written) if isinstance(written, (list, tuple)) else [written]


class JsonSchema(GenerateJsonSchema):
    """JSON schemas in which defaults that are not JSON data are left out."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - declared by pydantic

    def encode_default(self, dft: Any) -> Any:
        """Leaves out the attributes of an object of the farm's own, which no file can have in its place."""
        if any(is_dataclass(one) for one in (dft if isinstance(dft, tuple) else (dft,))):
            raise PydanticSerializationError(f"{dft!r} is not JSON data")
        return super().encode_default(dft)


@dataclass(frozen=True)
class Value:
    """Declares the value of a key.

    Attributes:
        read: Makes the value. Its `ValueError` or `FarmError` says what is wrong and what to write instead.
        write: Makes JSON data of the value.
        schema: JSON schema of what a file may have.
    """

    read: Callable[[Any], Any]
    _: KW_ONLY
    write: Callable[[Any], Any] = lambda value: value
    schema: Mapping[str, Any] = field(default_factory=lambda: TEXT)

    def __get_pydantic_core_schema__(self, source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        serialization = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.with_info_plain_validator_function(self._reader_of(source), serialization=serialization)

    def __get_pydantic_json_schema__(self, _core: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.schema)

    def _reader_of(self, source: Any) -> Callable[[Any, ValidationInfo], Any]:
        kind = get_origin(source) or source

        def validate(written: Any, info: ValidationInfo) -> Any:
            if kind not in _PLAIN and isinstance(written, kind):
                return written
            try:
                return self.read_in(written, info)
            except FarmError as error:
                raise ValueError(str(error)) from None

        return validate

    def read_in(self, written: Any, _info: ValidationInfo) -> Any:
        """The value of what is written, in a validation with a context."""
        return self.read(written)


@dataclass(frozen=True)
class Values(Value):
    """Declares a key that has a list of values, or one value.

    Attributes:
        gather: Makes the value of the key from those that were read.
        split: Makes a list of what is written.
        min_length: Fewest values.
    """

    gather: Callable[[list[Any]], Any] = tuple
    split: Callable[[object], list[Any]] = as_list
    min_length: int = 1

    def __get_pydantic_core_schema__(self, source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        of_one = get_args(source)[0] if get_origin(source) is tuple else str
        entry = core_schema.with_info_plain_validator_function(self._reader_of(of_one))
        entries = core_schema.list_schema(entry, min_length=self.min_length)
        gathered = core_schema.no_info_after_validator_function(self.gather, entries)
        serialization = core_schema.plain_serializer_function_ser_schema(self.write_all)
        return core_schema.no_info_before_validator_function(self.split, gathered, serialization=serialization)

    def __get_pydantic_json_schema__(self, _core: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        entry = self.schema_of_one()
        return {"anyOf": [entry, {"type": "array", "items": entry, "minItems": self.min_length}]}

    def schema_of_one(self) -> dict[str, Any]:
        """JSON schema of one value."""
        return dict(self.schema)

    def write_all(self, values: Any) -> Any:
        """JSON data of the value of the key."""
        return [self.write(value) for value in values]


@dataclass(frozen=True)
class Mappings(Values):
    """Declares a key whose values are mappings of several kinds. `read` returns the model of one.

    Attributes:
        models: Every model.
    """

    write: Callable[[Any], Any] = lambda value: value.model_dump(mode="json")
    models: Callable[[], list[type[BaseModel]]] = list

    def read_in(self, written: Any, info: ValidationInfo) -> Any:
        return self.read(written).model_validate(written, context=info.context)

    def schema_of_one(self) -> dict[str, Any]:
        return {"anyOf": [model.model_json_schema(schema_generator=JsonSchema) for model in self.models()]}


def ordered(key: Callable[[Any], Any] | None = None) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Keeps each value once, in one order, so that notation makes no difference."""
    return lambda values: tuple(sorted(set(values), key=key))
