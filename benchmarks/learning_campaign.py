"""The learning curve of a campaign of the strategy learn, in `results/NAME.md` by the campaign's name.

    farm status learn-quickstart --json > status.json
    farm results --campaign learn-quickstart --output rows.parquet
    python -m benchmarks.learning_campaign status.json rows.parquet

Cards, driver and dates are those of the rows, not of the machine that runs this script.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.common import RESULTS, command
from farm.measurement import ALL_FAMILIES
from farm.report.figures import learning_curves

MODEL = "NVIDIA H200"


def figures(status: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """What the campaign came to: `status` as `farm status --json` has it, `rows` a table of its results."""
    drivers = {json.loads(each)["driver"] for each in set(rows["environment"].to_pylist())}
    (driver,) = drivers
    return {
        "campaign": status["document"]["description"],
        "cards": [f"{len(set(rows['device_uuid'].to_pylist()))} x {MODEL}, of one host"],
        "driver": driver,
        "date": datetime.fromisoformat(status["submitted_at"]).date().isoformat(),
        "command": command(),
        "rows": rows.num_rows,
        # From the first batch that a worker claimed to the end.
        "campaign_s": status["began_s"],
        "device_seconds": sum(rows["cost_s"].to_pylist()),
        "search": status["document"]["search"],
        "points": status["learning"],
    }


def written(found: Mapping[str, Any]) -> str:
    """The table, in Markdown."""
    points: Sequence[learning_curves.Point] = found["points"]
    curve = learning_curves.LearningCurve(found["campaign"], points)
    families = curve.families
    head = [
        "round",
        "device s",
        "rows",
        "mean error %",
        "95% interval",
        "median %",
        "p90 %",
        *(f"{f} %" for f in families),
    ]
    lines = [head, ["---:"] * len(head)]
    for point in points:
        score = point["test"][ALL_FAMILIES]
        lines.append(
            [
                str(point["round"]),
                f"{point['device_seconds']:,.0f}",
                f"{point['rows']:,}",
                f"{score['mean_error_pct']:.1f}",
                f"{score['low']:.1f} to {score['high']:.1f}",
                f"{score['median_error_pct']:.1f}",
                f"{score['p90_error_pct']:.1f}",
                *(f"{point['test'][family]['mean_error_pct']:.1f}" for family in families),
            ]
        )
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    minutes, seconds = divmod(round(found["campaign_s"]), 60)
    return (
        f"`{found['command']}` on {', '.join(found['cards'])}, driver {found['driver']}, {found['date']}\n\n"
        f"{found['campaign']} {found['rows']:,} rows in {minutes} min {seconds} s, "
        f"{found['device_seconds']:,.0f} device seconds. Errors are those of the predicted time on "
        f"{points[-1]['test'][ALL_FAMILIES]['rows']:,} rows of the independent test set; families have their mean error.\n\n"
        f"{table}\n\n{curve.conclusion}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("status", type=Path, help="what `farm status NAME --json` printed")
    parser.add_argument("rows", type=Path, help="a Parquet export of the campaign's results")
    asked = parser.parse_args()
    status = json.loads(asked.status.read_text())
    found = figures(status, pq.read_table(asked.rows))
    name = status["name"].replace("-", "_")
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(written(found))
    print(written(found))


if __name__ == "__main__":
    main()
