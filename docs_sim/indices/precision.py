"""Float32 products that are float32 products, whatever shortcuts the program around us has allowed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_INHERITED = "none"


class _Switches:
    """The global switches of torch: the first of several users at once turns them, the last turns them back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before: list[str] = []

    def take(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = [_own_setting(backend) for backend in _backends()]
                _turn(["ieee"] * len(self._before))
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                _turn(self._before)


_SWITCHES = _Switches()


@contextmanager
def full_float32() -> Iterator[None]:
    """TF32 and bfloat16 inside float32 products are off while this runs."""
    _SWITCHES.take()
    try:
        yield
    finally:
        _SWITCHES.leave()


def _backends() -> tuple[Any, ...]:
    backends: Any = torch.backends  # its switches have no type hints
    return backends.cuda.matmul, backends.mkldnn.matmul


def _own_setting(backend: Any) -> str:
    """A backend shows the general setting where it has none of its own."""
    general: Any = torch.backends
    precision: str = backend.fp32_precision
    return _INHERITED if precision == general.fp32_precision else precision


def _turn(precisions: list[str]) -> None:
    for backend, precision in zip(_backends(), precisions, strict=True):
        backend.fp32_precision = precision
