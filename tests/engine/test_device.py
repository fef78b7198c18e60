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


@pytest.mark.parametrize(("seconds", "expected"), [(0.4, torch.bfloat16), (0.9, torch.float32), (3, torch.float32)])
def test_the_probe_takes_bfloat16_where_it_is_markedly_faster(
    seconds: float, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {torch.float32: 1.0, torch.bfloat16: seconds}
    monkeypatch.setattr(device_module, "_product_seconds", lambda dtype, device: times[dtype])
    assert product_dtype.__wrapped__(torch.device("cpu")) == expected


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
