"""Devices and amounts of memory, as users name them."""

import pytest
import torch

from docs_sim.engine.device import find_devices, free_memory, parse_bytes, product_dtype
from docs_sim.errors import InputError


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("256MiB", 2**28), ("4GiB", 2**32), ("4 gib", 2**32), ("1.5k", 1536), ("500MB", 5 * 10**8)],
)
def test_amounts_of_memory(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1GiB", "0", "4 parsecs", "1e3", "0.2"])
def test_other_words_are_no_amount(text: str) -> None:
    with pytest.raises(InputError, match="256MiB"):
        parse_bytes(text)


def test_auto_finds_something_and_unknown_devices_are_refused() -> None:
    assert find_devices("auto")
    assert find_devices("cpu") == [torch.device("cpu")]
    with pytest.raises(InputError, match="available: auto, cpu"):
        find_devices("cuda:99")


def test_the_probe_chooses_a_product_that_the_device_has() -> None:
    assert product_dtype(torch.device("cpu")) in (torch.float32, torch.bfloat16)


def test_memory_is_there() -> None:
    assert free_memory(torch.device("cpu")) > 0
