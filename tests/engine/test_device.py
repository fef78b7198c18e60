"""Devices and amounts of memory, as users name them."""

from pathlib import Path

import pytest
import torch

from docs_sim.engine import device as device_module
from docs_sim.engine.device import find_devices, free_memory, product_dtype
from docs_sim.errors import InputError

CPU = torch.device("cpu")


def test_auto_finds_something_and_unknown_devices_are_refused() -> None:
    assert find_devices("auto")
    assert find_devices("cpu") == [torch.device("cpu")]
    with pytest.raises(InputError, match="available: auto, cpu"):
        find_devices("cuda:99")


@pytest.mark.parametrize(("int8", "float32", "expected"), [(0.2, 1.0, torch.int8), (1.1, 1.0, torch.float32)])
def test_int8_is_chosen_where_it_is_faster(int8, float32, expected, monkeypatch):
    if product_dtype.__wrapped__(CPU) != torch.int8:
        monkeypatch.setattr(torch, "_int_mm", lambda left, right, *, out: out.copy_(left.float() @ right.float()))
    monkeypatch.setattr(device_module, "_best_times", lambda *works: [int8, float32])
    assert product_dtype.__wrapped__(CPU) == expected


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
    assert product_dtype.__wrapped__(CPU) == torch.float32


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
