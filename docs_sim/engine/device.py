"""Which devices, which product precision, how much memory: decided by capability or a short probe, never by guess."""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import psutil
import torch

from docs_sim.errors import InputError, shown

_CGROUP = Path("/sys/fs/cgroup")
_PROBE_ROWS, _PROBE_INNER = 512, 1024
_WORTHWHILE = 1.3  # pairs for which coarse products do not suffice are multiplied again, so a small gain is none


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


@cache
def product_dtype(device: torch.device) -> torch.dtype:
    """What this device multiplies markedly faster than float32, such as int8 with VNNI or AMX; else float32."""
    if device.type == "cuda":
        # Emulated bfloat16 is slower than float32; tensor cores have it since compute capability 8.
        return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float32
    if device.type == "mps":
        return torch.float32  # nobody has measured yet how MPS accumulates bfloat16
    seconds = {torch.int8: _int8_seconds(), **{dtype: _seconds(dtype) for dtype in (torch.bfloat16, torch.float32)}}
    fastest = min(seconds, key=lambda dtype: seconds[dtype])
    return fastest if seconds[torch.float32] >= _WORTHWHILE * seconds[fastest] else torch.float32


def _seconds(dtype: torch.dtype) -> float:
    """The time of a product that is large enough for the processor's fast path."""
    left = torch.ones(_PROBE_ROWS, _PROBE_INNER, dtype=dtype)
    product = torch.empty(_PROBE_ROWS, _PROBE_ROWS, dtype=dtype)
    return _best_time(lambda: torch.mm(left, left.T, out=product))


def _int8_seconds() -> float:
    """As ``_seconds``; infinite where the product is missing, or saturates as on processors without VNNI."""
    left = torch.full((_PROBE_ROWS, _PROBE_INNER), 127, dtype=torch.int8)
    product = torch.empty(_PROBE_ROWS, _PROBE_ROWS, dtype=torch.int32)
    try:
        best = _best_time(lambda: torch._int_mm(left, left.T, out=product))
    except (AttributeError, RuntimeError):
        return float("inf")
    return best if bool((product == _PROBE_INNER * 127**2).all()) else float("inf")


def _best_time(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(4):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
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

    On a CPU of two cores, bfloat16 tiles of 1024, 2048, 4096 rows reached 0.93, 0.97, 0.97 of the rate of a whole
    product; elsewhere a tile must be worth its launch.
    """
    return 2048 if device.type == "cpu" else 8192
