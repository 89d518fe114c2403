"""What a `model.json` must hold, checked before anything is made of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .arrays import BadFiles, require

FORMAT = 10
"""The version of `model.json` and its arrays."""

WITHOUT_WAITS = 9
"""The version before: its times of kernels have no waits for loads and no conversions of weights."""

WITHOUT_SPARSITY = 8
"""The version before that: its models have learned from no sparse B and no weights of fewer bits than A either."""

WITHOUT_SCALE = 7
"""The version before that: its models have learned from no scale factors, no fused operations and no groups either."""

WITHOUT_BATCH = 6
"""The version before that: its models have learned from no batches either."""

WITHOUT_BURST = 5
"""The version before that: its models have no protocol and no burst time either."""

READABLE = (WITHOUT_BURST, WITHOUT_BATCH, WITHOUT_SCALE, WITHOUT_SPARSITY, WITHOUT_WAITS, FORMAT)

TIMES = ("burst", "settled")
"""What the runtime of a model may be. None: another time, or not known."""

MAX_BYTES = 1 << 26
"""The maximum size of `model.json`. With a million configurations it has a hundredth of that."""

_MAX_PARTS = 256
"""Extents of blocks, and fused operations, that a model may know together. Each kind of them is a column of its tables."""

_ANY = "*"
"""Stands for any keys of a mapping."""


@dataclass(frozen=True)
class _Optional:
    kind: Any


_CARD = {
    "device_type": str, "source": str, "flops_per_ms": {_ANY: float}, "bytes_per_ms": float, "floor_ms": float,
    "multiprocessors": int, "l2_bytes": float, "power_w": float, "threads": int, "blocks": int, "shared_bytes": int,
    "registers": int,
}  # fmt: skip
_FAMILY = {
    "parameters": {_ANY: float}, "layouts": {_ANY: [str]}, "kernels": [[float]], "kernels_by_types": {_ANY: [int]},
    "powered": [str], "batched": [str],
}  # fmt: skip
_VOCABULARY = {
    "families": {_ANY: _FAMILY}, "parameters": [str], "element_bytes": {_ANY: float}, "usual_output": {_ANY: (str, str)},
    "scales": {_ANY: (float, float, float, float)}, "fusions": {_ANY: [str]},
    "bytes_of_b": {_ANY: float},
}  # fmt: skip
_ENERGIES = {
    "card_w": float, "busy_w": float, "memory_pj": float, "l2_pj": {_ANY: float}, "operation_pj": {_ANY: float},
}  # fmt: skip
_MODEL = {
    "format": int,
    "card": _CARD,
    "vocabulary": _VOCABULARY,
    "features": [str],
    "forests": [[str]],
    "intervals": {_ANY: {"floor": float, "quantiles": {_ANY: float}}},
    "importance": {_ANY: float},
    "energies": _Optional(_ENERGIES),
    "protocol": str,
    "time": _Optional(str),
    "both_times": _Optional(int),
    "burst_kinds": _Optional([str]),
}
_UNSAID = {"protocol": "unknown", "time": None, "both_times": None, "burst_kinds": None}
"""What models of `WITHOUT_BURST` lack."""


def format_of(content: bytes) -> int:
    """The format that a `model.json` says it has. Raises `BadFiles`."""
    found = _parsed(content).get("format")
    if not isinstance(found, int):
        raise BadFiles("model.json does not say its format")
    return found


def description_of(content: bytes) -> dict[str, Any]:
    """What a `model.json` of a `READABLE` format holds, with what older ones lack. Raises `BadFiles`."""
    found = _parsed(content)
    number = found.get("format")
    require(number in READABLE, f"model.json is of format {number!r}; this code reads {READABLE[0]} to {READABLE[-1]}")
    _check(found, _model_of(number), "model.json")
    if number == WITHOUT_BURST:
        found |= _UNSAID
    found["vocabulary"] = {"scales": {}, "fusions": {}, "bytes_of_b": {}} | found["vocabulary"]
    for family in found["vocabulary"]["families"].values():
        family.setdefault("batched", [])
    require(found["time"] in (None, *TIMES), f"model.json: time is not {' or '.join(TIMES)}")
    require((found["both_times"] or 0) >= 0, "model.json: both_times is negative")
    _check_indices(found["vocabulary"], found["card"])
    return found


def _model_of(number: Any) -> dict[str, Any]:
    """What a `model.json` of a readable format must have."""
    if number > WITHOUT_SPARSITY:
        return _MODEL
    family = {name: kind for name, kind in _FAMILY.items() if name != "batched" or number > WITHOUT_BATCH}
    later = {"bytes_of_b"} | ({"scales", "fusions"} if number <= WITHOUT_SCALE else set())
    vocabulary = {name: kind for name, kind in _VOCABULARY.items() if name not in later}
    old = {**_MODEL, "vocabulary": {**vocabulary, "families": {_ANY: family}}}
    return {name: kind for name, kind in old.items() if not (number == WITHOUT_BURST and name in _UNSAID)}


def _parsed(content: bytes) -> dict[str, Any]:
    require(len(content) <= MAX_BYTES, f"model.json has {len(content):,} bytes; a model's has at most {MAX_BYTES:,}")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadFiles(f"model.json is not JSON: {error}") from None
    require(isinstance(found, dict), "model.json is no object")
    return dict(found)


def _check(value: Any, kind: Any, where: str) -> None:
    """Raises `BadFiles` unless the value is of that kind: a type, a list or mapping of kinds, or a list of so many."""
    if isinstance(kind, _Optional):
        if value is not None:
            _check(value, kind.kind, where)
    elif isinstance(kind, dict):
        require(isinstance(value, dict), f"{where} is no object")
        named = dict.fromkeys(value, kind[_ANY]) if _ANY in kind else kind
        require(set(value) == set(named), f"{where} must have {', '.join(sorted(named))}")
        for name, each in named.items():
            _check(value[name], each, f"{where}: {name[:40]}")
    elif isinstance(kind, list | tuple):
        require(isinstance(value, list), f"{where} is no list")
        require(isinstance(kind, list) or len(value) == len(kind), f"{where} is of another length")
        for each, expected in zip(value, kind * len(value) if isinstance(kind, list) else kind, strict=True):
            _check(each, expected, where)
    else:
        wanted = (int, float) if kind is float else kind
        require(isinstance(value, wanted) and not isinstance(value, bool), f"{where} is no {kind.__name__}")


def _check_indices(vocabulary: dict[str, Any], card: dict[str, Any]) -> None:
    """Checks that parts which refer to each other exist."""
    require(vocabulary["families"], "model.json knows no kernel family")
    for name in ("scales", "fusions"):
        parts = [part for each in vocabulary[name].values() for part in each]
        require(len(parts) < _MAX_PARTS and len(vocabulary[name]) < _MAX_PARTS, f"model.json: too many {name}")
    blocks = [block for each in vocabulary["scales"].values() for block in (each[:2], each[2:])]
    require(
        [block == [0, 0] or 1 <= min(block) <= max(block) < 2**31 for block in blocks],
        "model.json: scale factors of no block",
    )
    require(
        [0 < size < 2**31 for size in vocabulary["bytes_of_b"].values()], "model.json: elements of B without a size"
    )
    types = vocabulary["usual_output"]
    require(types.keys() <= card["flops_per_ms"].keys(), "model.json: a type has no peak")
    sizes = (card["bytes_per_ms"], card["multiprocessors"], card["l2_bytes"], *card["flops_per_ms"].values())
    require([0 < each < float("inf") for each in sizes], "model.json: the card has figures that no card has")
    for name, known in vocabulary["families"].items():
        where = f"model.json: {name[:40]}"
        require(known["parameters"].keys() <= set(vocabulary["parameters"]), f"{where} has parameters of its own")
        require([len(each) == len(known["parameters"]) for each in known["kernels"]], f"{where} has half a kernel")
        require([abs(v) < 2**53 for each in known["kernels"] for v in each], f"{where} has a kernel without a number")
        require(
            [0 <= at < len(known["kernels"]) for each in known["kernels_by_types"].values() for at in each],
            f"{where} has kernels that are not there",
        )
        require(
            {*known["powered"], *known["batched"], *known["kernels_by_types"]} <= known["layouts"].keys(),
            f"{where}: unknown types",
        )
        require(
            [each.split(":")[0] in types and each.split(" ")[0].count(":") == 2 for each in known["layouts"]],
            f"{where}: bad types",
        )
