"""Kernels that users wrote: storing their definitions with a campaign, and reading them by number."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, text

from farm.errors import BadDefinition
from farm.kernels import Configuration, Kernel, own_triton
from farm.kernels.binary import Binary
from farm.kernels.definition import Definition
from farm.kernels.source import DEFINITION, SOURCE

_STORE = text("""
INSERT INTO kernel_definitions (id, file, definition, submitted_by)
VALUES (:id, :file, CAST(:definition AS jsonb), :submitted_by) ON CONFLICT DO NOTHING
""")
_READ = text("SELECT id, definition FROM kernel_definitions WHERE id = ANY(:ids)")
_KNOWN = text("SELECT id FROM kernel_definitions WHERE id = ANY(:ids)")


def store(connection: Connection, definitions: Mapping[int, Definition], *, submitted_by: str | None = None) -> None:
    """Stores definitions that are not there yet. Raises `BadDefinition` if another one has the number of one of them."""
    for number in sorted(definitions):  # two at once never wait for each other
        definition = definitions[number]
        connection.execute(
            _STORE,
            {
                "id": number,
                "file": definition.file,
                "definition": json.dumps(definition.to_json()),
                "submitted_by": submitted_by,
            },
        )
    read(connection, definitions)


def read(connection: Connection, numbers: Iterable[int]) -> dict[int, Definition]:
    """The definitions of these numbers that are stored.

    Raises `BadDefinition` if this version cannot read one, or its content has another number.
    """
    wanted = sorted(set(numbers))
    found = dict[int, Definition]()
    for row in connection.execute(_READ, {"ids": wanted}) if wanted else ():
        found[row.id] = Definition.from_json(row.definition)
        if found[row.id].id != row.id:
            raise BadDefinition(key=f"definition {row.id}", why="its number is not that of its content")
    return found


def unknown(connection: Connection, numbers: Iterable[int]) -> list[int]:
    """Those of these numbers that are not stored."""
    wanted = set(numbers)
    return sorted(wanted - set(connection.execute(_KNOWN, {"ids": sorted(wanted)}).scalars())) if wanted else []


def numbers_in(kernels: Iterable[Kernel]) -> set[int]:
    """The numbers of the definitions that kernels name."""
    found = (dict(kernel.parameters)[DEFINITION] for kernel in kernels if kernel.family == SOURCE.name)
    return {number for number in found if number}


def of_binary(connection: Connection, binary: Binary) -> Definition | None:
    """The stored definition whose code the binary is made from; None for the farm's own templates. Raises `BadDefinition`."""
    number = own_triton.definition_in(binary)
    return None if number is None else read(connection, [number]).get(number)


def of_configurations(connection: Connection, configurations: Iterable[Configuration]) -> tuple[Definition, ...]:
    """The stored definitions of kernels in these configurations, known to this process as long as the caller holds them.

    One that this version cannot read is left out.
    """
    found = list[Definition]()
    for number in sorted(numbers_in(configuration.kernel for configuration in configurations)):
        try:
            found.extend(read(connection, [number]).values())
        except BadDefinition:
            continue
    return tuple(found)
