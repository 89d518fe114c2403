"""Environment variables that programs of the farm set for one another. They are not settings."""

WORKER_DEVICE_ID = "FARM_WORKER_DEVICE_ID"
WORKER_SESSION = "FARM_WORKER_SESSION"
WORKER_METRICS_DEVICE = "FARM_WORKER_METRICS_DEVICE"
WORKER_METRICS_DEVICE_TYPE = "FARM_WORKER_METRICS_DEVICE_TYPE"
WORKER_SPANS = "FARM_WORKER_SPANS"
"""From `farm-worker`, for the processes of one device."""

PARENT_PID = "FARM_PARENT_PID"
"""For a process that ends with the one that started it (see `farm.services.process_groups`)."""

IDLE_EXIT_SECONDS = "FARM_IDLE_EXIT_SECONDS"
"""From `farm up`, for a trainer or builder that it starts on demand: how long it waits for more work before it ends."""

INTERNAL_VARIABLES = frozenset(
    {
        WORKER_DEVICE_ID,
        WORKER_SESSION,
        WORKER_METRICS_DEVICE,
        WORKER_METRICS_DEVICE_TYPE,
        WORKER_SPANS,
        PARENT_PID,
        IDLE_EXIT_SECONDS,
    }
)
