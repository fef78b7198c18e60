"""The paper's Table 1, computed: what the table of indices declares is what is found."""

import json

import numpy as np
import pandas as pd
import pytest

from docs_sim.analyses.index_properties import index_properties
from docs_sim.errors import InputError
from docs_sim.indices.choices import IndexName
from docs_sim.indices.table import INDICES, Property
from docs_sim.report.files import json_text


@pytest.fixture(scope="module")
def found():
    return index_properties()


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("promise", Property)
def test_what_is_declared_is_what_is_found(index, promise, found):
    (trial,) = [one for one in found.trials if (one.index, one.promise) == (index, promise)]
    assert trial.claimed == (promise in INDICES[index].properties)
    assert trial.holds == trial.claimed, trial
    assert trial.change < 1e-6 or trial.change > 1e-3, "neither the same nor clearly different"


def test_a_wrong_declaration_would_be_told(monkeypatch):
    from dataclasses import replace

    wrong = replace(INDICES["docs"], properties=INDICES["docs"].properties ^ {Property.symmetry, Property.invertible})
    monkeypatch.setitem(INDICES, "docs", wrong)
    warnings = index_properties(["docs"]).warnings
    assert len(warnings) == 2
    assert "docs is declared to keep its value under invertible, and changed by 0." in warnings[0]
    assert "docs is declared not to keep its value under symmetry" in warnings[1]


def test_orthogonal_matrices(found):
    """Theorem 1 of the paper, and what all but DOCS make of square orthogonal matrices."""
    values = {(one.index, one.pair): one for one in found.orthogonal_pairs}
    assert values["docs", "square: I, Hadamard"].value == pytest.approx(1 / 8, abs=1e-6)
    assert values["docs", "square: I, Hadamard"].told_apart
    assert values["docs", "tall: same span"].told_apart
    for index in set(IndexName) - {"docs", "docs_mean", "linear_cka_debiased"}:
        assert not values[index, "square: I, random"].told_apart
    assert np.isnan(values["linear_cka_debiased", "square: I, random"].value)
    assert not any(one.told_apart for one in found.orthogonal_pairs if one.pair.endswith("equal"))
    assert values["linear_cka", "tall: random"].told_apart


def test_it_is_a_table_and_a_result(found, tmp_path):
    assert found.warnings == []
    written = found.save(tmp_path / "o")
    assert [path.name for path in written] == ["properties.csv", "result.json"]
    table = pd.read_csv(written[0])
    assert len(table) == len(INDICES) * (len(Property) + 6)
    assert not table.query("index == 'cca' and property == 'rotation'")["holds"].item()
    result = json.loads(json_text(found.to_dict()))
    assert result == json.loads(written[1].read_text())
    assert {"schema": 1, "command": "indices"}.items() <= result.items()
    lines = found.summary()
    assert sum(line.startswith("rbf_cka") for line in lines) == 2
    assert max(map(len, lines)) < 140


def test_an_unknown_index_is_refused():
    with pytest.raises(InputError, match="known: docs"):
        index_properties(["cosine"])
