"""Devices and amounts of memory, as users name them."""

from pathlib import Path

import pytest
import torch

from docs_sim.engine import device as device_module
from docs_sim.engine.device import find_devices, free_memory, product_dtype
from docs_sim.errors import InputError


def test_auto_finds_something_and_unknown_devices_are_refused() -> None:
    assert find_devices("auto")
    assert find_devices("cpu") == [torch.device("cpu")]
    with pytest.raises(InputError, match="available: auto, cpu"):
        find_devices("cuda:99")


@pytest.mark.parametrize(
    ("int8", "bfloat16", "expected"),
    [
        (0.2, 0.4, torch.int8),
        (0.5, 0.4, torch.bfloat16),
        (float("inf"), 0.9, torch.float32),
        (0.8, 3.0, torch.float32),
    ],
)
def test_the_probe_takes_what_is_markedly_faster(
    int8: float, bfloat16: float, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_module, "_int8_seconds", lambda: int8)
    monkeypatch.setattr(device_module, "_seconds", {torch.float32: 1.0, torch.bfloat16: bfloat16}.get)
    assert product_dtype.__wrapped__(torch.device("cpu")) == expected


@pytest.mark.parametrize("fault", ["missing", "refused", "saturated"])
def test_int8_products_that_cannot_be_trusted_are_not_used(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before VNNI, processors add pairs of products in 16 bits, which saturate."""

    def product(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> None:
        if fault == "refused":
            raise RuntimeError("int8 products are not implemented here")
        out.fill_(len(right) * 127**2 - 1)

    if fault == "missing":
        monkeypatch.delattr(torch, "_int_mm")
    else:
        monkeypatch.setattr(torch, "_int_mm", product)
    assert device_module._int8_seconds() == float("inf")


def test_a_container_limits_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "memory.max": "5000",
        "memory.current": "4000",
        "memory.stat": "anon 1\ninactive_file 700",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(device_module, "_CGROUP", tmp_path)
    assert free_memory(torch.device("cpu")) == 1700
    (tmp_path / "memory.max").write_text("max")
    assert free_memory(torch.device("cpu")) > 10**6
