"""Which devices can this process see, and how much of their memory is free?

llama.cpp opens a context on each GPU to answer, which takes a moment and, for that moment, memory. NVIDIA's management
library needs none: where it is at hand (nvidia-ml-py), and nothing but the free memory of known devices is asked, it
is asked instead, by bus address, because it numbers devices in another order than CUDA does. An RPC server that does
not listen is left out, and said: its devices are gone. Of one that has another client nothing can be known.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from llamactl.child.orders import ChildEnvironment
from llamactl.journal_events import JournalEvent
from llamactl.protocol.values import DeviceList, Row, RowKind
from llamactl.systemd.journal import get_logger

log = get_logger()


def list_devices(environment: ChildEnvironment) -> DeviceList:
    """What a child that only lists devices answers."""
    ids = environment.device_ids
    rows = acquire_nvml_rows(ids) if ids else None
    if rows is not None:
        return DeviceList(rows=rows, ids=ids, cheap=True)
    from llamactl.instance.llama.bindings import ServerBusy, register_rpc_servers
    from llamactl.instance.llama.library import llama
    from llamactl.instance.llama.log import LlamaLog

    LlamaLog(environment.llama_debug).install()
    busy = []
    for server in environment.settings.rpc:
        try:
            register_rpc_servers((server,))
        except ServerBusy:
            busy.append(server)
        except OSError as error:
            log.warning(JournalEvent.DEVICES_LEFT_OUT, server=server, reason=str(error))
    llama.llama_backend_init()
    return msgspec.structs.replace(acquire_device_list(), busy=tuple(busy))


def acquire_device_list() -> DeviceList:
    """All devices that llama.cpp sees in this process."""
    from llamactl.instance.llama.memory import acquire_devices, make_row, read_device_id

    devices = acquire_devices(())
    ids = {device.name: read_device_id(device) for device in devices}
    return DeviceList(
        rows=tuple(map(make_row, devices)),
        ids={name: bus_id for name, bus_id in ids.items() if bus_id},
    )


def acquire_nvml_rows(ids: Mapping[str, str]) -> tuple[Row, ...] | None:
    """Free memory by NVML of all these devices, or None."""
    try:
        import pynvml
    except ImportError:
        return None
    return read_nvml_rows(pynvml, ids)


def read_nvml_rows(nvml: Any, ids: Mapping[str, str]) -> tuple[Row, ...] | None:
    """`nvml` is the module of nvidia-ml-py. None: not every one of the devices is NVIDIA's, or NVML fails.

    Of its figures only `free` is taken: `total` counts memory that the driver keeps and CUDA does not.
    """
    try:
        nvml.nvmlInit()
        free = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
            text = bus_id.decode() if isinstance(bus_id, bytes) else bus_id
            free[shorten_bus_id(text)] = int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    except (nvml.NVMLError, OSError) as error:
        log.debug(JournalEvent.NVML_NOT_USED, reason=str(error))
        return None
    if not all(shorten_bus_id(bus_id) in free for bus_id in ids.values()):
        return None
    return tuple(Row(kind=RowKind.DEVICE, name=name, free=free[shorten_bus_id(bus_id)]) for name, bus_id in ids.items())


def shorten_bus_id(bus_id: str) -> str:
    """Lower case, with a domain of four digits: NVML writes eight."""
    return bus_id.lower()[-12:]
