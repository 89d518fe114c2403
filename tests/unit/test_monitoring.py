"""Dashboards and alerts use metrics that programs export, and the check names those that they do not."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

import farm
from farm.coordinator import exported
from farm.errors import MonitoringFileRefused
from farm.metrics import PREFIX, VERSION, PrometheusMetrics
from farm.monitoring import web_metrics, worker_metrics
from farm.monitoring.__main__ import markdown
from farm.monitoring.catalogue import metrics
from farm.monitoring.checking import MAX_BYTES, check
from farm.monitoring.expressions import NotAnExpression, selected
from support.commands import NOWHERE, farm_here
from support.promtool import ALERTS, QUIET, rule_tests

ROOT = Path(farm.__file__).parent.parent
MONITORING = ROOT / "deploy" / "monitoring"
RULES, DASHBOARD = MONITORING / "rules.yaml", MONITORING / "dashboard.json"
DOCUMENT = (ROOT / "docs" / "watching.md").read_text()


# --- the catalogue -------------------------------------------------------------------------------------


def test_the_catalogue_has_the_names_and_labels_that_prometheus_sees() -> None:
    registry = CollectorRegistry()
    labels = {"device": "GPU-1", "device_type": "nvidia-h200"}
    PrometheusMetrics(registry, exported.COUNTS, (exported.TURN,))
    PrometheusMetrics(registry, worker_metrics.COUNTS, worker_metrics.DURATIONS, labels)
    PrometheusMetrics(registry, web_metrics.COUNTS, web_metrics.DURATIONS)
    seen = dict[str, frozenset[str]]()
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                seen[sample.name] = seen.get(sample.name, frozenset()) | frozenset(sample.labels)
    known = {name: of for metric in metrics() for name, of in metric.series.items()}
    gauges = {f"{PREFIX}{gauge.name}": frozenset(gauge.labels) for gauge in exported.GAUGES}
    assert known == seen | gauges


def test_units_come_from_the_ends_of_names() -> None:
    units = {metric.name.removeprefix(PREFIX): metric.unit for metric in metrics()}
    assert units["device_power_watts"] == "W"
    assert units["worker_window_seconds_total"] == units["worker_land_seconds"] == "s"
    assert units["jobs"] == units["worker_jobs_total"] == ""


def test_the_document_has_the_table_of_metrics_and_a_section_for_each_alert() -> None:
    assert markdown() in DOCUMENT, "python -m farm.monitoring prints the table"
    alerts = {rule["alert"]: rule for rule in rules()}
    assert re.findall(r"^### (GemmFarm\w+)\n\nSeverity: (\w+)\.", DOCUMENT, flags=re.MULTILINE) == [
        (name, rule["labels"]["severity"]) for name, rule in alerts.items()
    ]
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook_url"] == f"docs/watching.md#{name.lower()}"
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in ("critical", "warning")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


# --- the shipped files ---------------------------------------------------------------------------------


def test_the_shipped_files_fit_this_version_and_the_document_shows_it(tmp_path: Path) -> None:
    block = next(text for text in re.findall(r"```console\n\$ (.*?)```", DOCUMENT, flags=re.DOTALL) if "check" in text)
    command, *lines = block.splitlines()
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    found = farm_here(tmp_path, NOWHERE)(*command.split()[1:])
    assert (found.returncode, found.stdout.splitlines()) == (0, lines)


def test_the_dashboard_shows_every_program_and_draws_each_panel_where_no_other_is() -> None:
    document = json.loads(DASHBOARD.read_text())
    assert f"gemm-farm-metrics-v{VERSION}" in document["tags"]
    used = set[str]()
    for expression in check(DASHBOARD).expressions:
        used |= selected(expression.text).metrics.keys()
    assert {metric.program for metric in metrics() if used & metric.series.keys()} == {m.program for m in metrics()}
    places = [panel["gridPos"] for panel in document["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in document["panels"]]
    assert len(ids) == len(set(ids))


def test_there_is_a_test_of_each_alert_and_none_of_another() -> None:
    assert set(ALERTS) == {rule["alert"] for rule in rules()}


def test_no_alert_asks_whether_a_worker_can_be_scraped_or_counts_stopped_devices() -> None:
    for rule in rules():
        assert "up" not in selected(rule["expr"]).metrics
        assert "stopped" not in rule["expr"]
        assert not re.search(r"absent\w*\(gemm_farm_worker", rule["expr"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH")
def test_each_alert_fires_on_its_metrics_and_none_on_those_of_a_farm_whose_workers_were_stopped(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path / "rules.yaml")
    shutil.copy(MONITORING / "prometheus.yaml", tmp_path / "prometheus.yaml")
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(rule_tests(rules())))
    for words in (("test", "rules", "tests.yaml"), ("check", "config", "--lint=all", "prometheus.yaml")):
        found = subprocess.run(
            ["promtool", *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )
        assert found.returncode == 0, found.stdout + found.stderr
    for panel in check(DASHBOARD).expressions:
        (tmp_path / "panel.yaml").write_text(
            yaml.safe_dump(
                {"groups": [{"name": "panels", "rules": [{"record": "a", "expr": without_variables(panel.text)}]}]}
            )
        )
        words = ("check", "rules", "panel.yaml")
        found = subprocess.run(
            ["promtool", *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )
        assert found.returncode == 0, panel


def without_variables(expression: str) -> str:
    return expression.replace("$__rate_interval", "5m")


def test_the_metrics_of_a_quiet_farm_have_every_state_of_devices() -> None:
    states = {re.findall(r'state="(\w+)"', series)[0] for series in QUIET if "gemm_farm_devices{" in series}
    assert states == {"live", "silent", "stopped", "gone", "probation", "drained", "quarantined"}


# --- what an expression uses ---------------------------------------------------------------------------


def test_an_expression_uses_metrics_labels_and_groupings() -> None:
    found = selected(
        'sum by (device, le) (rate(a_total{state=~"x|y", job!="z"}[5m] offset 1h)) / on (host) group_left (name) b > bool 0.5e3'
        ' and c{} or -d @ end() unless {__name__="e"} # f'
    )
    assert found.metrics == {"a_total": {"state", "job"}, "b": set(), "c": set(), "d": set()}
    assert found.grouped_by == {"device", "le", "host", "name"}
    assert selected('a{type=~"$type"}[$__rate_interval]').metrics == {"a": {"type"}}
    assert selected("sum(a) without (b)").grouped_by == {"b"}


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "empty"),
        ("sum(a", r"'\(' is not closed"),
        ("a}", "closes nothing"),
        ("a{state}", "begins no condition"),
        ('a{state="x', "cannot be read"),
        ("a{state=", "is not closed"),
        ("a{state=}", "begins no condition"),
        ('a{"state"="x"}', "begins no condition"),
        ("a ; b", "character 3, ';'"),
        ("(" * 20_001, "more than 20,000 characters"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_reason(expression: str, why: str) -> None:
    with pytest.raises(NotAnExpression, match=why):
        selected(expression)


# --- the check -----------------------------------------------------------------------------------------


def rules_file(folder: Path, *expressions: str, **more: Any) -> Path:
    path = folder / "rules.yaml"
    listed = [{"alert": f"Alert{n}", "expr": expression, **more} for n, expression in enumerate(expressions, start=1)]
    path.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": listed}]}))
    return path


def refusal(path: Path, *target_labels: str) -> str:
    with pytest.raises(MonitoringFileRefused) as refused:
        check(path, target_labels)
    return str(refused.value)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("gemm_farm_job", "Alert1: this version has no metric gemm_farm_job. Did you mean gemm_farm_jobs?"),
        (
            "gemm_farm_nonsense_of_all_kinds",
            "has no metric gemm_farm_nonsense_of_all_kinds. farm metrics lists them all.",
        ),
        ("gem_farm_jobs", "no metric gem_farm_jobs. Did you mean gemm_farm_jobs?"),
        ("gemm_farm_worker_land_seconds", "no metric gemm_farm_worker_land_seconds. Did you mean"),
        ('gemm_farm_jobs{status="done"}', "gemm_farm_jobs has no label 'status'. Labels: state."),
        ('gemm_farm_builders{host="a"}', "gemm_farm_builders has no label 'host'. It has no labels."),
        ("sum by (device) (gemm_farm_jobs)", "no metric of the expression has a label 'device'. Labels: state."),
        ("sum(gemm_farm_jobs", "the expression cannot be read: '(' is not closed"),
    ],
)
def test_a_metric_or_label_that_does_not_exist_is_named_with_its_place(
    tmp_path: Path, expression: str, message: str
) -> None:
    found = refusal(rules_file(tmp_path, expression, "sum(gemm_farm_jobs)"))
    assert message in found
    assert "Alert2" not in found


def test_metrics_of_other_programs_labels_of_targets_and_recorded_names_are_allowed(tmp_path: Path) -> None:
    expressions = ('up{job="node"} == 0', "sum by (instance) (gemm_farm_jobs)", "sum by (pod) (process_open_fds)")
    assert len(check(rules_file(tmp_path, *expressions)).expressions) == 3
    path = rules_file(tmp_path, 'sum by (cluster) (gemm_farm_jobs{cluster="a"})')
    assert "'cluster'" in refusal(path)
    assert len(check(path, ["cluster"]).expressions) == 1
    path.write_text(
        "groups: [{rules: [{record: gemm_farm_open, expr: gemm_farm_jobs}, {alert: A, expr: gemm_farm_open > 1}]}]"
    )
    assert len(check(path).expressions) == 2


def test_labels_in_summaries_legends_and_variables_are_checked(tmp_path: Path) -> None:
    path = rules_file(tmp_path, "sum(gemm_farm_jobs)", annotations={"summary": "{{ $labels.device }}"})
    assert "a label 'device'" in refusal(path)
    dashboard = tmp_path / "dashboard.json"
    panel = {"title": "Jobs", "targets": [{"expr": "gemm_farm_jobs", "legendFormat": "{{ status }}"}]}
    variable = {"name": "x", "query": {"query": "label_values(gemm_farm_jobs, kind)"}}
    row = {"type": "row", "panels": [panel]}
    dashboard.write_text(json.dumps({"panels": [row], "templating": {"list": [variable]}}))
    found = refusal(dashboard)
    assert "panel 'Jobs': no metric of the expression has a label 'status'" in found
    assert "variable x: no metric of the expression has a label 'kind'" in found


def test_a_file_for_another_version_of_the_metrics_gets_one_message(tmp_path: Path) -> None:
    path = tmp_path / "dashboard.json"
    path.write_text(DASHBOARD.read_text().replace("-v1", "-v7").replace("gemm_farm_jobs", "gemm_farm_work"))
    assert refusal(path) == (
        f"{path} is refused: it is for version 7 of the metrics, and this version of GEMM Farm exports version {VERSION}. "
        "Use the file that came with this version (docs/watching.md)"
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no dashboard of Grafana"),
        (b"groups: 1", "no dashboard of Grafana"),
        (b"{", "neither JSON nor YAML"),
        (b"a: [", "neither JSON nor YAML"),
        (b'{"panels": ' + b"[" * 100_000, "neither JSON nor YAML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * (MAX_BYTES + 1), "more than 4 MiB"),
    ],
)
def test_what_is_no_dashboard_and_no_rules_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert why in refusal(path)
    assert "No such file" in refusal(tmp_path / "missing")
    assert "Is a directory" in refusal(tmp_path)


def test_odd_entries_of_a_file_are_skipped_and_odd_characters_are_not_printed(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        json.dumps({"groups": [1, {"rules": 2}, {"rules": [3, {"alert": "a\x1b[31m", "expr": "gemm_farm_x"}]}]})
    )
    assert "\x1b" not in refusal(path)
    path.write_text(json.dumps({"panels": [1, {"targets": [2, {"expr": 3}], "panels": None}], "templating": 4}))
    assert check(path).expressions == ()
