"""The coordinator: it forms batches just in time, sends their ids, and repairs what was lost."""
