"""The benchmarks run, on small matrices, and compute what they say; how fast is not for a test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SMALL = {
    "docs_grid.py": ["--n", "64", "--m", "128", "--count", "3", "--turns", "1"],
    "baselines.py": ["--n", "32", "--m", "64", "--count", "3", "--turns", "1"],
}
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="no benchmarks beside the tests")


@pytest.mark.parametrize("program", SMALL)
def test_program_ends_and_tells_ratios(program, tmp_path):
    command = [sys.executable, str(BENCHMARKS / program), *SMALL[program]]
    ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ))
    assert ended.returncode == 0, ended.stderr
    assert " x " in ended.stdout


@pytest.fixture
def index_validity(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import index_validity

    return index_validity


def test_areas_and_order_are_those_of_what_was_planted(index_validity):
    random = torch.Generator().manual_seed(0)
    table = index_validity.planted(index_validity.isotropic(random), random, 16, pairs=4)
    assert (table.loc[["docs", "linear_cka", "cca_r2"], ["permuted", "sign-flipped"]] == 1).all(axis=None)
    assert (table.loc[["docs", "linear_cka", "cca_r2"], ["order by noise", "order by shared part"]] > 0.8).all(
        axis=None
    )


def test_what_is_fixed_separates_nothing(index_validity):
    random = torch.Generator().manual_seed(0)
    table = index_validity.planted(index_validity.isotropic(random), random, index_validity.N, pairs=2)
    assert table.loc["cca", "permuted"] == 0.5
    assert table.loc["cca"].isna()["order by noise"]


def test_the_independent_model_has_the_shapes_of_the_demo(index_validity):
    ours, other = (index_validity.layers(model, "mlp_up") for model in ("demo", index_validity.INDEPENDENT))
    assert [one.shape for one in ours] == [one.shape for one in other]
    assert not torch.equal(ours[0], other[0])
