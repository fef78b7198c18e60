"""Which devices, which product precision, how much memory: decided by capability or a short probe, never by guess."""

import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import psutil
import torch

from docs_sim.errors import InputError, shown

_CGROUP = Path("/sys/fs/cgroup")
_PROBE_ROWS, _PROBE_INNER = 512, 1024
_PROBE_TURNS = 5


def find_devices(name: str = "auto") -> list[torch.device]:
    """The devices that share the work.

    Args:
        name: ``auto`` (all CUDA devices, else MPS, else the CPU), ``cpu``, ``cuda`` (all of them), ``cuda:1``, ``mps``.

    Raises:
        InputError: if there is no such device here.
    """
    cuda = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    mps = [torch.device("mps")] if torch.backends.mps.is_available() else []
    if name == "auto":
        return cuda or mps or [torch.device("cpu")]
    known = {"cpu": [torch.device("cpu")], "cuda": cuda, "mps": mps} | {str(device): [device] for device in cuda}
    if known.get(name):
        return known[name]
    available = ", ".join(key for key, devices in known.items() if devices)
    raise InputError(f"no device {shown(name)} here; available: auto, {available}")


def with_float64(devices: Sequence[torch.device]) -> list[torch.device]:
    """The devices that know float64, else the CPU: MPS does not."""
    return [device for device in devices if device.type != "mps"] or [torch.device("cpu")]


@cache
def product_dtype(device: torch.device) -> torch.dtype:
    """Int8 where this device multiplies it exactly and faster than float32, as with VNNI, AMX or tensor cores.

    Elsewhere float32. With these instructions int8 is several times as fast, so all runs on a machine find the same.
    """
    left = torch.full((_PROBE_ROWS, _PROBE_INNER), 127, dtype=torch.int8, device=device)
    product = torch.empty((_PROBE_ROWS, _PROBE_ROWS), dtype=torch.int32, device=device)
    try:
        torch._int_mm(left, left.T, out=product)
    except (AttributeError, RuntimeError):
        return torch.float32
    if not bool((product == _PROBE_INNER * 127**2).all()):  # without VNNI pairs of products are added in 16 bits
        return torch.float32
    if device.type != "cpu":
        return torch.int8
    wide = left.float()
    in_float32 = torch.empty_like(product, dtype=torch.float32)
    int8, float32 = _best_times(
        lambda: torch._int_mm(left, left.T, out=product), lambda: torch.mm(wide, wide.T, out=in_float32)
    )
    return torch.int8 if int8 < float32 else torch.float32


def _best_times(*works: Callable[[], object]) -> list[float]:
    """Of several turns, so that a busy machine slows all alike."""
    best = [float("inf")] * len(works)
    for _ in range(_PROBE_TURNS):
        for number, work in enumerate(works):
            started = time.perf_counter()
            work()
            best[number] = min(best[number], time.perf_counter() - started)
    return best


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return _free_host_memory()


def _free_host_memory() -> int:
    available: int = psutil.virtual_memory().available
    try:  # the limit of a container, which the machine's own figure does not know
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())["inactive_file"]
    except (OSError, ValueError, KeyError):
        return available
    return max(0, min(available, limit - used + int(cached)))


def tile_rows(device: torch.device) -> int:
    """Side of a product tile.

    On a CPU of two cores, screening took 0.51, 0.42, 0.43 s with int8 tiles of 1024, 2048, 4096 rows; elsewhere a tile
    must be worth its launch.
    """
    return 2048 if device.type == "cpu" else 8192
