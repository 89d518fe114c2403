"""Reading YAML into plain data, with the line of every value.

The campaign format has numbers and words and nothing else: no booleans, dates, octal numbers or tags. So `power: off`
stays the word "off" instead of turning into False, `0512` is refused instead of meaning 330, and `1e-3` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from farm.errors import CampaignFileError
from farm.formatting import lines_text

Location = tuple[str | int, ...]
"""The place of a value in the file: the keys and list positions that lead to it."""

_MAX_FILE_BYTES = 16 * 2**20
_MAX_DEPTH = 100
"""Of lists and mappings inside one another. Campaigns have fewer than ten."""

_MAX_VALUES = 500_000
"""With aliases, a small file can have billions of values. No real campaign reaches this."""


@dataclass(slots=True)
class FileProblems:
    """The problems of one campaign file, collected so that all are reported at once."""

    path: Path | str
    by_line: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, text: str) -> None:
        # The text repeats parts of the file, whose line breaks and escape codes must not reach the terminal.
        self.by_line.append((line, "".join(c if c.isprintable() else " " for c in text)))

    def as_error(self) -> CampaignFileError:
        """One line for each problem, in the order of the file: the first `MAX_LISTED`, and the number of others."""
        lines = dict.fromkeys(f"{self.path}:{line}: {text}" for line, text in sorted(self.by_line, key=lambda p: p[0]))
        return CampaignFileError(problems=lines_text(list(lines)))

    def raise_if_any(self) -> None:
        if self.by_line:
            raise self.as_error()


@dataclass(frozen=True, slots=True)
class Located:
    """Plain data, and the line (from 1) on which each value of it was written."""

    data: dict[str, Any]
    lines: dict[Location, int]
    # Those of reading; validation adds more.
    problems: FileProblems

    def add(self, location: Location, text: str) -> None:
        """Notes that the value at a location is wrong."""
        self.problems.add(self.line_of(location), f"{path_of(location)}: {text}" if location else text)

    def line_of(self, location: Location) -> int:
        """The line of a value, or of the nearest value around it that was written down."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)

    def written(self, location: Location) -> Location:
        """The part of a validation's location that the file has.

        A single value may stand where a list is meant; the list position that validation adds is left out here.
        """
        path: list[str | int] = []
        here: Any = self.data
        for step in location:
            if isinstance(step, str) or isinstance(here, list):
                here = item_of(here, step)
                path.append(step)
        return tuple(path)


def item_of(value: object, step: str | int) -> Any:
    """The value under a key or at a position; None if there is none."""
    if isinstance(step, int):
        return value[step] if isinstance(value, list) and step < len(value) else None
    return value.get(step) if isinstance(value, dict) else None


def entries_of(written: object) -> Iterator[tuple[Location, object]]:
    """The entries of a list, or the lone value in its place, each with its part of the location."""
    if isinstance(written, list):
        yield from (((i,), item) for i, item in enumerate(written))
    else:
        yield (), written


