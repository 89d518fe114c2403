"""Operations: what the farm can be asked, each a function that the command line, the API and the pages share.

>>> @operation("GET", "/campaigns/{campaign}")  # doctest: +SKIP
... def show(access: Access, campaign: str) -> CampaignNow: ...

The function's own signature says what it takes and answers: the server makes a route of it, and a client that reaches the
farm through the API makes its request of it. Parameters that the path names go there, a `BaseModel` is the body, or the
whole query of a GET, an `Upload` is a file and the body, and everything else is in the query. What answers a `Download` sends
a file.
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
"""Where the API begins. A change that breaks its users begins another."""

MAX_ID = 2**63 - 1
"""Ids are 64-bit integers."""

Method = Literal["GET", "POST"]

M = TypeVar("M", bound=BaseModel)
P = ParamSpec("P")
R = TypeVar("R")


class Document(BaseModel):
    """What an operation answers or takes as its body: `--json`, the API and the pages show the same.

    Fields that a newer farm sends are left out.
    """

    # Validators are built when a document is first made: a command makes few of all that its imports define.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True, from_attributes=True)


def build_documents(base: type[Document] = Document) -> None:
    """Builds the validators of every document that was imported. FastAPI warns about documents that defer theirs."""
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
        """Puts it there. Raises `BadInput`, and without `force` `FileThere`, and removes it all the same."""
        try:
            with replacing(target, force=force) as draft:
                shutil.copyfile(self.path, draft)
        finally:
            self.path.unlink()


@contextmanager
def made_file(name: str) -> Iterator[Path]:
    """An empty temporary file for a `Download` to be written; removed where that fails. Its name ends as `name` does."""
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
        path: where it is.
        progress: hears how many rows were read, where the operation runs in this process.
    """

    path: Path
    progress: Callable[[int], None] = lambda _: None


@dataclass(frozen=True)
class Operation:
    """One thing that the farm can be asked."""

    function: Callable[..., Any]
    method: Method
    path: str
    role: Role
    tag: str
    # The media type of the file that it sends; None where it answers with a document.
    sends: str | None = None
    # How long a server lets it run, in a process that it can kill; None where no request makes it expensive.
    seconds: float | None = None
    # Whether it needs more rights in the database than the role farm_web has: see docs/serving.md.
    privileged: bool = False

    @property
    def name(self) -> str:
        """`campaigns_show`: the same in the API's description, and unique."""
        return f"{self.tag}_{self.function.__name__.rstrip('_')}"

    @property
    def changes(self) -> bool:
        """Whether it changes the farm, and so records that: see `Access.change`."""
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
    """How the command line has a parameter, in its `Annotated`, where `--its-name` alone is not right.

    Attributes:
        names: of the option, as `--type` and `-t`; empty: the parameter's name.
        metavar: what help shows for its value.
        argument: it is an argument and no option.
        default: what help calls a default that is no value, as `all`.
    """

    names: tuple[str, ...] = ()
    metavar: str | None = None
    argument: bool = False
    default: str | None = None


@dataclass(frozen=True)
class InTable:
    """How tables show a field of a result, in its `Annotated`. A field without one is in no table.

    Attributes:
        heading: instead of the field's name, without the unit.
        unit: of its numbers; times are in UTC.
        priority: 0 is always shown; of the others, the highest is left out first on a narrow terminal.
        folds: text that may be folded between words.
        number: whether it is aligned as a number; None: as its type is.
        is_uuid: it may be shortened to a beginning that no other has.
        text: makes the cell of a value, where it is not written as all values of its type are.
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


def arguments_of(query: Callable[..., Any], **given: Any) -> dict[str, Any]:
    """The arguments of an operation, made of values of its fields. Raises `BadInput`, which names the field."""
    known, found = OPERATIONS[query], dict[str, Any]()
    for parameter in known.parameters:
        if known.is_model(parameter):
            inside = {name: given[name] for name in parameter.annotation.model_fields if name in given}
            found[parameter.name] = checked(parameter.annotation, **inside)
        elif parameter.name in given:
            found[parameter.name] = given[parameter.name]
    return found


def checked(model: type[M], **given: Any) -> M:
    """The model of what was given. Raises `BadInput`, which names the field."""
    try:
        return model(**given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise BadInput(detail=f"{place}: {message}" if place else message) from None


OPERATIONS: dict[Callable[..., Any], Operation] = {}
"""All of them, by their functions."""


def operation(
    method: Method,
    path: str,
    *,
    role: Role = Role.READ,
    sends: str | None = None,
    seconds: float | None = None,
    privileged: bool = False,
) -> Callable[[Callable[Concatenate[Access, P], R]], Callable[Concatenate[Access, P], R]]:
    """Registers a function as an operation, without changing it. One that answers a `Download` says what it `sends`, and one
    that a request can make expensive, how many `seconds` a server gives it. One that needs more
    rights in the database than the role `farm_web` has is `privileged`."""

    def add(function: Callable[Concatenate[Access, P], R]) -> Callable[Concatenate[Access, P], R]:
        tag = function.__module__.rpartition(".")[2]
        OPERATIONS[function] = Operation(function, method, path, role, tag, sends, seconds, privileged)
        return function

    return add
