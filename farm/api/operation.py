"""Operations: functions of the farm that the command line, the API and the pages share.

>>> @operation("GET", "/campaigns/{campaign}")  # doctest: +SKIP
... def show(access: Access, campaign: str) -> CampaignNow: ...

The signature declares what an operation takes and returns. The server makes a route of it, a client that uses the API makes a
request of it, and commands and forms make options and inputs of it. Parameters in the path are named there. A `BaseModel` is the
body, or the whole query of a GET. An `Upload` is a file and the body. All other parameters are in the query. An operation that
returns a `Download` sends a file.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from farm.atomic_write import replacing
from farm.db.states import Role
from farm.errors import BadInput

if TYPE_CHECKING:
    from farm.api.access import Access

PREFIX = "/api/v1"
"""The prefix of the API's paths. A breaking change gets a new prefix."""

MAX_ID = 2**63 - 1
"""Ids are 64-bit integers."""

Method = Literal["GET", "POST"]

M = TypeVar("M", bound=BaseModel)
P = ParamSpec("P")
R = TypeVar("R")


class Document(BaseModel):
    """The result or the body of an operation: `--json`, the API and the pages show the same.

    Unknown fields, which a newer farm may send, are ignored.
    """

    # Validators are built on first use, because a command uses few of the documents that it imports.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True, from_attributes=True)


def build_documents(base: type[Document] = Document) -> None:
    """Builds the validators of all imported documents. FastAPI warns about deferred validators."""
    for one in base.__subclasses__():
        one.model_config["defer_build"] = False
        one.model_rebuild(force=True)
        build_documents(one)


@dataclass(frozen=True)
class Download:
    """A file that an operation made. The caller moves or removes it."""

    path: Path
    media_type: str
    name: str
    rows: int | None = None

    def move_to(self, target: Path, *, force: bool) -> None:
        """Moves the file. Raises `BadInput` and, without `force`, `FileThere`; then the file is removed."""
        try:
            with replacing(target, force=force) as draft:
                shutil.copyfile(self.path, draft)
        finally:
            self.path.unlink()


@contextmanager
def made_file(name: str) -> Iterator[Path]:
    """An empty temporary file for a `Download`, removed if the block raises. Its name ends with `name`."""
    with NamedTemporaryFile(prefix="farm-", suffix=f"-{name}", delete=False) as file:
        path = Path(file.name)
    try:
        yield path
    except BaseException:
        path.unlink()
        raise


FILE = "application/octet-stream"
"""The media type of an upload."""


@dataclass(frozen=True)
class Upload:
    """A file that is the body of a request. The caller keeps or removes it.

    Attributes:
        path: the file.
        progress: is called with the number of rows read, if the operation runs in this process.
    """

    path: Path
    progress: Callable[[int], None] = lambda _: None