def path_of(location: Location) -> str:
    """A location as people write it: `problems[0].m`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).lstrip(".")


class _TooDeep(Exception):
    """Lists and mappings are nested deeper than `_MAX_DEPTH`."""


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with the scalar types of this format alone, and with a limit on the depth.

    Its scanner looks 1,024 characters ahead, and for each bracket at all open ones. So the depth is refused while it scans.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 - declared by PyYAML, filled below

    def fetch_flow_collection_start(self, token: Any) -> None:
        self._check_depth()
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        self._check_depth()
        return bool(super().add_indent(column))

    def _check_depth(self) -> None:
        if self.flow_level + len(self.indents) >= _MAX_DEPTH:
            raise _TooDeep


_INT, _FLOAT, _NULL, _STR = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "null", "str"))
_SEQ, _MAP = "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"
_Loader.add_implicit_resolver(_INT, re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver(_NULL, re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])


def read(path: Path) -> Located:
    """Reads a campaign file. Smaller mistakes, such as a repeated key, are noted in the `problems` of the result.

    Raises:
        CampaignFileError: It is missing or not a file, not UTF-8 text, empty, not YAML or not a mapping.
    """
    return parse(text_of(path), path)


def text_of(path: Path) -> str:
    try:
        if path.is_dir():
            raise CampaignFileError(problems=f"{path}: this is a folder; name a campaign file in it")
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise CampaignFileError(
                problems=f"{path}: the file is larger than {_MAX_FILE_BYTES // 2**20} MiB; split the campaign"
            )
        content = path.read_bytes()
    except FileNotFoundError:
        raise CampaignFileError(problems=f"{path}: there is no such file") from None
    except OSError as error:
        raise CampaignFileError(problems=f"{path}: it cannot be read: {error.strerror or error}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise CampaignFileError(
            problems=f"{path}:{line}: byte {error.start} is not UTF-8; save the file as UTF-8 text"
        ) from None


def parse(text: str, path: Path | str) -> Located:
    """Reads the text of a campaign file; `path` is what the errors call it. Raises `CampaignFileError`."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise CampaignFileError(problems=_syntax_problem(path, error)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise CampaignFileError(
            problems=f"{path}:{line}: not YAML: the control character #x{error.character:02x}; remove it"
        ) from None
    except (_TooDeep, RecursionError):
        raise CampaignFileError(problems=f"{path}: lists and mappings are nested too deeply to be a campaign") from None
    if node is None:
        raise CampaignFileError(
            problems=f"{path}:1: the file is empty; a campaign has a name, problems and kernels at least"
        )
    if not isinstance(node, yaml.MappingNode):
        raise CampaignFileError(
            problems=f"{path}:{_line(node)}: a campaign is a mapping of fields (name: …, problems: …, kernels: …), "
            f"this is {'a list' if isinstance(node, yaml.SequenceNode) else 'a single value'}"
        )
    problems = FileProblems(path)
    builder = _Builder(problems)
    try:
        data = builder.build(node, ())
    except RecursionError:  # of aliases that stand for one another
        raise CampaignFileError(problems=f"{path}: lists and mappings are nested too deeply to be a campaign") from None
    return Located(data, builder.lines, problems)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _syntax_problem(path: Path | str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else f"{path}"
    what = " ".join(str(part) for part in (error.context, error.problem) if part)
    hint = ""
    if "'\\t'" in what:
        hint = "; indent with spaces, YAML does not take tabs"
    elif "mapping values are not allowed" in what:
        hint = "; put quotes around a value that contains a colon, and check the indentation"
    elif "expected <block end>" in what or "could not find expected ':'" in what:
        hint = "; check the indentation and that every field has its colon"
    elif "expected ',' or ']'" in what or "expected ',' or '}'" in what:
        hint = "; close the bracket"
    return f"{where}: not YAML: {what}{hint}"


class _Builder:
    """Makes plain data of nodes, notes lines, and refuses YAML that the format does not have."""

    def __init__(self, problems: FileProblems) -> None:
        self.problems = problems
        self.lines: dict[Location, int] = {}
        self._open: set[int] = set()

    def build(self, node: yaml.Node, location: Location) -> Any:
        self.lines.setdefault(location, _line(node))
        if len(self.lines) > _MAX_VALUES:
            self.problems.add(_line(node), f"the file stands for more than {_MAX_VALUES:,} values; split the campaign")
            self.problems.raise_if_any()
        if id(node) in self._open:
            self.problems.add(_line(node), "an alias (*) stands inside what it repeats; write the values out")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
                return self._mapping(node, location)
            if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
                return [self.build(item, (*location, i)) for i, item in enumerate(node.value)]
            if isinstance(node, yaml.ScalarNode):
                return self._scalar(node)
        finally:
            self._open.discard(id(node))
        self.problems.add(_line(node), f"the tag {node.tag} has no meaning in a campaign; remove it")
        return None

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        data: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = _line(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.add(line, "a field's name is a word, this is a list or a mapping")
                continue
            key = str(key_node.value)
            if key in data:
                self.problems.add(
                    line, f"{key}: it stands here a second time (first on line {first_lines[key]}); keep one of them"
                )
                continue
            first_lines[key] = line
            self.lines[(*location, key)] = line
            data[key] = self.build(value_node, (*location, key))
        return data

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = str(node.value)
        if node.tag == _NULL:
            return None
        if node.tag == _STR:
            return text
        try:
            if node.tag == _INT:
                return int(text)
            if node.tag == _FLOAT:
                return float(text)
        except ValueError:
            self.problems.add(_line(node), f"{text[:20]}… is not a number that fits here")
            return None
        self.problems.add(_line(node), f"the tag {node.tag} has no meaning in a campaign; remove it")
        return None
