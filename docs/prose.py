"""The prose check of `make lint`: README, documents, help texts, docstrings and messages against the rules in `prose.toml`.

It works offline. Code blocks, code spans and the addresses of links are left out. A cell of a table, an item of a list and a
paragraph are separate texts. In source code, docstrings and strings of several words are checked for words, not for length.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
RULES = tomllib.loads((Path(__file__).parent / "prose.toml").read_text())

_FENCE = re.compile(r"^ *```.*?^ *```$", flags=re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", flags=re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]+\)")
_START = re.compile(r"^\s*(?:[-*] |\d+\. |#+ |> )")
_END = re.compile(r"(?<=[.!?:;])[\"')*]*\s+(?=[\w\"'(*`X])")
_SQL = re.compile(r"\b(?:SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|ALTER|WHERE)\b")
_WORD = re.compile(r"[\w'’-]*[A-Za-z][\w'’-]*")


def texts_of(markdown: str) -> Iterator[tuple[int, str]]:
    """The texts of a document, each with the number of its first line. A code span becomes `X`."""
    blank = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), markdown)
    blank = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), blank)
    first, lines = 0, list[str]()
    for number, line in enumerate([*blank.splitlines(), ""], start=1):
        table = line.lstrip().startswith("|")
        if lines and (table or not line.strip() or _START.match(line)):
            yield first, _plain(" ".join(lines))
            lines = []
        if table:
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            yield from ((number, _plain(cell)) for cell in cells)
        elif line.strip():
            first = first if lines else number
            lines.append(_START.sub("", line).strip())


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", re.sub(r"``.+?``|`[^`]*`", "X", text)).strip()


def sentences_of(text: str) -> list[str]:
    return [sentence for sentence in _END.split(text) if sentence.strip()]


def words_in(text: str) -> Iterator[str]:
    """Faults in the choice of words."""
    for pattern, instead in RULES["instead_of"].items():
        if found := re.search(rf"(?<![\w-])(?:{pattern})(?![\w-])", text, flags=re.IGNORECASE):
            yield f"instead of “{found[0]}” write {instead}"


def faults_in(text: str) -> Iterator[str]:
    """Faults in the choice of words and in the length of sentences."""
    yield from words_in(text)
    for sentence in sentences_of(text):
        count = len(_WORD.findall(sentence))
        if count > RULES["words_in_a_sentence"]:
            start = " ".join(sentence.split()[:6])
            yield f"a sentence of {count} words, at most {RULES['words_in_a_sentence']}: “{start} …”"


def documents() -> list[Path]:
    return [path for pattern in RULES["documents"] for path in sorted(ROOT.glob(pattern))]


def strings_of(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings of Python source and its strings of several words, each with its line. Values in f-strings become `X`."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else "X" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        if len(_WORD.findall(text)) > 2 and not _SQL.search(text):
            yield node.lineno, _plain(_FENCE.sub("", text))


def help_texts() -> Iterator[tuple[str, str]]:
    """The help of every command and of its parameters, each with its place."""
    from farm.cli.commands import every_command

    for words, command in every_command():
        place = f"farm {' '.join(words)}"
        for paragraph in re.split(r"\n\s*\n", command.help or ""):
            yield place, _plain(" ".join(paragraph.split()))
        for parameter in command.params:
            yield f"{place} {parameter.name}", _plain(getattr(parameter, "help", None) or "")


def faults() -> Iterator[str]:
    """All faults, each with its place."""
    for path in documents():
        name = path.relative_to(ROOT)
        for number, text in texts_of(path.read_text()):
            yield from (f"{name}:{number}: {fault}" for fault in faults_in(text))
    for path in sorted({path for folder in RULES["source"] for path in ROOT.glob(folder)}):
        for number, text in strings_of(path.read_text()):
            yield from (f"{path.relative_to(ROOT)}:{number}: {fault}" for fault in words_in(text))
    for place, text in help_texts():
        yield from (f"{place}: {fault}" for fault in faults_in(text))


if __name__ == "__main__":
    found = list(faults())
    sys.stderr.writelines(f"{fault}\n" for fault in found)
    sys.exit(bool(found))
