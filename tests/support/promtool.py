"""Metrics on which each alert fires, and those of a farm on which none does, as `promtool test rules` reads them."""

from __future__ import annotations

from typing import Any

MINUTES = 120

QUIET = {
    "gemm_farm_coordinator_leading": "1x120",
    'gemm_farm_coordinator_leading{instance="standby"}': "0x120",
    "gemm_farm_metrics_version": "1x120",
    'gemm_farm_coordinator_step_failing_seconds{step="form"}': "0x120",
    'gemm_farm_coordinator_turn_seconds_bucket{le="0.1"}': "0+60x120",
    'gemm_farm_coordinator_turn_seconds_bucket{le="+Inf"}': "0+60x120",
    'gemm_farm_coordinator_service_errors_total{service="database"}': "0x120",
    'gemm_farm_jobs_stuck{cause="behind"}': "7x120",
    'gemm_farm_jobs_stuck{cause="no_device"}': "0x120",
    "gemm_farm_oldest_unclaimed_batch_age_seconds": "0+60x120",
    'gemm_farm_devices{device_type="t",state="live"}': "1x10 0x110",
    'gemm_farm_devices{device_type="t",state="silent"}': "0x120",
    'gemm_farm_devices{device_type="t",state="stopped"}': "0x10 2x110",
    'gemm_farm_devices{device_type="t",state="gone"}': "1x120",
    'gemm_farm_devices{device_type="t",state="probation"}': "0x120",
    'gemm_farm_devices{device_type="t",state="drained"}': "1x120",
    'gemm_farm_devices{device_type="t",state="quarantined"}': "0x120",
    "gemm_farm_devices_contended": "0x120",
    # Its worker was stopped after ten minutes, and Prometheus reads nothing from it any more.
    'gemm_farm_worker_jobs_total{device="a",device_type="t",outcome="measured"}': "0+50x10 _x110",
    'gemm_farm_worker_jobs_total{device="a",device_type="t",outcome="corrupted"}': "0x10 _x110",
    'gemm_farm_worker_jobs_total{device="a",device_type="t",outcome="failed"}': "0x10 _x110",
    'gemm_farm_worker_child_deaths_total{device="a",device_type="t",cause="hung"}': "0x10 _x110",
    'up{job="gemm-farm-worker"}': "1x10 0x110",
    "gemm_farm_batches_reaped_total": "0x120",
    'gemm_farm_device_temperature_celsius{device="a",device_type="t"}': "60x10 _x110",
    "gemm_farm_lock_held_seconds": "0x120",
    "gemm_farm_database_connections": "20x120",
    "gemm_farm_database_max_connections": "100x120",
    'gemm_farm_web_requests_total{status="2xx"}': "0+60x120",
    'gemm_farm_web_requests_total{status="5xx"}': "0x120",
    'gemm_farm_web_request_seconds_bucket{le="0.1"}': "0+60x120",
    'gemm_farm_web_request_seconds_bucket{le="+Inf"}': "0+60x120",
}
"""A farm that works, and whose workers were stopped on purpose after ten minutes."""

_JOBS = 'gemm_farm_worker_jobs_total{device="a",device_type="t",outcome='
_WEB, _TURN = "gemm_farm_web_request_seconds_bucket", "gemm_farm_coordinator_turn_seconds_bucket"

ALERTS = {
    "GemmFarmNoCoordinator": {"gemm_farm_coordinator_leading": "0x120"},
    "GemmFarmTwoCoordinators": {'gemm_farm_coordinator_leading{instance="standby"}': "1x120"},
    "GemmFarmStepFailing": {'gemm_farm_coordinator_step_failing_seconds{step="form"}': "0+60x120"},
    "GemmFarmSlowTurns": {f'{_TURN}{{le="0.1"}}': "0x120", f'{_TURN}{{le="10"}}': "0+60x120"},
    "GemmFarmServiceErrors": {'gemm_farm_coordinator_service_errors_total{service="database"}': "0+1x120"},
    "GemmFarmJobsStuck": {'gemm_farm_jobs_stuck{cause="no_device"}': "5x120"},
    "GemmFarmBatchUnclaimed": {'gemm_farm_devices{device_type="t",state="live"}': "1x120"},
    "GemmFarmDevicesSilent": {'gemm_farm_devices{device_type="t",state="silent"}': "1x120"},
    "GemmFarmDevicesExcluded": {'gemm_farm_devices{device_type="t",state="quarantined"}': "1x120"},
    "GemmFarmDeviceContended": {"gemm_farm_devices_contended": "1x120"},
    "GemmFarmCorruptedResults": {f'{_JOBS}"corrupted"}}': "0x90 1x30"},
    "GemmFarmMeasuringProcessDies": {
        'gemm_farm_worker_child_deaths_total{device="a",device_type="t",cause="hung"}': "0+1x120"
    },
    "GemmFarmManyFailures": {f'{_JOBS}"failed"}}': "0+50x120"},
    "GemmFarmLeasesLost": {"gemm_farm_batches_reaped_total": "0+1x120"},
    "GemmFarmDeviceHot": {'gemm_farm_device_temperature_celsius{device="a",device_type="t"}': "91x120"},
    "GemmFarmLocksHeld": {"gemm_farm_lock_held_seconds": "0+60x120"},
    "GemmFarmConnectionsShort": {"gemm_farm_database_connections": "97x120"},
    "GemmFarmWebErrors": {'gemm_farm_web_requests_total{status="5xx"}': "0+10x120"},
    "GemmFarmWebSlow": {f'{_WEB}{{le="0.1"}}': "0x120", f'{_WEB}{{le="30"}}': "0+60x120"},
    "GemmFarmOtherMetrics": {"gemm_farm_metrics_version": "2x120"},
}
"""The metrics that differ from those of `QUIET` when an alert fires."""


def rule_tests(rules: list[dict[str, Any]]) -> dict[str, Any]:
    """A file for `promtool test rules`: nothing fires on `QUIET`, and each alert on its metrics."""
    names = [rule["alert"] for rule in rules]
    expected = [{"eval_time": f"{at}m", "alertname": name, "exp_alerts": []} for name in names for at in (30, MINUTES)]
    return {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {"name": "quiet", "interval": "1m", "input_series": _series(QUIET), "alert_rule_test": expected},
            *(_firing(rule, ALERTS[rule["alert"]]) for rule in rules),
        ],
    }


def _series(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": series, "values": of} for series, of in values.items()]


def _firing(rule: dict[str, Any], changed: dict[str, str]) -> dict[str, Any]:
    """That the alert fires at the end, by the metric `ALERTS`, whose other labels are not compared."""
    fires = f'count(ALERTS{{alertname="{rule["alert"]}",alertstate="firing"}}) > bool 0'
    return {
        "name": rule["alert"],
        "interval": "1m",
        "input_series": _series(QUIET | changed),
        "promql_expr_test": [
            {"expr": fires, "eval_time": f"{MINUTES}m", "exp_samples": [{"labels": "{}", "value": 1}]}
        ],
    }
