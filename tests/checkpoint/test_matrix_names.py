"""What users type for a matrix -> its canonical name."""

import pytest

from docs_sim.checkpoint.matrix_names import ALIASES, canonical_name
from docs_sim.errors import InputError

PAIRS = [(alias, name) for name, aliases in ALIASES.items() for alias in (name, *aliases)]


@pytest.mark.parametrize("change", [str, str.upper, str.title, lambda name: name.replace("_", "-")])
@pytest.mark.parametrize(("alias", "name"), PAIRS)
def test_alias_in_any_spelling(alias, name, change):
    assert canonical_name(change(alias)) == name


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        *(("q", "attn_q"), ("q_proj", "attn_q"), ("wq", "attn_q"), ("W_q", "attn_q"), ("WQ", "attn_q")),
        *(("up", "mlp_up"), ("up_proj", "mlp_up"), ("MLP-UP", "mlp_up"), ("mlp up", "mlp_up"), ("mlpup", "mlp_up")),
        *(("self_attn.o_proj", "attn_o"), ("mlp.down_proj", "mlp_down"), ("Gate", "mlp_gate"), ("router", "router")),
    ],
)
def test_examples_of_the_design(typed, name):
    assert canonical_name(typed) == name


@pytest.mark.parametrize(
    ("typed", "proposal"),
    [("mlp_upp", "mlp_up"), ("q_prj", "attn_q"), ("atn_k", "attn_k"), ("lmhed", "lm_head"), ("mlp_dwon", "mlp_down")],
)
def test_unknown_name_proposes_the_nearest(typed, proposal):
    with pytest.raises(InputError, match=f"did you mean .*{proposal}") as caught:
        canonical_name(typed)
    assert repr(typed) in str(caught.value)


@pytest.mark.parametrize("typed", ["", "zzzzzz", "\n", "-_."])
def test_name_like_no_other_lists_all(typed):
    with pytest.raises(InputError) as caught:
        canonical_name(typed)
    assert all(name in str(caught.value) for name in ALIASES)
    assert "\n" not in str(caught.value)
