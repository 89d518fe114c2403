"""The command that measures one configuration again, alone on one device, under the rules of its campaign."""

from __future__ import annotations

import json
import shlex

from farm.kernels import FAMILIES, Configuration
from farm.measurement import MeasuringRules
from farm.vendors import RECORDED

CAMPAIGN_FILE = "CAMPAIGN.yaml"
"""Stands for the campaign file that names an own kernel: the farm keeps its content, and not where it lies."""


def repro_command(configuration: Configuration, device_uuid: str | None, rules: MeasuringRules) -> str:
    """A `farm measure` command for a shell on the device's host, with the rules that differ from the defaults.

    A recorded device, or None, is left to FARM_DEVICES: only its host knows the path of its file.
    """
    words = ["farm", "measure", configuration.canonical]
    if FAMILIES[configuration.kernel.family].untrusted:
        words += ["--source", CAMPAIGN_FILE]
    if device_uuid is not None and not RECORDED.has_uuid(device_uuid):
        words += ["--device", device_uuid]
    changed = rules.model_dump(mode="json", exclude_defaults=True)
    if changed:
        words += ["--rules", json.dumps(changed, separators=(",", ":"))]
    return shlex.join(words)
