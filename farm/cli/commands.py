"""Every command of `farm`: one line each. A command's module is imported when the command runs, and not before.

To add a command, write a function whose docstring is its help, with an `Examples:` section, and add a line to
`COMMANDS`. The summary is the first paragraph of the docstring: it stands here too, so that `farm --help` and shell
completion import no command. Tests compare the two, and run the examples through the command's parser.
"""

from __future__ import annotations

import gc
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
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
    Entry("run", "run:run", MEASURE, "Measure a campaign on this machine, train and register a model, predict a held-out shape, and print a report."),
    Entry("replay", "replay:replay", MEASURE, "Replay measurements of other devices, without a GPU. Without a name, list the datasets."),
    Entry("submit", "campaigns:submit", MEASURE, "Submit a campaign. Submitting the same file twice measures nothing again, except with --again."),
    Entry("schema", "schema:schema", MEASURE, "Print the JSON Schema of campaign files, with which an editor completes keys and marks mistakes."),
    Entry("measure", "measure:measure", MEASURE, "Measure one configuration on one device of this host. Needs no services and stores nothing."),
    Entry("check", "check:check", MEASURE, "Measure two versions of a kernel or library in turn on one device of this host, until a change is shown or excluded. Exits with code 7 if the head is slower."),
    Entry("shapes", "shapes:shapes", MEASURE, "List the GEMMs of one step of a language model on one GPU, or of a trace, with how often each runs. Measures nothing."),
    Entry("results", "results:results", MEASURE, "Show or export measurements. A terminal shows the first 30 rows or --limit; exports have every column and row."),
    Entry("best", "best:show", MEASURE, "Show the best kernel that a campaign found for each problem, its time compared with cuBLASLt's, and the cost of the search."),
    Entry("compare", "compare:compare", MEASURE, "Compare cards, hosts, types, versions or days on the configurations that they share: time, power, energy, cost."),
    Entry("publish", "publish:publish", MEASURE, "Write what cards of each type take for the same GEMMs as a signed folder: percentiles of time and power, and digests."),
    Entry("report", "report:report", MEASURE, "Write the report of a campaign: one HTML file that works without a network."),
    Entry("analyze", "analyze:app", MEASURE, "Study measurements."),
    Entry("import", "imports:app", MEASURE, "Import rows that were measured elsewhere, to compare with and to train on."),
    Entry("pull", "pull:pull", MEASURE, "Import the finished campaigns of another farm over its HTTP API. Again, it imports only what is new."),
    Entry("export", "exporting:app", MEASURE, "Write files that other tools read, made of measurements and models."),
    Entry("status", "status:status", FOLLOW, "Show the progress of campaigns. With a name, show what runs where, how fast, and what is stuck and why."),
    Entry("watch", "campaigns:watch", FOLLOW, "Follow a campaign until it ends. Ctrl-C stops watching, not the campaign."),
    Entry("open", "opening:open_", FOLLOW, "Open the page of a campaign, or a report, in the browser."),
    Entry("sentinels", "sentinels:sentinels", FOLLOW, "Show the drift of devices. Each device measures a fixed GEMM, its sentinel, at intervals during a campaign."),
    Entry("series", "series:series", FOLLOW, "Show throughput, duty, power, clocks and temperature of devices over time."),
    Entry("jobs", "jobs:jobs", FOLLOW, "List jobs of a campaign: state, attempts, last error, and a command that repeats each job on the device where it failed."),
    Entry("retry", "jobs:retry", FOLLOW, "Retry jobs that ended without a result: all dead jobs, or the selected ones. Each gets all its attempts again."),
    Entry("pause", "campaigns:pause", FOLLOW, "Pause a campaign. No further job starts until farm resume."),
    Entry("resume", "campaigns:resume", FOLLOW, "Resume a paused campaign."),
    Entry("cancel", "campaigns:cancel", FOLLOW, "Cancel a campaign. Its results are kept. Submit it again to continue."),
    Entry("train", "train:train", LEARN, "Train a model for each device type, evaluate it on held-out shapes, and register it. The better version is champion."),
    Entry("predict", "models:predict", LEARN, "Predict time, power, energy and TFLOP/s with the registered model of a device type."),
    Entry("plan", "plan:plan", LEARN, "Plan a language model: time, tokens per second, energy, power, money and CO2 of a step on each card."),
    Entry("recommend", "recommend:recommend", LEARN, "Rank the measured kernels that a card can run for a problem, best first, with the model of its type."),
    Entry("models", "models:app", LEARN, "List and manage registered models."),
    Entry("health", "health:health", OPERATE, "Check the health of devices against their peers and their own past. Exits with code 7 if a device is unhealthy."),
    Entry("serve", "serve:serve", OPERATE, "Serve the web page and the API, until Ctrl-C."),
    Entry("up", "services:up", OPERATE, "Start the farm in the background: services, coordinator, workers and trainer. They run until farm down."),
    Entry("down", "services:down", OPERATE, "Stop what farm up started, and services that a killed command left running. Data are kept."),
    Entry("doctor", "services:doctor", OPERATE, "Check every dependency of the farm and name the fix for each problem. Changes nothing."),
    Entry("completion", "completion:completion", OPERATE, "Print the script that completes farm in a shell: commands, options, and names of campaigns, devices and models."),
    Entry("devices", "devices:app", OPERATE, "List and control devices and hosts: current work, errors of the last hour, last heartbeat."),
    Entry("kernels", "kernels:app", OPERATE, "Manage kernels that are built ahead of time."),
    Entry("hosts", "hosts:app", OPERATE, "Manage worker hosts: one database login for each."),
    Entry("tokens", "tokens:app", OPERATE, "Manage tokens of the pages and the API, which allow to read, submit, operate or administer."),
    Entry("quotas", "quotas:app", OPERATE, "Show and set limits of owners: open jobs, device time, priorities."),
    Entry("audit", "audit:app", OPERATE, "Show who changed what, when and from where."),
    Entry("metrics", "metrics:app", OPERATE, "List the metrics for Prometheus, and check dashboards and rules against them."),
    Entry("keys", "keys:app", OPERATE, "Show and make the keys that sign models, kernels and publications, and list the trusted keys."),
    Entry("sessions", "sessions:app", OPERATE, "List and end the sessions of browsers that are signed in."),
    Entry("delete", "deleting:delete", OPERATE, "Delete a campaign, an import or a model, with everything that depends on it. Undo with farm restore until farm vacuum."),
    Entry("restore", "deleting:restore", OPERATE, "Restore a deleted campaign, import or model."),
    Entry("deleted", "deleting:deleted", OPERATE, "List deletions that can be restored, with their time and size."),
    Entry("vacuum", "deleting:vacuum", OPERATE, "Remove deleted data permanently."),
    Entry("backup", "backup:app", OPERATE, "Back up the farm while it runs, check backups, and restore them."),
    Entry("move", "move:move", OPERATE, "Move the embedded database of this home to an empty database of a server."),
    Entry("prune", "prune:prune", OPERATE, "Show, and with --yes remove, old data that nothing needs: deleted campaigns and models, sessions, unused kernels, logs."),
    Entry("redis", "redis_users:app", OPERATE, "Manage the users of Redis."),
    Entry("db", "database:app", OPERATE, "Manage the revision of the database and the roles of services, workers and readers."),
)  # fmt: skip


