"""Options as users write them."""

import pytest
from docs_sim.cli.options import parse_bytes

from docs_sim.analyses.choices import IndexName
from docs_sim.errors import InputError
from docs_sim.indices.table import INDICES


def test_every_index_of_the_table_is_a_choice() -> None:
    assert list(INDICES) == list(IndexName)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("256MiB", 2**28), ("4GiB", 2**32), ("4 gib", 2**32), ("1.5k", 1536), ("500MB", 5 * 10**8)],
)
def test_amounts_of_memory(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1GiB", "0", "4 parsecs", "1e3", "0.2", "9" * 400])
def test_other_words_are_no_amount(text: str) -> None:
    with pytest.raises(InputError, match="256MiB"):
        parse_bytes(text)
