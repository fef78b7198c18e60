"""Layout files: the built-in ones are understood, and a user's names what it says or is refused by its key."""

import re

import pytest
import torch
from naming_checks import check_accounts, random

from docs_sim.checkpoint import open_checkpoint
from docs_sim.checkpoint.layout_file import layouts
from docs_sim.errors import InputError


def test_every_layout_file_is_understood():
    names = [layout.name for layout in layouts()]
    assert len(names) > 30
    assert all(layout.containers and (layout.entries or layout.others) for layout in layouts())


MINE = """
layers = ["towers"]
in_out = ["fuse"]
[dense]
attn_o = ["out"]
[experts]
mlp_up = ["wide.{expert}"]
[fused.dense]
fuse = ["query blocks", "attn_q", "attn_k", "attn_v"]
[outside]
embed = ["words"]
"""


def test_a_layout_of_the_user_names_what_no_other_knows(write_model, tmp_path):
    (tmp_path / "mine.toml").write_text(MINE)
    tensors = {f"x.towers.{layer}.out": random(16, 16) for layer in range(2)}
    tensors |= {f"x.towers.{layer}.fuse": random(16, 24) for layer in range(2)}
    tensors |= {f"x.towers.{layer}.wide.{number}": random(8, 16) for layer in range(2) for number in range(3)}
    tensors["x.words"] = random(40, 16)
    directory = write_model(tensors)
    assert open_checkpoint(directory).layout is None
    checkpoint = open_checkpoint(directory, layout=tmp_path / "mine.toml")
    check_accounts(checkpoint)
    assert (checkpoint.layout, len(checkpoint.matrices())) == ("mine", 2 * (4 + 3) + 1)
    key = {matrix.key: matrix for matrix in checkpoint.matrices()}
    assert torch.equal(key["layers.1.attn_k"].load(), tensors["x.towers.1.fuse"][:, 16:20])
    assert torch.equal(key["layers.0.experts.2.mlp_up"].load(), tensors["x.towers.0.wide.2"].T)


def test_lists_of_layers_inside_numbered_parts(write_model, tmp_path):
    """``net.0.layers.N``: the number is part of the name, not a stage."""
    (tmp_path / "mine.toml").write_text(MINE.replace('"towers"', '"net.0.towers", "rest.1"'), encoding="utf-8-sig")
    tensors = {f"net.0.towers.{layer}.out": random(16, 16) for layer in range(2)}
    checkpoint = open_checkpoint(write_model(tensors), layout=tmp_path / "mine.toml")
    assert [matrix.key for matrix in checkpoint.matrices()] == ["layers.0.attn_o", "layers.1.attn_o"]
    assert checkpoint.unused_paths == ("fuse", "wide.{expert}")
    tensors = {f"rest.1.{layer}.out": random(16, 16) for layer in range(2)}
    assert open_checkpoint(write_model(tensors), layout=tmp_path / "mine.toml").layers == [0, 1]


def test_a_layout_that_fits_nothing_is_refused(write_model, tmp_path):
    (tmp_path / "mine.toml").write_text(MINE)
    with pytest.raises(InputError, match=r"mine fits no layer; no tensor is called like 'towers\.0\.out'"):
        open_checkpoint(write_model({"x.blocks.0.out": random(16, 16)}), layout=tmp_path / "mine.toml")


