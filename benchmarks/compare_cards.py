"""Cards beside each other: the same configurations, measured on each card of this host by a farm of its own.

    python -m benchmarks.compare_cards [--seconds 240] [--recordings FOLDER]

Writes `<device type>-compare-cards.parquet`, a recording with every card's rows and power, and
`<device type>-compare-cards-sentinels.parquet`, the sentinels that the cards measured meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Engine, text

from benchmarks.common import RESULTS, end_like_interrupted
from benchmarks.farms import measured, store
from benchmarks.recordings import export
from farm.campaign import Campaign, load
from farm.db import campaigns

CAMPAIGN = Path(__file__).parents[1] / "examples" / "campaigns" / "compare-cards.yaml"

_SENTINELS = text("""
SELECT device_type, device_uuid, device_name, host, measured_at, runtime_ms, power_w, sm_clock_mhz, temperature_c,
    throttle_reasons
FROM v_sentinels ORDER BY measured_at, measurement_id
""")


def sentinels(engine: Engine, file: Path) -> int:
    """Writes every sentinel of the farm into a Parquet file; how many."""
    with engine.connect() as connection:
        rows = [dict(row) for row in connection.execute(_SENTINELS).mappings()]
    if rows:
        pq.write_table(pa.Table.from_pylist(rows), file, compression="zstd")
    return len(rows)


def submit_for_all(engine: Engine) -> int:
    """Stores the campaign for each card that the farm has, of whatever type; its id."""
    with engine.connect() as connection:
        types = sorted({device.type for device in campaigns.known_devices(connection)})
    document = load(CAMPAIGN, limit=10**5).document
    return store(engine, Campaign.from_document({**document, "targets": [{"each": kind} for kind in types]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0, help="of measuring at the most")
    parser.add_argument("--gpus", type=int, default=64, help="cards to use at the most")
    parser.add_argument("--recordings", type=Path, default=RESULTS, help="folder of the files")
    asked = parser.parse_args()
    end_like_interrupted()
    asked.recordings.mkdir(parents=True, exist_ok=True)
    on = {"kind": "cuda", "most": asked.gpus, "seconds": asked.seconds, "files": [CAMPAIGN]}
    with measured(submit_for_all, **on) as run:
        recording = export(CAMPAIGN.stem, asked.recordings)
        if recording is None:
            sys.exit("Nothing was measured.")
        found = sentinels(run.engine, recording.with_name(f"{recording.stem}-sentinels.parquet"))
    rows = f"{run.counts['done']} rows and {found} sentinels of {run.devices} cards"
    print(f"{rows} in {run.seconds:.0f} s: {recording}; {run.counts}")


if __name__ == "__main__":
    main()
