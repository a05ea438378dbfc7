"""Does what NVIDIA's library says reach the right device? With a module that answers like nvidia-ml-py's."""

from types import SimpleNamespace

import pytest

from llamactl.instance.llama.devices import acquire_nvml_rows, read_nvml_rows


class ScriptedNvml:
    """Two GPUs, in another order than CUDA's."""

    class NVMLError(Exception):
        pass

    def __init__(self, broken: bool = False, as_bytes: bool = False) -> None:
        self._broken = broken
        self._gpus = [("00000000:C1:00.0", 10), ("00000000:01:00.0", 20)]
        self._as_bytes = as_bytes

    def nvmlInit(self) -> None:
        if self._broken:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        bus_id = self._gpus[handle][0]
        return SimpleNamespace(busId=bus_id.encode() if self._as_bytes else bus_id)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=99, free=self._gpus[handle][1], used=1)


IDS = {"CUDA0": "0000:01:00.0", "CUDA1": "0000:c1:00.0"}


@pytest.mark.parametrize("as_bytes", [False, True])
def test_devices_are_matched_by_bus_address(as_bytes: bool) -> None:
    rows = read_nvml_rows(ScriptedNvml(as_bytes=as_bytes), IDS)
    assert rows is not None
    assert [(row.name, row.free, row.total) for row in rows] == [("CUDA0", 20, None), ("CUDA1", 10, None)]


def test_device_that_is_not_nvidias_leaves_all_to_llama_cpp() -> None:
    assert read_nvml_rows(ScriptedNvml(), {**IDS, "Vulkan2": "0000:05:00.0"}) is None


def test_library_that_fails_leaves_all_to_llama_cpp() -> None:
    assert read_nvml_rows(ScriptedNvml(broken=True), IDS) is None


def test_machine_without_the_library_or_its_driver_leaves_all_to_llama_cpp() -> None:
    assert acquire_nvml_rows({"CUDA0": "ffff:ff:1f.7"}) is None
