"""The metrics of a coordinator: each is declared here once. `farm.coordinator.metrics` gives them their values."""

from __future__ import annotations

from farm.metrics import Count, Duration, Gauge

TURN = Duration(
    "coordinator_turn",
    "Time of one turn of the leading coordinator: repair, form, send, count.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
FORMED = Count("batches_formed", "Batches formed of jobs that waited.")
SENT = Count("batches_sent", "Batches sent to the broker for the first time.")
RESENT = Count("batches_resent", "Messages of batches sent again, because no worker had claimed the batch.")
REAPED = Count("batches_reaped", "Batches taken back because their lease passed.")
RECALLED = Count("batches_recalled", "Batches taken back because no live device serves their queue.")
FOLDED = Count("batches_folded", "Batches that ended and were added to the counters of their job groups.")
ERRORS = Count(
    "coordinator_service_errors", "Turns or readings that a service did not answer.", "service", ("database", "broker")
)
STEPS = (
    "reap", "let_go", "give_up", "schedule", "recall", "make_way", "form", "send", "trainings", "builds", "fold",
    "finish", "rounds", "learning", "health",
)  # fmt: skip
"""The steps of a turn, in their order: see `farm.coordinator.loop`."""

STEP_ERRORS = Count(
    "coordinator_step_errors", "Errors of the steps of a turn. The other steps run all the same.", "step", STEPS
)

COUNTS = (FORMED, SENT, RESENT, REAPED, RECALLED, FOLDED, ERRORS, STEP_ERRORS)


LEADING = Gauge("coordinator_leading", "1 where this coordinator leads, 0 where it waits to.")
TERM = Gauge("coordinator_term", "The term in which this coordinator leads, or led last; each leader has a higher one.")
METRICS_VERSION = Gauge("metrics_version", "Version of the names and labels of all metrics.")
STEP_FAILING = Gauge(
    "coordinator_step_failing_seconds",
    "For how long a step of the turn has failed, or has not ended; 0 where it works.",
    ("step",),
)
OWN = (LEADING, TERM, METRICS_VERSION)
"""What every coordinator exports. The leading one exports the others too."""

JOBS = Gauge("jobs", "Jobs of the active campaigns, by state.", ("state",))
CAMPAIGN_JOBS = Gauge(
    "campaign_jobs",
    "Jobs of the active and paused campaigns that were submitted last, by state.",
    ("campaign", "state"),
)
STUCK = Gauge(
    "jobs_stuck", "Jobs of the active campaigns that will not be measured as things stand, by cause.", ("cause",)
)
UNSUPPORTED = Gauge("jobs_unsupported", "Jobs that wait because a version of the workers cannot read them.")
DEVICES = Gauge(
    "devices",
    "Devices by type and state; live and silent ones would take work. Stopped: its worker was stopped on purpose. Gone: its "
    "host no longer has it.",
    ("device_type", "state"),
)
CONTENDED = Gauge("devices_contended", "Devices that a second farm-worker wanted to serve in the last ten minutes.")
OVERLAPPED = Gauge(
    "rows_overlapped", "Rows that two workers measured on one device at the same time, and that are no results."
)
VERSIONS = Gauge("worker_versions", "Live devices by the version that their worker runs.", ("version",))
BATCHES = Gauge("batches", "Unclaimed and leased batches.", ("device_type", "state"))
OLDEST = Gauge("oldest_unclaimed_batch_age_seconds", "Age of the oldest unclaimed batch; 0 without any.")
KERNELS = Gauge("kernels", "Kernels that are built ahead of time, by state.", ("state",))
BUILDERS = Gauge("builders", "Builders with a recent heartbeat.")
POWER = Gauge("device_power_watts", "Mean power of the rows that landed in the last minute.", ("device", "device_type"))
POWER_LIMIT = Gauge("device_power_limit_watts", "Power limit in these rows.", ("device", "device_type"))
SM_CLOCK = Gauge("device_sm_clock_mhz", "Mean SM clock of these rows.", ("device", "device_type"))
TEMPERATURE = Gauge(
    "device_temperature_celsius", "Highest temperature at the end of these rows.", ("device", "device_type")
)
DATABASE_SIZE = Gauge("database_size_bytes", "Size of the database on disk.")
CONNECTIONS = Gauge("database_connections", "Connections to the database, of all programs.")
MAX_CONNECTIONS = Gauge("database_max_connections", "Connections that the server of the database allows.")
LOCK_HOLDERS = Gauge(
    "lock_holders", "Sessions of Postgres that have held locks on tables of the farm for more than some seconds."
)
LOCK_HELD = Gauge(
    "lock_held_seconds", "For how long the oldest of these sessions has held its locks; 0 where there is none."
)

GAUGES = (
    *OWN, STEP_FAILING, JOBS, CAMPAIGN_JOBS, STUCK, UNSUPPORTED, DEVICES, CONTENDED, OVERLAPPED, VERSIONS, BATCHES, OLDEST,
    KERNELS, BUILDERS, POWER, POWER_LIMIT, SM_CLOCK, TEMPERATURE, DATABASE_SIZE, CONNECTIONS, MAX_CONNECTIONS,
    LOCK_HOLDERS, LOCK_HELD,
)  # fmt: skip
