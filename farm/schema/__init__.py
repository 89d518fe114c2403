"""The columns of a row of results, declared once: names, types, units and meanings."""
