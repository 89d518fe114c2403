"""The names by which the three programs reach one another: tasks, queues, and connections to Redis (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from farm.vendors import VENDORS, vendor_of_type

MEASURE_BATCH = "workers.measure_batch"
"""Task: measure the batch of that id. Argument: batch_id (int)."""

TRY_DEVICE = "workers.try_device"
"""Task: a trial of the device of that id, which is on probation. Argument: device_id (int)."""

TRAIN = "trainer.train"
"""Task: run the training of that id. Argument: training_id (int)."""

TRAIN_QUEUE = "train"

BUILD = "workers.build_kernel"
"""Task: build the kernel of that id. Argument: kernel_id (int)."""

BUILD_QUEUE = "build"

QUEUE_PREFIXES = tuple(dict.fromkeys(vendor.queue_prefix for vendor in VENDORS.values()))
"""How the queues of device types begin."""

CLIENT_PREFIX = "gemm-farm:"
"""Prefix of the names of consumers' connections to Redis, before their queues, and of keys."""


def queue_of_type(device_type: str) -> str:
    """The queue that every device of a type serves."""
    return vendor_of_type(device_type).queue_prefix + device_type


def queue_of_device(device_uuid: str) -> str:
    """The queue that one device serves."""
    return f"device.{device_uuid}"


def is_queue_of_device(queue: str) -> bool:
    """Whether one device alone serves that queue."""
    return queue.startswith(queue_of_device(""))


def tasks_of_queue(queue: str) -> frozenset[str]:
    """The tasks that come through a queue of the farm; none through another one."""
    if queue.startswith(QUEUE_PREFIXES):
        return frozenset({MEASURE_BATCH})
    if is_queue_of_device(queue):
        return frozenset({MEASURE_BATCH, TRY_DEVICE})
    return {TRAIN_QUEUE: frozenset({TRAIN}), BUILD_QUEUE: frozenset({BUILD})}.get(queue, frozenset())


def retries_of_type(device_type: str) -> str:
    """Resource of failed jobs of a device type. It is not a queue: each failed job goes to the queue of one device."""
    return f"retry.{device_type}"


def client_name(queues: Iterable[str]) -> str:
    """The name of a connection to Redis of a program that takes messages from these queues.

    >>> client_name(["train", "build"])
    'gemm-farm:build,train'
    """
    return CLIENT_PREFIX + ",".join(sorted(queues))


def queues_of_client(name: str) -> list[str]:
    """Queues in a name from `client_name`; empty for any other name."""
    return name.removeprefix(CLIENT_PREFIX).split(",") if name.startswith(CLIENT_PREFIX) else []
