"""Blocks of kernels of the family `source`: a file, how it is launched, and axes for its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, ValidationInfo, model_serializer, model_validator

from farm.campaign.axes import HOW_TO_WRITE, Axis, parse_part, shown
from farm.campaign.kernel_blocks import KernelBlock
from farm.campaign.shape_files import FileContext, among
from farm.campaign.values import TEXT, Value, Values, as_list, ordered
from farm.errors import BadDefinition
from farm.expressions.tree import BadExpression
from farm.kernels.definition import PARAMETER_VALUES, Definition
from farm.kernels.family import OPEN_NAME
from farm.kernels.own_arguments import Argument
from farm.kernels.own_code import Language, why_bad_code
from farm.kernels.own_expressions import expression, number_or_condition
from farm.kernels.source import DEFINITION

DEFAULT_WARPS, DEFAULT_STAGES = "4", "3"
"""Those of Triton on NVIDIA cards."""

_OF_TRITON = ("warps", "stages", "constants")

_EXPRESSION = {"anyOf": [{"type": "string"}, {"type": "integer"}]}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A source or binary that was read. Of a cubin, the code is base64."""

    name: str
    code: str


class _File(Value):
    """Declares the key of the file: its name, or in a stored document its name and code."""

    def read_in(self, written: Any, info: ValidationInfo) -> SourceFile:
        if isinstance(written, dict):
            if set(written) != {"name", "code"} or not all(isinstance(one, str) for one in written.values()):
                raise ValueError("write the name of a file, or a mapping of its name and code")
            return _checked(SourceFile(_name_of(written["name"]), written["code"]))
        name = _name_of(written)
        context: FileContext | None = info.context
        read = among({}) if context is None else context.read_text
        return _checked(SourceFile(PurePath(name).name, read(name)))


def _name_of(written: object) -> str:
    suffixes = ", ".join(f".{language}" for language in Language)
    if not isinstance(written, str) or not written.strip():
        raise ValueError(f"{shown(written)} is not the name of a file; write for example my_gemm.cu")
    name = written.strip()
    if PurePath(name).suffix.removeprefix(".") not in tuple(Language) or len(name) > 200 or not name.isprintable():
        raise ValueError(f"{shown(written)} is none of {suffixes}; write for example my_gemm.cu")
    return name


def _checked(file: SourceFile) -> SourceFile:
    if (why := why_bad_code(file.name, file.code)) is not None:
        raise ValueError(why)
    return file


class _Expressions(Values):
    """Declares a key of expressions over the problem and the parameters, which stand above it in the model."""

    def __init__(self, kind: Any = "number", **more: Any) -> None:
        super().__init__(str, schema=_EXPRESSION, **more)
        object.__setattr__(self, "kind", kind)

    def read_in(self, written: Any, info: ValidationInfo) -> str:
        parameters = _parameters_in(info)
        if parameters is None:  # they are wrong, which is reported
            return str(written)
        return expression(written, parameters, self.kind).text  # type: ignore[attr-defined]


class _Arguments(Values):
    def read_in(self, written: Any, info: ValidationInfo) -> str:
        parameters = _parameters_in(info)
        return str(written) if parameters is None else str(Argument.parse(written, parameters))


class _Constants(Value):
    """Declares a mapping from names to expressions."""

    def read_in(self, written: Any, info: ValidationInfo) -> tuple[tuple[str, str], ...]:
        if not isinstance(written, dict):
            raise ValueError("constants are a mapping from names to expressions, as in {EVEN_K: k % BK == 0}")  # noqa: TRY004
        parameters = _parameters_in(info)
        found = list[tuple[str, str]]()
        for name, text in written.items():
            if not OPEN_NAME.fullmatch(str(name)):
                raise ValueError(f"{shown(name)} cannot name a constant; use up to 32 upper-case letters, digits and _")
            try:
                read = str(text) if parameters is None else number_or_condition(text, parameters).text
            except BadExpression as error:
                raise ValueError(f"{name}: {error}") from None
            found.append((str(name), read))
        return tuple(sorted(found))


def _parameters_in(info: ValidationInfo) -> list[str] | None:
    found = info.data.get("parameters")
    return None if found is None else [name for name, _ in found]


def _axes_of(written: object) -> tuple[tuple[str, Axis], ...]:
    if not isinstance(written, dict):
        raise ValueError("parameters are a mapping from names to values, as in {BM: [64, 128], BK: 16}")  # noqa: TRY004
    axes = dict[str, Axis]()
    for name, values in written.items():
        if not OPEN_NAME.fullmatch(str(name)):
            why = "use up to 32 upper-case letters, digits and _, as in {BM: [64, 128]}"
            raise ValueError(f"{shown(name)} cannot name a parameter; {why}")
        entries = as_list(values)
        if not entries:
            raise ValueError(f"{name} has no value; {HOW_TO_WRITE}")
        try:
            axes[str(name)] = Axis([parse_part(one, name=str(name), allowed=PARAMETER_VALUES) for one in entries])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return tuple(sorted(axes.items()))


