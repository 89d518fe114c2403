"""Every command of `farm`: one line each. A command's module is imported when the command runs, and not before.

To add a command, write a function whose docstring is its help, with an `Examples:` section, and add a line to
`COMMANDS`. The summary is the first paragraph of the docstring: it stands here too, so that `farm --help` and shell
completion import no command. Tests compare the two, and run the examples through the command's parser.
"""

from __future__ import annotations

import gc
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from farm.cli.completing import add_completion
from farm.cli.parameters import QuickGroup, command_of

MEASURE, FOLLOW, LEARN, OPERATE = "Measure", "Follow and steer", "Learn", "Operate"
"""The panels of `farm --help`."""

EXAMPLES = "Examples:"
"""Begins the last section of a command's docstring. Each line below it is a command line."""


@dataclass(frozen=True)
class Entry:
    """A command, or a group of commands, of the top level."""

    name: str
    target: str  # module:attribute in farm.cli; a function, or the Typer app of a group
    panel: str
    summary: str


COMMANDS = (
    Entry("run", "run:run", MEASURE, "Measure a campaign here, train and register a model, predict a shape that was held out, and report."),
    Entry("replay", "replay:replay", MEASURE, "Replay what other devices measured: no GPU is needed. Without a name: the datasets that there are."),
    Entry("submit", "campaigns:submit", MEASURE, "Submit a campaign. The same file twice is the same campaign: nothing is measured again, but with --again."),
    Entry("measure", "measure:measure", MEASURE, "Measure one configuration on one device of this host, alone. It needs no services and stores nothing."),
    Entry("results", "results:results", MEASURE, "Measurements. On a terminal the first 30, or as many as --limit says; exports hold every column and row."),
    Entry("best", "best:show", MEASURE, "The best kernel of each problem that a campaign found: its time, cuBLASLt's beside it, and what finding it cost."),
    Entry("compare", "compare:compare", MEASURE, "Compare cards, hosts, types, versions or days on the configurations that they share: time, power, energy, cost."),
    Entry("report", "report:report", MEASURE, "The report of a campaign: one HTML file that works without a network, to be read, printed and sent."),
    Entry("analyze", "analyze:app", MEASURE, "Studies of what was measured."),
    Entry("import", "imports:app", MEASURE, "Rows that were measured elsewhere, to compare with and to learn from."),
    Entry("status", "status:status", FOLLOW, "Campaigns and how far they are; with a name, what of it runs where, how fast, and what is stuck and why."),
    Entry("watch", "campaigns:watch", FOLLOW, "Follow a campaign to its end. Ctrl-C stops the watching, not the campaign."),
    Entry("open", "opening:open_", FOLLOW, "Open the page of a campaign, or a report, in the browser."),
    Entry("sentinels", "sentinels:sentinels", FOLLOW, "Do devices drift? Each measures a fixed GEMM, its sentinel, now and then while it works for a campaign."),
    Entry("jobs", "jobs:jobs", FOLLOW, "Jobs of a campaign: state, attempts, last error, and a command that measures each alone, where it failed."),
    Entry("retry", "jobs:retry", FOLLOW, "Open jobs again that ended without a result, with all their attempts before them: all that are dead, or those chosen."),
    Entry("pause", "campaigns:pause", FOLLOW, "Pause a campaign: no further job of it starts until farm resume."),
    Entry("resume", "campaigns:resume", FOLLOW, "Go on with a campaign that was paused."),
    Entry("cancel", "campaigns:cancel", FOLLOW, "Cancel a campaign. Its results stay; submitting it again goes on with it."),
    Entry("train", "train:train", LEARN, "Train a model per device type, evaluate it on shapes held out, and register it; the better one is champion."),
    Entry("predict", "models:predict", LEARN, "Predict time, power, energy and TFLOP/s with the registered model of a device type."),
    Entry("recommend", "recommend:recommend", LEARN, "Rank the kernels that were measured and that a card can run for a problem, with the model of its type: the best first."),
    Entry("models", "models:app", LEARN, "The registered models."),
    Entry("health", "health:health", OPERATE, "Check the health of devices: each is compared with its peers and with its own past; ends with exit code 7 where one is not."),
    Entry("serve", "serve:serve", OPERATE, "Serve the web page and the API, until Ctrl-C."),
    Entry("up", "services:up", OPERATE, "Start the farm in the background: services, coordinator, workers and trainer. They run until farm down."),
    Entry("down", "services:down", OPERATE, "Stop what farm up started, and services that a killed command left running. Data stay."),
    Entry("doctor", "services:doctor", OPERATE, "Check everything that the farm depends on, and name the fix of what is wrong. Changes nothing."),
    Entry("devices", "devices:app", OPERATE, "Devices and hosts: what each does now, errors of the last hour, when it was last heard of."),
    Entry("kernels", "kernels:app", OPERATE, "Kernels that are built ahead of time."),
    Entry("hosts", "hosts:app", OPERATE, "Worker hosts: one database login for each."),
    Entry("tokens", "tokens:app", OPERATE, "Tokens of the web page and the API: who may read, submit or operate."),
    Entry("quotas", "quotas:app", OPERATE, "What owners may have underway: open jobs, device time, priorities."),
    Entry("audit", "audit:app", OPERATE, "Who changed what, when and from where."),
    Entry("keys", "keys:app", OPERATE, "Keys that models and kernels are signed with, and whose signatures are trusted."),
    Entry("sessions", "sessions:app", OPERATE, "Sessions of the web page: the browsers that are signed in, and ending them."),
    Entry("delete", "deleting:delete", OPERATE, "Delete a campaign, an import or a model, with what depends on it. farm restore undoes it until farm vacuum."),
    Entry("restore", "deleting:restore", OPERATE, "Put back what was deleted, as it was."),
    Entry("deleted", "deleting:deleted", OPERATE, "List what is deleted and can be restored, since when, and how large it is."),
    Entry("vacuum", "deleting:vacuum", OPERATE, "Remove for good what was deleted."),
    Entry("redis", "redis_users:app", OPERATE, "The users of Redis."),
    Entry("db", "database:app", OPERATE, "The database's revision, and the roles of services, workers and readers."),
)  # fmt: skip


