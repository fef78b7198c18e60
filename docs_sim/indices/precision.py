"""Float32 products that are float32 products, whatever shortcuts the program around us has allowed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SWITCHES = threading.RLock()  # torch's switches are global: two computations at once would undo each other's


@contextmanager
def full_float32() -> Iterator[None]:
    """TF32 and bfloat16 inside float32 products are off while this runs; one thread at a time may run it."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    with _SWITCHES:
        before = [backend.fp32_precision for backend in backends]
        try:
            for backend in backends:
                backend.fp32_precision = "ieee"
            yield
        finally:
            for backend, precision in zip(backends, before, strict=True):
                backend.fp32_precision = precision
