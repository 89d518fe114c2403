"""The coordinator: it forms batches just in time, sends their ids, and repairs what was lost."""

LEADER_LOCK = 0x6765_6D6D_6661_726D  # "gemmfarm": the key of the advisory lock that the leading coordinator holds