LISTS = ("layers", "requires", "reshaped", "unchecked", "model_types")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("= 3", "is no layout file"),
        (f"x = {'[' * 5000}{']' * 5000}", "is no layout file"),
        ("layer = ['h']", "unknown key 'layer'"),
        ("[dense]\nmlp_up = ['x']", "layers is missing"),
        ("extends = 'nothing'", "cannot extend 'nothing'"),
        ("extends = ['llama']", "extends must be a text"),
        ("tied = true", "tied must be a text"),
        *((f"{key} = 'layers'", f"{key} must be a list of names") for key in LISTS),
        *((f"{key} = [1]", f"{key} must be a list of names") for key in LISTS),
        ("layers = 3", "layers must be a list of names"),
        ("in_out = 'x'", "in_out must be true, false or a list of paths"),
        ("in_out = [true]", "in_out must be true, false or a list of paths"),
        *((f"{key} = ['x']", f"{key} must be a table") for key in ("dense", "experts", "fused", "others", "marked")),
        *((f"[{key}]\nmlp_up = 'x'", f"{key}.'mlp_up' must be a list of names") for key in ("dense", "outside")),
        ("[experts]\nmlp_up = [['x']]", "experts.'mlp_up' must be a list of names"),
        ("[others]\nx = ['y']", "others.'x' must be a text"),
        ("[marked]\nx = []", "marked.'x' must be a list of beginnings"),
        ("[marked]\nx = 'yes'", "marked.'x' must be a list of beginnings"),
        ("[dense]\nmlp_upp = ['x']", "'mlp_upp' is no matrix"),
        ("layers = ['h']\n[outside]\nhed = ['x']", "'hed' is no matrix"),
        ("[dense]\nmlp_up = ['x']\nmlp_down = ['x']", "dense.'mlp_down': 'x' is given a second time"),
        ("[dense]\nmlp_up = ['x']\n[experts]\nmlp_up = ['x']", "experts.'mlp_up': 'x' is given a second time"),
        ("[dense]\nattn_q = ['x']\n[fused.dense]\nx = ['equal blocks', 'attn_k', 'attn_v']", "'x' is given a second"),
        ("layers = ['h']\n[outside]\nembed = ['x']\nlm_head = ['x']", "outside.'lm_head': 'x' is given a second time"),
        ("[fused]\nx = 3", "fused.'x' must be a table"),
        ("[fused.nope]\nx = ['equal blocks', 'attn_k', 'attn_v']", "unknown key 'fused.nope'"),
        ("[fused.dense]\nx = 'equal blocks'", "fused.dense.'x' must be a list of a rule and matrices"),
        ("[fused.dense]\nx = []", "fused.dense.'x' must be a list of a rule and matrices"),
        ("[fused.dense]\nx = ['equal blocks']", "fused.dense.'x' must be a list of a rule and matrices"),
        ("[fused.dense]\nx = ['thirds', 'attn_q', 'attn_k']", "no rule 'thirds'"),
        ("[fused.dense]\nx = ['equal blocks', 'attn_q', 'attn_q']", "one matrix twice"),
        ("in_out = ['y']\n[dense]\nmlp_up = ['x']", "in_out: this file names no matrix at 'y'"),
        ("reshaped = ['y']\n[dense]\nmlp_up = ['x']", "reshaped: this file names no matrix at 'y'"),
        ("layers = ['a.{stage}.{stage}']", "layers: 'a.{stage}.{stage}' may hold {stage}, once"),
        *((f"layers = ['{name}']", "is no name of a list") for name in ("", ".", "a..b", "{stage}", "{stage}.blocks")),
        ("layers = ['{layer}.a']", "layers: '{layer}.a' may hold {stage}, once"),
        ("layers = ['h']\nunchecked = ['attn_x']", "unchecked: 'attn_x' is no matrix"),
        ("[experts]\nmlp_up = ['{expert}.{expert}']", "once, and no other braces"),
        ("[dense]\nmlp_up = ['a.{layer}.b']", "'a.{layer}.b' may hold {expert} and {sub}"),
        ("layers = ['h']\n[outside]\nembed = ['a.{sub}']", "outside the layers are none"),
    ],
)
def test_layout_of_the_user_that_is_not_understood(text, words, write_model, llama_tensors, tmp_path):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        open_checkpoint(write_model(llama_tensors()), layout=tmp_path / "mine.toml")
    assert "mine" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        open_checkpoint(write_model(llama_tensors()), layout=tmp_path / "none.toml")
