"""What the matrices of a GEMM are filled with, and the short text that names it.

One grammar serves the column `distribution` of a row, the option `--distribution` and the short forms in campaign files:

    uniform                                all three matrices
    normal*0.02                            all three, each number times 0.02
    a=normal*0.02 b=zeros c=uniform        each matrix apart; one that is left out is `uniform`
    b=file:weights.safetensors#layer.0     a tensor of a file

A row names the content of a file instead of its path: `b=file:4f2a91c0` has the first digits of the tensor's SHA-256.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema

Distribution = Literal["uniform", "normal", "zeros", "ones", "sparse", "integers"]

DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)

WEIGHT_SUFFIXES = (".npy", ".safetensors")

MATRICES = ("a", "b", "c")

MIN_SCALE, MAX_SCALE = 1e-6, 1_000_000
"""Products of smaller numbers would vanish in some types, and larger ones overflow."""

_EXAMPLE = "write for example normal, normal*0.02, or a=normal*0.02 b=zeros"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class _Rules(BaseModel):
    """Rules whose JSON form has no key that is not used, so that rules of earlier versions keep theirs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler.resolve_ref_schema(handler(core))
        mapping = {name: schema.pop(name) for name in list(schema) if name not in ("title", "description")}
        schema["anyOf"] = [mapping, {"type": "string"}]
        return schema


