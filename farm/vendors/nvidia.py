"""NVIDIA's cards and MIG slices."""

from __future__ import annotations

from farm.devices import Backend, DeviceKind
from farm.vendors.vendor import DeviceVendor


class Nvidia(DeviceVendor):
    """Types have no prefix of their own: most names begin with `NVIDIA`, some, such as `Tesla T4`, do not."""

    backend = Backend.CUDA
    kind = DeviceKind.CUDA
    worker = "workers.devices.cuda:CudaDevice"
    loads_kernels = True
    finder = "workers.devices.cards:find"
    word = "cuda"
    type_prefix = "nvidia-"
    uuid_prefixes = ("GPU-", "MIG-")

    def environment(self, uuid: str) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def advice_if_gone(self, host: str) -> str:
        return f"nvidia-smi on {host}: a card that fell off the bus takes a reset or a restart."

    def advice_on_power_limit(self, uuid: str, host: str, usual_w: float) -> str:
        return f"nvidia-smi -i {uuid} -pl {usual_w:.0f} on {host} sets it back, if nobody wanted it so."

    def advice_on_clocks(self, uuid: str, host: str) -> str:
        return f"nvidia-smi -i {uuid} -rgc and -rac on {host} set them back, if nobody wanted them so."