LOCAL: Mapping[str, str] = {
    "run": "measures on this machine",
    "replay": "replays on this machine",
    "measure": "measures on this machine, and needs no services",
    "check": "measures on this machine, and needs no services",
    "export tunableop": "writes nothing, and needs no services",
    "shapes": "reads files of this machine, and needs no services",
    "schema": "prints what this version accepts, and needs no services",
    "completion": "prints a script for this machine's shells",
    "serve": "is the server",
    "up": "starts programs on this machine",
    "down": "stops programs on this machine",
    "doctor": "checks this machine, and whether the API responds",
    "models sign": "signs with this machine's key",
    "kernels build": "compiles on this machine",
    "kernels prune": "removes files of this machine",
    "metrics": "reads files of this machine, and needs no services",
    "keys": "reads and makes keys of this machine",
    "redis": "sets up the farm's Redis",
    "backup": "copies the farm's database and this machine's registry",
    "move": "moves the embedded database of this machine",
    "prune": "removes rows of the farm's database and files of this machine",
    "db": "sets up the farm's database",
}
"""Commands that FARM_API_URL does not reach, with the reason. All others work over the API: see docs/serving.md."""


def why_local(words: Sequence[str]) -> str | None:
    """Why a command does not work over the API; None for one that does. `words` call it."""
    return next((LOCAL[name] for n in range(1, len(words) + 1) if (name := " ".join(words[:n])) in LOCAL), None)


class LazyCommand(TyperCommand):
    """Represents a command in the help of the top level. It loads the command when it runs.

    For completion, it uses the parameters in `farm.cli.parameters` and does not import the command.
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
    """The top level: all of `COMMANDS`, without importing them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        _show_examples(self, "farm")
        for entry in COMMANDS:
            self.add_command(LazyCommand(entry))

    def get_params(self, context: Any) -> list[Any]:
        """The options of `farm` itself, those of Typer included."""
        return _without_types_of_flags(super().get_params(context))


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
    for _, each in walk(command, ()):
        _without_types_of_flags(each.get_params(each.context_class(each)))
    return command


@contextmanager
def _without_collections() -> Iterator[None]:
    """Disables garbage collection during imports, and excludes the imported objects from later collections."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def completed(entry: Entry) -> Any:
    """The command or group of an entry with what completion needs. Does not import its module."""
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


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    """A flag takes no value, but Typer's help gives its type, `<bool>`, as that of one."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


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
    """The rest of a docstring, with each paragraph on one line: Typer keeps line breaks, and terminals are narrower."""
    if text is None:
        return None
    rest = inspect.cleandoc(text).partition(f"\n{EXAMPLES}\n")[0].rstrip()
    return re.sub(r"(?<=\S)\n(?=\S)", " ", rest)


def examples_of(text: str | None) -> list[str]:
    """The command lines in the `Examples:` section of a docstring."""
    _, _, section = inspect.cleandoc(text or "").partition(f"\n{EXAMPLES}\n")
    return [line.strip() for line in section.splitlines() if line.strip()]


def _escaped(text: str) -> str:
    """Text in which rich sees no markup. Rich's own `escape` would import rich."""
    return re.sub(r"(\\*)(\[[a-z#/@][^\[]*?])", r"\1\1\\\2", text)
