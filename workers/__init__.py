"""The measuring side of the farm: one process per device claims batches, measures and lands rows."""