@dataclass(frozen=True)
class Operation:
    """A function that the command line, the API and the pages run."""

    function: Callable[..., Any]
    method: Method
    path: str
    role: Role
    tag: str
    # The media type of the file that it sends; None if it returns a document.
    sends: str | None = None
    # The time limit on a server, in a process that it can kill; None if no request is expensive.
    seconds: float | None = None
    # Whether it needs more rights in the database than the role farm_web has (docs/serving.md).
    privileged: bool = False

    @property
    def name(self) -> str:
        """The unique name in the description of the API: `campaigns_show`."""
        return f"{self.tag}_{self.function.__name__.rstrip('_')}"

    @property
    def changes(self) -> bool:
        """Whether it changes the farm and records the change (`Access.change`)."""
        return self.role is not Role.READ and self.method != "GET"

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The types of its parameters, and of `return`, with their annotations."""
        return get_type_hints(self.function, include_extras=True)

    @cached_property
    def parameters(self) -> list[inspect.Parameter]:
        """Its parameters, less the access that comes first; annotations are types."""
        _, *rest = inspect.signature(self.function).parameters.values()
        return [parameter.replace(annotation=self.hints[parameter.name]) for parameter in rest]

    def is_model(self, parameter: inspect.Parameter) -> bool:
        """Whether it is the body, or the query of a GET."""
        kind = parameter.annotation
        return get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, BaseModel)

    def is_upload(self, parameter: inspect.Parameter) -> bool:
        """Whether it is a file, which is the body."""
        return parameter.annotation is Upload

    def in_path(self, parameter: inspect.Parameter) -> bool:
        return f"{{{parameter.name}}}" in self.path


@dataclass(frozen=True)
class Cli:
    """How the command line shows a parameter, if not as `--its-name`. Goes into its `Annotated`.

    Attributes:
        names: the option's names, as `--type` and `-t`. The default is the parameter's name.
        metavar: the placeholder of the value in help.
        argument: it is an argument, not an option.
        default: what help shows for a default that is not a value, as `all`.
        commas: its values may be in one text with commas, which a validator of the field divides.
    """

    names: tuple[str, ...] = ()
    metavar: str | None = None
    argument: bool = False
    default: str | None = None
    commas: bool = False


@dataclass(frozen=True)
class InTable:
    """How the default table shows a field of a result. Goes into its `Annotated`. Other fields are not in the table.

    Attributes:
        heading: the heading without the unit. The default is the field's name.
        unit: the unit of the numbers. Times are in UTC.
        priority: 0 is always shown. On a narrow terminal, columns with the highest priority are left out first.
        folds: the text may be folded between words.
        number: align as a number; None: if the type is a number.
        is_uuid: the value may be shortened to a unique beginning.
        text: makes the cell of a value. The default depends on the type.
    """

    heading: str = ""
    unit: str = ""
    priority: int = 0
    folds: bool = False
    number: bool | None = None
    is_uuid: bool = False
    text: Callable[[Any], Any] | None = None


def fields_of(query: Callable[..., Any] | type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of an operation or a model, by name, with bounds, descriptions and `Cli`.

    An operation has its parameters as fields, and the fields of its body instead of the body.
    """
    if isinstance(query, type) and issubclass(query, BaseModel):
        return dict(query.model_fields)
    known, found = OPERATIONS[query], dict[str, FieldInfo]()
    for parameter in known.parameters:
        if known.is_model(parameter):
            found |= parameter.annotation.model_fields
        else:
            default = PydanticUndefined if parameter.default is parameter.empty else parameter.default
            found[parameter.name] = FieldInfo.from_annotated_attribute(parameter.annotation, default)
    return found


def arguments_of(query: Callable[..., Any], /, **given: Any) -> dict[str, Any]:
    """The arguments of an operation, made of values of its fields. Raises `BadInput`, which names the field."""
    known, found = OPERATIONS[query], dict[str, Any]()
    for parameter in known.parameters:
        if known.is_model(parameter):
            inside = {name: given[name] for name in parameter.annotation.model_fields if name in given}
            found[parameter.name] = checked(parameter.annotation, **inside)
        elif parameter.name in given:
            found[parameter.name] = given[parameter.name]
    return found


def checked(model: type[M], /, **given: Any) -> M:
    """A model of the given values. Raises `BadInput`, which names the field."""
    try:
        return model(**given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise BadInput(detail=f"{place}: {message}" if place else message) from None


OPERATIONS: dict[Callable[..., Any], Operation] = {}
"""All operations, by their functions."""


def operation(
    method: Method,
    path: str,
    *,
    role: Role = Role.READ,
    sends: str | None = None,
    seconds: float | None = None,
    privileged: bool = False,
) -> Callable[[Callable[Concatenate[Access, P], R]], Callable[Concatenate[Access, P], R]]:
    """Registers a function as an operation. The function itself does not change.

    Args:
        method: the HTTP method.
        path: the path below `PREFIX`, with parameters in braces.
        role: the smallest role that may run it.
        sends: the media type of the file, if it returns a `Download`.
        seconds: the time limit on a server, if a request can be expensive.
        privileged: it needs more rights in the database than the role `farm_web` has.
    """

    def add(function: Callable[Concatenate[Access, P], R]) -> Callable[Concatenate[Access, P], R]:
        tag = function.__module__.rpartition(".")[2]
        OPERATIONS[function] = Operation(function, method, path, role, tag, sends, seconds, privileged)
        return function

    return add