class LazyCommand(TyperCommand):
    """Stands for a command in the help of the top level, and becomes the command itself when it is run.

    When it is completed, it becomes what `farm.cli.parameters` knows of the command, without importing it.
    """

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.name, help=entry.summary, rich_help_panel=entry.panel)
        self.entry = entry

    def load(self) -> Any:
        """Imports the command's module. Returns the command that Typer makes of it."""
        return loaded(self.entry)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        completing = extra.get("resilient_parsing", False)
        return (completed(self.entry) if completing else self.load()).make_context(
            info_name, args, parent=parent, **extra
        )


class LazyGroup(QuickGroup):
    """The top level: all of `COMMANDS`, none of them imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        _show_examples(self, "farm")
        for entry in COMMANDS:
            self.add_command(LazyCommand(entry))


@cache
def loaded(entry: Entry) -> Any:
    """The command or group of an entry, with the examples of each help at its end."""
    module, _, attribute = entry.target.partition(":")
    with _without_collections():
        target = getattr(import_module(f"farm.cli.{module}"), attribute)
    holder = typer.Typer(add_completion=False, rich_markup_mode="rich", callback=lambda: None)
    if isinstance(target, typer.Typer):
        holder.add_typer(target, name=entry.name)
    else:
        holder.command(entry.name)(target)
    group: Any = typer.main.get_command(holder)
    command = group.commands[entry.name]
    _add_completions(command, entry)
    _show_examples(command, f"farm {entry.name}")
    return command


@contextmanager
def _without_collections() -> Iterator[None]:
    """Inside, imports wait for no garbage collection; afterwards, none looks through what they made."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def completed(entry: Entry) -> Any:
    """The command or group of an entry, as far as completion needs it; its module is not imported."""
    command = command_of(entry.name)
    _add_completions(command, entry)
    return command


def _add_completions(command: Any, entry: Entry) -> None:
    for words, each in walk(command, (entry.name,)):
        add_completion(each, words)


def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A command and, where it is a group, those in it, each with the words that call it."""
    yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from walk(each, (*words, name))


def every_command() -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands and groups below `farm`, imported, each with the words that call it."""
    for entry in COMMANDS:
        yield from walk(loaded(entry), (entry.name,))


def _show_examples(command: Any, words: str) -> list[str]:
    """Puts the examples of a command at the end of its help. Returns them.

    A group shows the first example of each of its commands, after itself where it does something alone.
    """
    examples = examples_of(command.help)
    for name, each in getattr(command, "commands", {}).items():
        examples += _show_examples(each, f"{words} {name}")[:1]
    if getattr(command, "invoke_without_command", False):
        examples.insert(0, words)
    command.help = _without_examples(command.help)
    if examples:
        lines = "\n".join(_escaped(example) for example in examples)
        command.epilog = f"[bold]Examples[/]\n{lines}" + (f"\n\n{command.epilog}" if command.epilog else "")
    command.examples = examples
    return examples


def _without_examples(text: str | None) -> str | None:
    return None if text is None else inspect.cleandoc(text).partition(f"\n{EXAMPLES}\n")[0].rstrip()


def examples_of(text: str | None) -> list[str]:
    """The command lines in the `Examples:` section of a docstring."""
    _, _, section = inspect.cleandoc(text or "").partition(f"\n{EXAMPLES}\n")
    return [line.strip() for line in section.splitlines() if line.strip()]


def _escaped(text: str) -> str:
    """Text in which rich sees no markup. Rich's own `escape` would import rich."""
    return re.sub(r"(\\*)(\[[a-z#/@][^\[]*?])", r"\1\1\\\2", text)