_PARAMETERS = Value(
    _axes_of,
    write=lambda axes: {name: axis.to_document() for name, axis in axes},
    schema={"type": "object", "additionalProperties": {"anyOf": [{"type": "integer"}, TEXT, {"type": "array"}]}},
)
_CONSTANTS = _Constants(
    lambda _: (),
    write=dict,
    schema={"type": "object", "additionalProperties": {"anyOf": [{"type": "boolean"}, *_EXPRESSION["anyOf"]]}},
)
_FILE_SCHEMA = {
    "anyOf": [
        TEXT,
        {"type": "object", "properties": {"name": TEXT, "code": TEXT}, "required": ["name", "code"]},
    ]
}  # fmt: skip


def _text_of(written: object) -> str:
    if not isinstance(written, str) or not written.strip():
        raise ValueError(f"{shown(written)} is not the name of a kernel; write for example my_gemm")
    return written.strip()


class SourceBlock(KernelBlock):
    """Your own kernel, with an axis for each of its parameters. See [own_kernels.md](own_kernels.md)."""

    family: Literal["source"] = Field(description="the kernel family", examples=["source"])
    # Before the expressions, which name them.
    parameters: Annotated[tuple[tuple[str, Axis], ...], _PARAMETERS] = Field(
        default=(), description="upper-case names with an axis each: macros of a `.cu` file, constants of a `.py` file"
    )
    file: Annotated[SourceFile, _File(lambda _: None, write=lambda file: {"name": file.name, "code": file.code}, schema=_FILE_SCHEMA)] = Field(
        description="a `.cu`, `.ptx`, `.cubin` or `.py` file, the last with Triton", examples=["my_gemm.cu"]
    )  # fmt: skip
    entry: Annotated[str, Value(_text_of)] = Field(description="the kernel's name", examples=["my_gemm"])
    grid: Annotated[tuple[str, ...], _Expressions()] = Field(
        description="blocks along x, y and z: expressions", examples=[["ceil(n / 64)", "ceil(m / 64)"]]
    )
    block: Annotated[tuple[str, ...], _Expressions(min_length=0)] = Field(
        default=(), description="threads of a block along x, y and z: expressions. Not for Triton", examples=[[256]]
    )
    shared_bytes: Annotated[tuple[str, ...], _Expressions()] = Field(
        default=("0",), description="dynamic shared memory of a block: an expression. Not for Triton"
    )
    warps: Annotated[tuple[str, ...], _Expressions(min_length=0)] = Field(
        default=(), description="warps of a block of Triton: an expression; 4 if left out"
    )
    stages: Annotated[tuple[str, ...], _Expressions(min_length=0)] = Field(
        default=(), description="pipeline stages of Triton: an expression; 3 if left out"
    )
    constants: Annotated[tuple[tuple[str, str], ...], _CONSTANTS] = Field(
        default=(), description="constants of a Triton kernel that are no parameters, with an expression each"
    )
    arguments: Annotated[tuple[str, ...], _Arguments(str, schema=TEXT)] = Field(
        description="what the kernel is called with, in order", examples=[["a", "b", "d", "m", "n", "k"]]
    )
    requires: Annotated[tuple[str, ...], _Expressions("truth", gather=ordered(), min_length=0)] = Field(
        default=(), description="conditions of problems that it computes"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("shared_bytes", "warps", "stages"):
            if len(getattr(self, key)) > 1:
                raise ValueError(f"{key}: write one expression")
        try:
            _ = self.definition
        except BadDefinition as error:
            raise ValueError(str(error)) from None
        return self

    @model_serializer(mode="wrap")
    def _without_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the keys of Triton where they are left out, so that campaigns of before keep their digests."""
        return {key: value for key, value in handler(self).items() if value or key not in _OF_TRITON}

    @cached_property
    def definition(self) -> Definition:
        """What is stored and sent to workers."""
        usual = (DEFAULT_WARPS, DEFAULT_STAGES) if self.file.name.endswith(f".{Language.TRITON}") else ("", "")
        warps, stages = ((*given, default)[0] for given, default in zip((self.warps, self.stages), usual, strict=True))
        return Definition(
            file=self.file.name, code=self.file.code, entry=self.entry, grid=self.grid, block=self.block,
            shared_bytes=self.shared_bytes[0], arguments=self.arguments, requires=self.requires,
            parameters=tuple(name for name, _ in self.parameters), warps=warps, stages=stages, constants=self.constants,
        )  # fmt: skip

    @property
    def axes(self) -> list[tuple[str, Axis]]:
        return [*self.parameters, (DEFINITION, Axis([(self.definition.id,)]))]