class MatrixRules(_Rules):
    """What one matrix is filled with: numbers of a distribution, or a tensor of a file."""

    distribution: Distribution | None = Field(
        default=None, description="as that of all matrices; a short form is `b: zeros` or `b: normal*0.02`"
    )
    scale: float | None = Field(default=None, ge=MIN_SCALE, le=MAX_SCALE, description="as that of all matrices")
    file: str | None = Field(
        default=None, description="a `.safetensors` or `.npy` file with the numbers, see [operands](#operands)"
    )
    tensor: str | None = Field(default=None, description="the tensor's name in a `.safetensors` file")
    sha256: str | None = Field(
        default=None,
        description="of the tensor, which each worker checks; it is computed when you submit where you leave it out",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, written: Any) -> Any:
        return _matrix_of(written) if isinstance(written, str) else written

    @model_validator(mode="after")
    def _check_file(self, info: ValidationInfo) -> Self:
        if self.file is None:
            for name in ("tensor", "sha256"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} belongs to a file; add file: weights.safetensors, or remove {name}")
            return self
        if self.distribution is not None or self.scale is not None:
            raise ValueError("the numbers of a file have no distribution and no scale; remove these, or file")
        if PurePath(self.file).suffix not in WEIGHT_SUFFIXES:
            raise ValueError(f"{self.file} is no {' or '.join(WEIGHT_SUFFIXES)} file; write for example weights.npy")
        if self.tensor is None and self.file.endswith(".safetensors"):
            raise ValueError(f"{self.file} has several tensors; name one with tensor: NAME, or file:{self.file}#NAME")
        if self.tensor is not None and self.file.endswith(".npy"):
            raise ValueError(f"{self.file} has one array and no names of tensors; remove {self.tensor}")
        if self.sha256 is None:
            self._describe(info.context)
        elif not _SHA256.fullmatch(self.sha256):
            raise ValueError("sha256 is not 64 lower-case hexadecimal digits; remove it, and it is computed")
        elif not PurePath(self.file).is_absolute():
            raise ValueError(f"with a sha256, {self.file} must be the absolute path that it has on the workers")
        return self

    def _describe(self, context: Any) -> None:
        """Sets the absolute path and the SHA-256 of the tensor, from the context of a validation that may read files."""
        if context is None:
            raise ValueError(f"the sha256 of {self.file} is missing; write the one of the tensor")
        text = context.read_text(self.weights_name)
        try:
            found = type(self).model_validate_json(text)
        except ValidationError:
            found = MatrixRules()
        if found.file is None:
            raise ValueError(
                f"the description of {self.weights_name} that was sent is not valid; use farm submit"
            ) from None
        self.__dict__.update(file=found.file, sha256=found.sha256)

    @property
    def weights_name(self) -> str:
        """The name of its tensor among the files of a campaign: `weights.safetensors#layer.0`."""
        return f"{self.file}" if self.tensor is None else f"{self.file}#{self.tensor}"

    @property
    def factor(self) -> float:
        """What each number is multiplied by."""
        return 1.0 if self.scale is None else self.scale

    @property
    def text(self) -> str:
        """As a row names it."""
        if self.sha256 is not None:
            return f"file:{self.sha256[:8]}"
        scale = "" if self.factor == 1 else f"*{self.factor:g}"
        return f"{self.distribution}{scale}"

    @model_serializer(mode="wrap")
    def _without_unused(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


class OperandRules(_Rules):
    """What A, B and C are filled with. It changes the power that a card draws, so it is part of a row.

    Rules are in a normal form: equal contents are equal rules. If the matrices differ, `distribution` and `scale` have their
    defaults, and `a`, `b` and `c` have what differs from these.
    """

    distribution: Distribution = Field(
        default="uniform",
        description="`uniform` on [-1, 1]; `normal`: mean 0, deviation 1; `zeros`; `ones`; `sparse`: uniform, but half are 0;"
        " `integers`: whole numbers from -2 to 2",
    )
    scale: float = Field(
        default=1.0,
        ge=MIN_SCALE,
        le=MAX_SCALE,
        description="each number is multiplied by it, then rounded to its type; `ones` with a scale are a constant",
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="seed of the operands")
    a: MatrixRules | None = Field(default=None, description="what A is filled with, where it differs")
    b: MatrixRules | None = Field(default=None, description="what B is filled with, where it differs")
    c: MatrixRules | None = Field(default=None, description="what C is filled with, where it differs")

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, written: Any) -> Any:
        return keys_of(written) if isinstance(written, str) else written

    @model_validator(mode="after")
    def _in_normal_form(self) -> Self:
        found = {name: self._matrix(name) for name in MATRICES}
        first = found["a"]
        if all(one == first for one in found.values()) and first.distribution is not None:
            common, differing = first, dict.fromkeys(MATRICES)
        else:
            common = _filled("uniform", 1.0)
            differing = {name: None if one == common else one for name, one in found.items()}
        self.__dict__.update(differing, distribution=common.distribution, scale=common.factor)  # frozen for others
        return self

    def _matrix(self, name: str) -> MatrixRules:
        own: MatrixRules | None = getattr(self, name)
        if own is not None and own.file is not None:
            return own
        distribution = self.distribution if own is None or own.distribution is None else own.distribution
        return _filled(distribution, self.scale if own is None or own.scale is None else own.scale)

    @property
    def matrices(self) -> dict[str, MatrixRules]:
        """What each of `a`, `b` and `c` is filled with, all of it said."""
        return {name: self._matrix(name) for name in MATRICES}

    @property
    def text(self) -> str:
        """As a row names it: see the module."""
        if self.a is self.b is self.c is None:
            return self._matrix("a").text
        return " ".join(f"{name}={one.text}" for name, one in self.matrices.items())

    @model_serializer(mode="wrap")
    def _without_unused(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unused: Mapping[str, Any] = {"scale": 1.0, "a": None, "b": None, "c": None}
        return {name: value for name, value in handler(self).items() if name not in unused or value != unused[name]}


def _filled(distribution: Distribution, scale: float) -> MatrixRules:
    if distribution == "zeros":
        scale = 1.0  # zeros of any scale are the same
    return MatrixRules.model_construct(distribution=distribution, scale=None if scale == 1 else scale)


def keys_of(text: str) -> dict[str, Any]:
    """The keys of `OperandRules` that a short text stands for. Raises `ValueError`, which says what to write."""
    words = text.split()
    if len(words) == 1 and "=" not in words[0].partition("#")[0]:
        alone = _matrix_of(words[0])
        return dict.fromkeys(MATRICES, alone) if "file" in alone else alone
    found: dict[str, Any] = {}
    for word in words:
        name, equals, matrix = word.partition("=")
        if name not in MATRICES or not equals or name in found:
            raise ValueError(f"{text!r} names no operands: {word!r} is not one of a=…, b=… and c=…; {_EXAMPLE}")
        found[name] = _matrix_of(matrix)
    if not found:
        raise ValueError(f"{text!r} names no operands; {_EXAMPLE}")
    return found


def _matrix_of(text: str) -> dict[str, Any]:
    """The keys of `MatrixRules` that a short text stands for."""
    if text.startswith("file:"):
        file, _, tensor = text.removeprefix("file:").partition("#")
        if PurePath(file).suffix not in WEIGHT_SUFFIXES:
            raise ValueError(
                f"{text!r} names no file that can be read; write file:weights.npy or file:weights.safetensors#tensor"
            )
        return {"file": file} | ({"tensor": tensor} if tensor else {})
    distribution, times, scale = text.strip().partition("*")
    if distribution not in DISTRIBUTIONS:
        raise ValueError(
            f"there is no distribution {distribution!r}; use {', '.join(DISTRIBUTIONS)}, or file:weights.npy"
        )
    return {"distribution": distribution} | ({"scale": _scale_of(scale)} if times else {})


def _scale_of(text: str) -> float:
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not MIN_SCALE <= scale <= MAX_SCALE:
        raise ValueError(
            f"the scale is {text!r}; write a number from {MIN_SCALE:g} to {MAX_SCALE:g}, as in normal*0.02"
        )
    return scale


def files_named(written: object) -> Iterator[tuple[tuple[str, ...], str]]:
    """The tensors without a SHA-256 that operands in a campaign file name, each with its location; mistakes are left out."""
    try:
        keys: Any = keys_of(written) if isinstance(written, str) else written
        for name in MATRICES if isinstance(keys, dict) else ():
            matrix = keys.get(name)
            matrix = _matrix_of(matrix) if isinstance(matrix, str) else matrix
            if isinstance(matrix, dict) and isinstance(matrix.get("file"), str) and matrix.get("sha256") is None:
                tensor = matrix.get("tensor")
                yield (name,), matrix["file"] if tensor is None else f"{matrix['file']}#{tensor}"
    except ValueError:
        return


def operand_rules(text: str, seed: int = 0) -> OperandRules:
    """The rules of a short text that names no file. Raises `ValueError` for others."""
    return OperandRules.model_validate({**keys_of(text), "seed": seed})
