"""Training as a whole: from a training table to an evaluated, registered version, and whether it is the champion."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

import farm.forest
import farm.gpus
import farm.registry.held_out
import trainer
from farm import registry
from farm.errors import ModelRefused, NoSuchModel
from farm.protocols import ProtocolName
from farm.registry import CHALLENGER, CHAMPION, ModelInfo, model_name, registry_client
from farm.registry.held_out import FOLDER as HELD_OUT_FOLDER
from farm.registry.held_out import HeldOut, answers, held_out_files
from farm.registry.version_details import CARD
from farm.settings import settings as program_settings
from farm.tracing import tracing
from trainer.baseline import baselines
from trainer.evaluate import Metrics
from trainer.forest import ForestSettings
from trainer.learn import FOLDS_FOLDER, RUN_FOLDER, MetricsByFold, TableFacts, learn
from trainer.model_card import model_card
from trainer.progress import Progress
from trainer.promotion import Champion, Decision, decide, of_another_protocol, unsound
from trainer.runs import EXPERIMENT, log_decision, log_folds, log_training, register, start_run
from trainer.table import check_training_table, of_one_protocol, protocol_of
from trainer.table_hash import table_hash

NOT_IN_RECIPE = (
    *("main.py", "tasks.py", "progress.py", "memory.py"),  # run a training and report it
    *("acquire.py", "rounds.py"),  # choose what to measure next
    *("plots.py", "model_card.py", "runs.py"),  # describe and store what was learned
)
"""The files of this package that decide neither a model and its figures nor its promotion. All others are part of the recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """The outcome of a training. Every field can be stored as JSON."""

    device_type: str
    # Measurements in the training table, different configurations, those with power, and shapes (m, n, k).
    rows: int
    configurations: int
    power_configurations: int
    shapes: int
    sources: list[str]
    table_hash: str
    # Configurations with a burst time, the protocol of the rows, and rows of other protocols, which are left out.
    burst_configurations: int
    protocol: str
    left_out: dict[str, int]
    # As `farm.registry.conditions.Conditions`.
    conditions: dict[str, Any]
    # Fold kind -> target -> name -> number; see `trainer.evaluate.metrics`.
    metrics: dict[str, dict[str, Metrics]]
    run_id: str
    experiment: str
    model_name: str
    version: str
    # champion, challenger, or neither where an older version is reused.
    alias: str | None
    # Why it became the champion, or did not.
    decision: str
    # True where a version was already trained from this very table by this very code.
    reused: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def train_and_register(
    table: pd.DataFrame,
    device_type: str,
    *,
    tracking_uri: str,
    campaign: str | None = None,
    code_version: str,
    settings: ForestSettings | None = None,
    protocol: str | None = None,
    deciding: Callable[[], AbstractContextManager[Callable[[], None]]] = lambda: nullcontext(lambda: None),
    test: pd.DataFrame | None = None,
    progress: Progress | None = None,
    trust: registry.Trust | None = None,
) -> TrainingOutcome:
    """Evaluates and fits a model on the table, logs it to MLflow, and registers it as the challenger.

    Only rows of one protocol are used: see `trainer.table.of_one_protocol`.

    It becomes the champion where it beats the present one, see `trainer.promotion`. Where a version was trained from an
    equal table by equal code, nothing is done and the outcome is `reused`.
    `deciding` is entered when all is learned, and left when the version is registered: no other trainer may decide on this
    device type meanwhile. What it yields is called before other programs can pull the model, and may raise to end it.
    `test` has the rows of the device type's test sets, which its quoted errors are measured on. `progress` receives the progress.
    `trust` signs the version, and decides whether the present champion is compared. By default it comes from the settings of this
    process. Raises `TestRowsInTraining`, `MissingColumns`, `TooFewMeasurements`, `RegistryUnreachable`, `MlflowMissing`.
    """
    began = time.monotonic()
    settings, trust = settings or ForestSettings(), trust or registry.Trust(program_settings())
    table, left_out = of_one_protocol(table, protocol)
    check_training_table(table, device_type, left_out)
    facts = TableFacts.of(table, device_type, left_out)
    test = None if test is None else of_one_protocol(test, facts.protocol)[0]
    tags = {
        "device_type": device_type,
        "table_hash": facts.table_hash,
        "code_version": code_version,
        "recipe": recipe_hash(
            code_version, settings, tested_on=None if test is None or test.empty else table_hash(test)
        ),
        "sources": ",".join(facts.sources),
        **({"campaign": campaign} if campaign is not None else {}),
    }
    made_before = _reusable(tracking_uri, facts, tags["recipe"])
    if made_before is not None:
        metrics = registry.metrics_of(tracking_uri, made_before)
        return _outcome(facts, metrics, made_before, began, reused=True)
    with TemporaryDirectory(prefix="gemm-forest-") as made:
        folder = Path(made)
        with tracing().span("train model"):
            learned = learn(table, facts, settings, folder, progress, test)
        with deciding() as check:
            decision = _decide(tracking_uri, device_type, learned.configured, folder, trust)
            card = model_card(facts, table, learned, decision, code_version=code_version, campaign=campaign)
            (folder / CARD).write_text(card, encoding="utf-8")
            with registry_client(tracking_uri) as client:
                run = start_run(client, tracking_uri, facts, tags)
                try:
                    log_training(run, settings, learned.metrics, folder / RUN_FOLDER)
                    log_folds(run, learned.metrics, folder / FOLDS_FOLDER)
                    log_decision(run, decision, folder / CARD)
                    check()
                    version = register(run, learned.metrics, decision, card, folder, trust)
                except BaseException:
                    client.set_terminated(run.id, "FAILED")
                    raise
                client.set_terminated(run.id)
    registered = registry.model_info(tracking_uri, device_type, version)
    return _outcome(facts, learned.metrics, registered, began, reused=False)


