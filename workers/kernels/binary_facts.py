"""Reading what the compiler knew of a kernel from the file that it wrote, without a card and without loading it."""

from __future__ import annotations

import struct

FACTS = "gemm_facts"
"""The constant of every template that holds them."""

_ELF_CLASS_64 = 2
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_SYMBOL_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM: a cubin has the first, a stripped library the second


def read_facts(code: bytes) -> tuple[int, int, int]:
    """Bytes of the parameters of a launch, bytes of dynamic shared memory, threads of a block. Raises `ValueError`."""
    try:
        params, shared, threads = struct.unpack("<3i", _symbol(code, FACTS))
    except struct.error as error:
        raise ValueError(f"it is cut short ({error})") from None
    return params, shared, threads


def _symbol(code: bytes, wanted: str) -> bytes:
    """The bytes of a variable of a 64-bit ELF file: a cubin, or a library."""
    if code[:4] != b"\x7fELF" or code[4] != _ELF_CLASS_64:
        raise ValueError("it is no binary")
    (offset,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    sections = [_SECTION.unpack_from(code, offset + index * size) for index in range(count)]
    for _, kind, _, _, start, length, names_in, _, _, _ in sections:
        if kind not in _SYMBOL_TABLES:
            continue
        names = sections[names_in][4]
        for at in range(start, start + length, _SYMBOL.size):
            name, _, _, section, value, bytes_ = _SYMBOL.unpack_from(code, at)
            begin = names + name
            if code[begin : code.index(b"\0", begin)] == wanted.encode():
                _, _, _, address, place, *_ = sections[section]
                first = place + value - address
                return code[first : first + bytes_]
    raise ValueError(f"it has no {wanted}")
