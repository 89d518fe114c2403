"""The queries of docs/sql.md."""

from __future__ import annotations

import re
from pathlib import Path

import farm

DOCUMENT = (Path(farm.__file__).parent.parent / "docs" / "sql.md").read_text()


GRAFANA = {
    r"\$__timeFilter\((\w+)\)": r"\1 BETWEEN now() - interval '1 hour' AND now()",
    r"\$__timeGroupAlias\((\w+), '1m'\)": r"date_trunc('minute', \1) AS time",
}


def statements() -> list[str]:
    """The document's queries, as Grafana's plugin would send them."""
    found = re.findall(r"^```sql\n(.*?)^```", DOCUMENT, flags=re.MULTILINE | re.DOTALL)
    for macro, sql in GRAFANA.items():
        found = [re.sub(macro, sql, statement) for statement in found]
    return found