def recipe_hash(code_version: str, settings: ForestSettings, *, tested_on: str | None = None) -> str:
    """Names everything but the table that decides a model and its figures: the code, its version, the settings, the test set."""
    digest = hashlib.sha256(json.dumps([code_version, asdict(settings), tested_on]).encode())
    folder, gpus = Path(trainer.__path__[0]), Path(farm.gpus.__file__).with_suffix(".yaml")
    reader = Path(farm.registry.held_out.__file__)
    predictor = Path(farm.forest.__path__[0]).glob("*.py")
    trained_by = (path for path in folder.glob("*.py") if path.name not in NOT_IN_RECIPE)
    for path in sorted([gpus, reader, *predictor, *trained_by]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _reusable(tracking_uri: str, facts: TableFacts, recipe: str) -> ModelInfo | None:
    """The newest version where training again would give the same one, whether it was promoted or not.

    A run that did not end well may have left a version without its aliases; such a version is made again.
    """
    name = model_name(facts.device_type)
    for model in registry.list_models(tracking_uri):
        same = model.table_hash == facts.table_hash and model.conditions == facts.conditions
        if model.name == name and same and model.run_id:
            with registry_client(tracking_uri) as client:
                run = client.get_run(model.run_id)
            if run.data.tags.get("recipe") == recipe and run.info.status == "FINISHED":
                return model
    return None


def _decide(
    tracking_uri: str, device_type: str, configured: pd.DataFrame, folder: Path, trust: registry.Trust
) -> Decision:
    """Judges the version by the files that will be logged, as later versions will when it is the champion."""
    try:
        challenger = HeldOut(folder / RUN_FOLDER / HELD_OUT_FOLDER)
    except FileNotFoundError:
        return unsound("has no stored models of its evaluation, so it cannot be judged")
    leak = challenger.leak()
    if leak is not None:
        return unsound(f"leaks: {leak}")
    simple = baselines(configured, challenger.fold_of(configured))
    predicted, no_champion = challenger.predict(configured), "there was no champion before"
    protocol, present = protocol_of(configured), _present_champion(tracking_uri, device_type)
    if present is not None and (others := _other_protocols(present, protocol)):
        if protocol != ProtocolName.FARM:
            alone = decide(configured, predicted, simple, None)
            return of_another_protocol(alone, present.version, protocol, others) if alone.sound else alone
        no_champion = f"champion version {present.version} learned from rows of another protocol ({others})"
        present = None
    champion = None
    try:
        if present is not None:
            champion = _champion(tracking_uri, present, configured, challenger.kinds, folder / "champion", trust)
    except ModelRefused as error:
        no_champion = f"the champion before is not compared: {error}"
    return decide(configured, predicted, simple, champion, no_champion)


def _present_champion(tracking_uri: str, device_type: str) -> ModelInfo | None:
    try:
        return registry.model_info(tracking_uri, device_type)
    except NoSuchModel:
        return None


def _other_protocols(champion: ModelInfo, protocol: str) -> str | None:
    """The protocols of a champion's rows where this one is not among them; None where it is, or where they are not known."""
    known = sorted({one.name for one in champion.conditions.protocols}) if champion.conditions is not None else []
    return None if protocol in known or not known else ", ".join(known)


def _champion(
    tracking_uri: str,
    present: ModelInfo,
    configured: pd.DataFrame,
    kinds: tuple[str, ...],
    folder: Path,
    trust: registry.Trust,
) -> Champion:
    """The champion's predictions: by the model of its evaluation that has not seen the row's shape, and where it never
    had the shape, by the model that others pull. Raises `ModelRefused`."""
    model = registry.load(tracking_uri, present, trust)
    predicted = pd.DataFrame(index=configured.index, columns=list(registry.OUTPUTS), dtype="float64")
    unseen = pd.Series(True, configured.index)
    only_it_knows: tuple[str, ...] = ()
    favoured = "though that champion may have seen them: it has no models of its evaluation that can be trusted"
    files = held_out_files(tracking_uri, present, folder, trust)
    held_out = None if files is None else HeldOut(files)
    if held_out is not None and held_out.leak() is None:
        unseen, favoured = held_out.fold_of(configured).isna(), ""
        only_it_knows = tuple(sorted(set(held_out.kinds) - set(kinds)))
        predicted = held_out.predict(configured)
    if unseen.any():
        ask = partial(registry.predict_table, model)
        predicted.loc[unseen] = answers(ask, configured[unseen])
    return Champion(version=present.version, predicted=predicted, only_it_knows=only_it_knows, favoured=favoured)


def _outcome(
    facts: TableFacts, metrics: MetricsByFold, model: ModelInfo, began: float, *, reused: bool
) -> TrainingOutcome:
    return TrainingOutcome(
        **{**asdict(facts), "conditions": facts.conditions.to_json()},
        metrics={kind: {target: dict(found) for target, found in each.items()} for kind, each in metrics.items()},
        run_id=model.run_id or "",
        experiment=EXPERIMENT,
        model_name=model.name,
        version=model.version,
        alias=next((alias for alias in (CHAMPION, CHALLENGER) if alias in model.aliases), None),
        decision=model.decision or "",
        reused=reused,
        seconds=time.monotonic() - began,
    )
