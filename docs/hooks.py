"""What the documentation site adds to the files of this folder: pages from the root of the repository and from the code.

MkDocs calls `on_files` and `on_page_markdown`. Links keep working on GitHub: this module rewrites those that leave the folder.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

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
    """Every operation with its route, role and parameters."""
    from farm.api import OPERATIONS, PREFIX

    parts = [
        "# HTTP API",
        f"Paths begin with `{PREFIX}`. A running server describes bodies and responses at `{PREFIX}/openapi.json`. "
        "[Serving](../serving.md) describes tokens, roles and limits.",
    ]
    by_tag: dict[str, list[Any]] = {}
    for each in OPERATIONS.values():
        by_tag.setdefault(each.tag, []).append(each)
    for tag, operations in sorted(by_tag.items()):
        rows = ["| request | role | parameters | what it does |", "| --- | --- | --- | --- |"]
        for each in sorted(operations, key=lambda one: (one.path, one.method)):
            summary = _cell(inspect.cleandoc(each.function.__doc__ or "").split("\n\n")[0])
            names = ", ".join(f"`{parameter.name}`" for parameter in each.parameters)
            rows.append(f"| `{each.method} {each.path}` | `{each.role.value}` | {names} | {summary} |")
        parts += [f"## {tag.replace('_', ' ').capitalize()}", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def _text(help_: str | None) -> str:
    return re.sub(r"\[/?[a-z]*\]", "", help_ or "").replace("\b", "").strip()


def _cell(text: str) -> str:
    return " ".join(re.sub(r"\[/?[a-z]*\]", "", text).split()).replace("|", "\\|")
