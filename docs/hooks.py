"""What the documentation site adds to the files of this folder: pages from the root of the repository and from the code.

MkDocs calls `on_files` and `on_page_markdown`. Links keep working on GitHub: this module rewrites those that leave the folder.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

if TYPE_CHECKING:
    from farm.api import Operation

ROOT = Path(__file__).parent.parent

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/datasets/README.md": "datasets.md",
}
"""Files outside this folder that are pages of the site."""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that no file of this folder holds."""
    made = {page: (ROOT / source).read_text() for source, page in PAGES.items()}
    made |= {"reference/options.md": options_page(), "reference/http.md": http_page()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links to where the site has the target. A link to a file that the site lacks becomes text."""
    uri = page.file.src_uri
    source = next((name for name, at in PAGES.items() if at == uri), f"docs/{uri}")

    def rewritten(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        path, hash_, anchor = target.partition("#")
        at = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        inside = PAGES.get(at) or (at.removeprefix("docs/") if at.startswith("docs/") else None)
        if inside is None:
            if not (ROOT / at).exists():
                return match[0]  # strict mode reports it
            return text
        return f"{mark}[{text}]({posixpath.relpath(inside, posixpath.dirname(uri) or '.')}{hash_}{anchor})"

    return _LINK.sub(rewritten, markdown)


# --- reference, from the declared commands and operations ------------------------------------------------


def options_page() -> str:
    """Every command with its arguments, options and examples."""
    from farm.cli.commands import every_command

    parts = ["# Command options", "Every command accepts `--help`. [Commands](../commands.md) describes them by task."]
    for words, command in every_command():
        about = _text(command.help)
        parts += [f"## farm {' '.join(words)}", about]
        rows = [_parameter_row(each) for each in command.params if not getattr(each, "hidden", False)]
        if rows:
            parts.append("\n".join(["| parameter | type | default | meaning |", "| --- | --- | --- | --- |", *rows]))
        if examples := getattr(command, "examples", None):
            parts.append("\n".join(["```sh", *examples, "```"]))
    return "\n\n".join(parts) + "\n"


def _parameter_row(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    is_option = parameter.param_type_name == "option"
    name = ", ".join(f"`{each}`" for each in names) if is_option else f"`{parameter.name.upper()}`"
    shown = "required" if parameter.required else _default(parameter)
    return f"| {name} | {_kind(parameter)} | {shown} | {_cell(getattr(parameter, 'help', None) or '')} |"


def _kind(parameter: Any) -> str:
    """The type of a parameter with its choices or bounds; empty for a switch."""
    if getattr(parameter, "is_flag", False):
        return ""
    described = parameter.type_descriptor
    if described.is_choice:
        return ", ".join(f"`{getattr(choice, 'value', choice)}`" for choice in described.choices)
    kind = "path" if described.is_path else getattr(described.annotation, "__name__", "text")
    kind = {"str": "text", "int": "integer", "float": "number"}.get(kind, kind)
    bounds = (("from", getattr(parameter, "min", None)), ("to", getattr(parameter, "max", None)))
    return " ".join([kind, *(f"{word} {value:g}" for word, value in bounds if value is not None)])


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.secondary_opts and isinstance(default, bool):
        return f"`{(parameter.opts if default else parameter.secondary_opts)[0]}`"
    if isinstance(default, bool) or not isinstance(default, (str, int, float)):
        return ""
    return f"`{getattr(default, 'value', default)}`"


def http_page() -> str:
    """Every operation with its route, role, parameters and response."""
    from farm.api import OPERATIONS, PREFIX

    parts = [
        "# HTTP API",
        f"Paths begin with `{PREFIX}`. A running server describes bodies and responses at `{PREFIX}/openapi.json`. "
        "[Serving](../serving.md) describes tokens, roles and limits.",
    ]
    by_tag: dict[str, list[Operation]] = {}
    objects: dict[str, Any] = {}
    for each in OPERATIONS.values():
        by_tag.setdefault(each.tag, []).append(each)
    for tag, operations in sorted(by_tag.items()):
        parts.append(f"## {tag.replace('_', ' ').capitalize()}")
        for each in sorted(operations, key=lambda one: (one.path, one.method)):
            parts += _operation(each, objects)
    parts += ["## Objects", "Objects inside responses."]
    for name, schema in sorted(objects.items()):
        if "properties" not in schema:
            continue
        parts += [f"### {name}", _cell(schema.get("description", "")), _fields({**schema, "$defs": objects})]
    return "\n\n".join(parts) + "\n"


def _operation(known: Operation, objects: dict[str, Any]) -> Iterator[str]:
    """The section of an operation. Adds the objects inside its response to `objects`."""
    from pydantic import TypeAdapter, create_model

    from farm.api.operation import Upload, fields_of

    yield f"### {known.method} {known.path}"
    yield f"{inspect.cleandoc(known.function.__doc__ or '')}\n\nNeeds the role `{known.role.value}`."
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in fields_of(known.function).items()}
    if any(kind is Upload for kind, _ in fields.values()):
        yield "The body is the file."
        fields = {name: field for name, field in fields.items() if field[0] is not Upload}
    yield from _parameters(create_model("Query", **fields).model_json_schema())
    if known.sends is not None:
        yield f"Returns a file of the type `{known.sends}`."
        return
    schema = TypeAdapter(known.hints["return"]).json_schema(mode="serialization")
    item = schema["items"] if schema.get("type") == "array" else schema
    definitions = schema.get("$defs", {})
    objects |= {
        name: found
        for name, found in definitions.items()
        if "$ref" not in item or not item["$ref"].endswith(f"/{name}")
    }
    if "$ref" in item:
        item = definitions[item["$ref"].rpartition("/")[2]]
    yield "Returns a list of objects:" if schema.get("type") == "array" else "Returns an object:"
    yield _fields({**item, "$defs": definitions})


def _parameters(schema: Mapping[str, Any]) -> Iterator[str]:
    """A table of the parameters of an operation."""
    rows = []
    for name, value in schema.get("properties", {}).items():
        default = value.get("default")
        shown = "" if default in (None, [], {}, False, "") else f"`{default}`"
        shown = "required" if name in schema.get("required", ()) else shown
        rows.append(f"| `{name}` | {_type(value, schema)} | {shown} | {_cell(value.get('description', ''))} |")
    if rows:
        yield "\n".join(["| parameter | type | default | meaning |", "| --- | --- | --- | --- |", *rows])


def _fields(schema: Mapping[str, Any]) -> str:
    """A table of the fields of a response."""
    rows = [
        f"| `{name}` | {_type(value, schema, nullable=True)} | {_cell(value.get('description', ''))} |"
        for name, value in schema.get("properties", {}).items()
    ]
    return "\n".join(["| field | type | meaning |", "| --- | --- | --- |", *rows])


def _type(value: Mapping[str, Any], schema: Mapping[str, Any], *, nullable: bool = False) -> str:
    """`list of text`, `integer from 1 to 500`, the values of an enumeration, or the name of an object."""
    if "anyOf" in value:
        kinds = [_type(one, schema) for one in value["anyOf"] if nullable or one.get("type") != "null"]
        return " or ".join(kinds)
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        found = schema["$defs"][name]
        return _type(found, schema) if "enum" in found else name
    if "enum" in value:
        return ", ".join(f"`{one}`" for one in value["enum"])
    if value.get("type") == "array" and "items" in value:
        return f"list of {_type(value['items'], schema)}"
    kind = {"date-time": "time", "uuid": "UUID"}.get(value.get("format", ""), value.get("type", "any"))
    kind = {"string": "text"}.get(kind, kind)
    bounds = (("from", value.get("minimum")), ("to", value.get("maximum")))
    return " ".join([kind, *(f"{word} {bound:g}" for word, bound in bounds if bound is not None)])


def _text(help_: str | None) -> str:
    return re.sub(r"\[/?[a-z]*\]", "", help_ or "").replace("\b", "").strip()


def _cell(text: str) -> str:
    return " ".join(re.sub(r"\[/?[a-z]*\]", "", text).split()).replace("|", "\\|")
