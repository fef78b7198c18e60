"""The columns of each matrix among themselves: numbers by brute force, the table, the files."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import docs_sim
from docs_sim.errors import InputError


def test_numbers_are_those_of_all_pairs_of_columns():
    found = docs_sim.column_orthogonality("demo", "mlp_up")
    table = found.table()
    assert len(table) == 8
    for row, matrix in zip(table.itertuples(), docs_sim.open_checkpoint("demo").matrices("mlp_up"), strict=True):
        x = matrix.load().double()
        x = x / x.norm(dim=0)
        cosines = (x.T @ x).abs()
        above = cosines[torch.triu(torch.ones_like(cosines, dtype=torch.bool), 1)]
        assert row.mean == pytest.approx(float(above.mean()), abs=1e-6)
        assert row.highest == pytest.approx(float(above.max()), abs=1e-6)
        assert row.deviation == pytest.approx(float(torch.linalg.matrix_norm(x.T @ x - torch.eye(160))), rel=1e-5)


def test_all_matrices_of_the_layers_if_none_is_said():
    found = docs_sim.column_orthogonality("demo")
    assert len(found.table()) == 7 * 8
    assert any("embed" in line for line in found.warnings)


def test_orthogonal_columns(write_model):
    path = write_model(
        {f"model.layers.{layer}.mlp.up_proj.weight": torch.eye(6)[:4] * (layer + 1) for layer in range(2)}
    )
    table = docs_sim.column_orthogonality(path, "mlp_up").table()
    assert table["highest"].tolist() == [0, 0]
    assert table["deviation"].tolist() == pytest.approx([0, 0], abs=1e-6)


def test_files_and_figure(tmp_path):
    found = docs_sim.column_orthogonality("demo", "mlp_up")
    names = {path.name for path in found.save(tmp_path / "out")}
    assert {"orthogonality.csv", "orthogonality.png", "result.json"} <= names
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert len(pd.read_csv(tmp_path / "out/orthogonality.csv")) == 8
    assert result["command"] == "inspect"
    assert found.plot().axes[0].lines


def test_unknown_matrix():
    with pytest.raises(InputError, match="mlp_upp"):
        docs_sim.column_orthogonality("demo", "mlp_upp")


def test_one_column_has_no_pairs(write_model):
    path = write_model({f"model.layers.{layer}.mlp.up_proj.weight": torch.randn(1, 6) for layer in range(2)})
    assert np.isnan(docs_sim.column_orthogonality(path, "mlp_up").table()["mean"]).all()
