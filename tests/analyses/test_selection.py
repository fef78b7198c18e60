"""Which layers and experts a question is about."""

import pytest
import torch

from docs_sim.analyses.selection import parse_experts, parse_layers, select_layers
from docs_sim.checkpoint import Checkpoint, WeightMatrix, open_checkpoint
from docs_sim.errors import InputError


def select(*arguments: object, **choices: object) -> tuple[list[WeightMatrix], list[str]]:
    selection = select_layers(*arguments, **choices)
    return selection.matrices, selection.notes


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        *(("0", [0]), ("3-5", [3, 4, 5]), ("0-1,7", [0, 1, 7]), ("7,0-1", [0, 1, 7]), ("2,2,1-2", [1, 2])),
        *((" 1 , 3 - 4 ", [1, 3, 4]), ("4-4", [4]), ("0-7", list(range(8)))),
    ],
)
def test_lists_of_layers(text, layers):
    assert parse_layers(text, range(8)) == layers


@pytest.mark.parametrize(
    "text", ["", ",", "a", "1-", "-1", "5-2", "1..3", "1,,2", "0x1", "1.5", "9999999", "1-2-3", "²"]
)
def test_what_is_no_list_of_layers(text):
    with pytest.raises(InputError, match="write them like") as caught:
        parse_layers(text, range(8))
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "missing"), [("40-50", "40-50"), ("6-9", "8-9"), ("3,8", "8"), ("8,10-11", "8, 10-11")]
)
def test_layers_that_are_not_there(text, missing):
    with pytest.raises(InputError, match=rf"layers {missing} are not there; there are 0-7$"):
        parse_layers(text, range(8))


def test_gaps_among_the_layers_that_are_there_are_named():
    with pytest.raises(InputError, match=r"there are 0-2, 5, 7-8$"):
        parse_layers("3", [0, 1, 2, 5, 7, 8])


@pytest.fixture
def dense(write_model, llama_tensors):
    return open_checkpoint(write_model(llama_tensors(4)))


@pytest.fixture
def moe(write_model, moe_tensors):
    """Layer 0 is dense; layers 1 to 3 have four experts and a shared one."""
    return open_checkpoint(write_model(moe_tensors(dense=1)))


@pytest.mark.parametrize(
    ("layers", "chosen"), [(None, [0, 1, 2, 3]), ("1-2", [1, 2]), ([3, 0], [0, 3]), ((2, 2), [2]), (range(2), [0, 1])]
)
def test_layers_of_a_dense_model(layers, chosen, dense):
    matrices, notes = select(dense, "up", layers)
    assert [matrix.key for matrix in matrices] == [f"layers.{layer}.mlp_up" for layer in chosen]
    assert notes == []


@pytest.mark.parametrize("layers", [[4], 4, [0, 99], "4", ["4"]])
def test_layer_that_is_not_there(layers, dense):
    with pytest.raises(InputError, match="there are 0-3"):
        select(dense, "mlp_up", layers)


def test_storage_that_cannot_be_read_is_refused_before_the_work(write_model, llama_tensors):
    tensors = llama_tensors(4)
    late = "model.layers.3.mlp.up_proj.weight"
    tensors[late] = tensors[late].to(torch.float8_e4m3fn)
    mixed = open_checkpoint(write_model(tensors))
    with pytest.raises(InputError, match=f"'{late}' is stored as F8_E4M3"):
        select(mixed, "mlp_up")
    assert len(select(mixed, "mlp_up", "0-2")[0]) == 3


@pytest.mark.parametrize("layers", [-1, [-1], ["a"], [0.5], [None], True])
def test_what_is_no_layer_number(layers, dense):
    with pytest.raises(InputError, match="write them like"):
        select(dense, "mlp_up", layers)


@pytest.mark.parametrize("name", [None, 3, ""])
def test_what_is_no_matrix_name(name, dense):
    with pytest.raises(InputError, match="unknown matrix"):
        select(dense, name)


def test_no_layer_at_all_is_an_error_about_layers(dense):
    with pytest.raises(InputError, match="layer") as caught:
        select(dense, "mlp_up", [])
    assert "expert" not in str(caught.value)


@pytest.mark.parametrize("name", ["mlp_up", "mlp_gate", "mlp_down"])
def test_concat_is_all_experts_side_by_side(name, moe):
    matrices, notes = select(moe, name)
    assert [matrix.layer for matrix in matrices] == [0, 1, 2, 3]
    assert any("shared experts" in note for note in notes)
    assert matrices[0].shape == (16, 6)
    for matrix in matrices[1:]:
        experts = [one for one in moe.matrices(name) if one.layer == matrix.layer and one.expert != "shared"]
        assert len(experts) == 4
        assert matrix.shape == (16, 4 * 6)
        assert torch.equal(matrix.load(), torch.cat([one.load() for one in experts], dim=1))
        assert matrix.tensors == tuple(one.tensors[0] for one in experts)
        assert matrix.key == f"layers.{matrix.layer}.{name}"


def test_concat_of_mixtral_names(write_model, moe_tensors):
    tensors = moe_tensors(family="mixtral", experts=3)
    matrices, _ = select(open_checkpoint(write_model(tensors)), "mlp_up")
    columns = [tensors[f"model.layers.2.block_sparse_moe.experts.{expert}.w3.weight"].T for expert in range(3)]
    assert torch.equal(matrices[2].load(), torch.cat(columns, dim=1))


@pytest.mark.parametrize(("experts", "key"), [("shared", "shared"), (2, "experts.2"), ("2", "experts.2")])
def test_one_expert_of_each_layer(experts, key, moe):
    matrices, notes = select(moe, "mlp_up", experts=experts)
    assert [matrix.key for matrix in matrices] == [f"layers.{layer}.{key}.mlp_up" for layer in (1, 2, 3)]
    assert len(notes) == 1
    assert "layers 0 left out" in notes[0]


@pytest.mark.parametrize(
    ("experts", "words"),
    [
        ("9", "there are 0-3, shared"),
        (4, "there are 0-3, shared"),
        ("all", "concat, shared, dense or"),
        ("-1", "concat, sh"),
    ],
)
def test_expert_that_is_not_there(experts, words, moe):
    with pytest.raises(InputError, match=words):
        select(moe, "mlp_up", experts=experts)


@pytest.mark.parametrize("experts", ["shared", "0", 0])
def test_experts_of_a_dense_model(experts, dense):
    with pytest.raises(InputError, match="has no experts"):
        select(dense, "mlp_up", experts=experts)


@pytest.mark.parametrize("experts", ["shared", "0"])
def test_experts_do_not_matter_for_attention(experts, write_model, moe_tensors, llama_tensors):
    attention = {name: tensor for name, tensor in llama_tensors(3).items() if "attn" in name}
    checkpoint = open_checkpoint(write_model(moe_tensors() | attention))
    with pytest.raises(InputError, match=r"has no experts"):
        select(checkpoint, "attn_q", experts=experts)
    assert len(select(checkpoint, "attn_q")[0]) == 3


def test_layers_without_the_matrix_are_mentioned(write_model, llama_tensors):
    tensors = {
        name: tensor for name, tensor in llama_tensors(5).items() if ".1.mlp" not in name and ".2.mlp" not in name
    }
    checkpoint = open_checkpoint(write_model(tensors))
    matrices, notes = select(checkpoint, "UP")
    assert [matrix.layer for matrix in matrices] == [0, 3, 4]
    assert notes == ["layers 1-2 have no mlp_up"]
    with pytest.raises(InputError, match="there are 0, 3-4"):
        select(checkpoint, "mlp_up", "1")


def test_experts_of_different_n_cannot_be_joined(write_model, moe_tensors):
    odd = {
        f"model.layers.1.mlp.experts.3.{name}.weight": torch.zeros(shape)
        for name, shape in {"gate_proj": (6, 32), "up_proj": (6, 32), "down_proj": (32, 6)}.items()
    }
    checkpoint = open_checkpoint(write_model(moe_tensors() | odd))
    with pytest.raises(InputError, match="differ in n"):
        select(checkpoint, "mlp_up")


@pytest.mark.parametrize("matrix", ["embed", "router"])
def test_matrix_outside_the_layers_is_refused(matrix, dense):
    with pytest.raises(InputError, match=f"{matrix} stands outside the layers|has no {matrix}"):
        select(dense, matrix)


def test_layers_whose_shapes_contradict_each_other_are_not_lost_silently(write_model, llama_tensors):
    tensors = llama_tensors(4)
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.randn(5, 7)
    checkpoint = open_checkpoint(write_model(tensors))
    chosen, notes = select(checkpoint, "mlp_up")
    assert [matrix.layer for matrix in chosen] == [0, 2, 3]
    assert any("model.layers.1.mlp.up_proj.weight left out" in note and "contradict" in note for note in notes)
    with pytest.raises(InputError, match=r"layers 1 are not there.*contradict"):
        select(checkpoint, "mlp_up", "0-3")


def write_experts(write_model, paths: dict[str, int], layers: int = 2) -> Checkpoint:
    """Layers with an ``up_proj`` of so many neurons at each path, and a ``down_proj`` that fits."""
    tensors = {}
    for layer in range(layers):
        for path, neurons in paths.items():
            tensors[f"model.layers.{layer}.{path}.up_proj.weight"] = torch.randn(neurons, 16)
            tensors[f"model.layers.{layer}.{path}.down_proj.weight"] = torch.randn(16, neurons)
    return open_checkpoint(write_model(tensors))


@pytest.fixture
def longcat(shared) -> Checkpoint:
    """Each layer has six experts of 40 neurons, two MLPs of 112 neurons and two attentions."""
    return open_checkpoint(shared / "zoo" / "longcat_flash")


@pytest.fixture
def inkling(shared) -> Checkpoint:
    """Each layer has four experts and two shared ones, all of 40 neurons."""
    return open_checkpoint(shared / "zoo" / "inkling_text")


def test_dense_blocks_are_not_joined_to_the_experts(longcat):
    selection = select_layers(longcat, "mlp_up")
    assert [one.shape for one in selection.matrices] == [(64, 4 * 40)] * 2
    assert selection.experts == "concat"
    assert selection.notes == [
        "sub0 and sub1 stand beside the experts in these layers and are left out; "
        "--experts sub0 or --experts sub1 compares them"
    ]


@pytest.mark.parametrize("experts", ["sub1", "SUB1"])
def test_one_of_several_blocks_is_chosen_by_name(experts, longcat):
    selection = select_layers(longcat, "mlp_up", experts=experts)
    assert [one.key for one in selection.matrices] == ["layers.0.sub1.mlp_up", "layers.1.sub1.mlp_up"]
    assert (selection.experts, selection.notes) == ("sub1", [])


def test_blocks_without_experts_are_not_joined_but_offered(longcat):
    with pytest.raises(InputError, match=r"layer 0 has it 2 times; choose one: --experts sub0, --experts sub1$"):
        select_layers(longcat, "attn_o")
    assert [one.key for one in select_layers(longcat, "attn_o", experts="sub0").matrices] == [
        "layers.0.sub0.attn_o",
        "layers.1.sub0.attn_o",
    ]
    with pytest.raises(InputError, match=r"has no sub2 block; there are sub0, sub1$"):
        select_layers(longcat, "attn_o", experts="sub2")


def test_shared_experts_of_their_own_are_shared(inkling):
    routed, shared = (select_layers(inkling, "mlp_up", experts=experts) for experts in ("concat", "shared"))
    assert [one.shape for one in routed.matrices] == [(64, 4 * 40)] * 3
    assert any("--experts shared" in note for note in routed.notes)
    assert [one.shape for one in shared.matrices] == [(64, 2 * 40)] * 3
    of_layer = [one for one in inkling.matrices("mlp_up") if one.layer == 1 and one.block == "shared_experts"]
    assert torch.equal(shared.matrices[1].load(), torch.cat([one.load() for one in of_layer], dim=1))
    assert select_layers(inkling, "mlp_up", experts=1).matrices[0].key == "layers.0.experts.1.mlp_up"


def test_attention_experts_are_joined(shared):
    jetmoe = open_checkpoint(shared / "zoo" / "jetmoe")
    assert {one.shape for one in select_layers(jetmoe, "attn_o").matrices} == {(64, 4 * 32)}


def test_dense_matrix_beside_the_experts_is_no_expert(write_model):
    residual = write_experts(write_model, {"mlp.experts.0": 6, "mlp.experts.1": 6, "mlp": 24})
    chosen = select_layers(residual, "mlp_up")
    assert [one.shape for one in chosen.matrices] == [(16, 12)] * 2
    assert any("--experts dense" in note for note in chosen.notes)
    assert [one.key for one in select_layers(residual, "mlp_up", experts="dense").matrices] == [
        "layers.0.mlp_up",
        "layers.1.mlp_up",
    ]


@pytest.mark.parametrize(
    ("experts", "meaning"),
    [("concat", "concat"), ("CONCAT", "concat"), (" Shared", "shared"), ("03", 3), (3, 3), ("Sub1", "sub1")],
)
def test_experts_mean_the_same_however_they_are_written(experts, meaning):
    assert parse_experts(experts) == meaning


def test_layers_of_unlike_width_are_told_with_their_shapes(moe):
    (note,) = (note for note in select_layers(moe, "mlp_up").notes if "shapes" in note)
    assert "(16, 6) in layers 0, (16, 24) in layers 1-3" in note


@pytest.fixture
def marian(write_model, llama_tensors) -> Checkpoint:
    """An encoder of four layers and a decoder of two, whose layers also look at the encoder."""
    paths = {
        **{
            f"{block}.{side}": (16, 16)
            for block in ("self_attn",)
            for side in ("q_proj", "k_proj", "v_proj", "out_proj")
        },
        "fc1": (24, 16),
        "fc2": (16, 24),
    }
    cross = {f"encoder_attn.{side}": (16, 16) for side in ("q_proj", "k_proj", "v_proj", "out_proj")}
    tensors = {
        f"model.{stack}.layers.{layer}.{path}.weight": torch.randn(shape)
        for stack, layers, held in (("encoder", 4, paths), ("decoder", 2, paths | cross))
        for layer in range(layers)
        for path, shape in held.items()
    }
    return open_checkpoint(write_model(tensors | {"model.shared.weight": torch.randn(32, 16)}))


def test_layers_of_another_stack_are_not_missed(marian):
    assert select(marian, "mlp_up", stack="decoder")[1] == []
    assert select(marian, "cross_q")[1] == []


def test_what_is_not_there_is_said_of_model_stack_and_matrix(marian):
    with pytest.raises(InputError, match=r"^tiny: decoder mlp_up: layers 3 are not there; there are 0-1$"):
        select_layers(marian, "mlp_up", "3", stack="decoder")
    with pytest.raises(InputError, match=r"^tiny: its encoder has no cross_q; the decoder has it: --stack decoder$"):
        select_layers(marian, "cross_q", stack="encoder")
    for stack in (None, "middle"):
        with pytest.raises(InputError, match=r"^tiny: mlp_up is in decoder and encoder; choose one with --stack deco"):
            select_layers(marian, "mlp_up", stack=stack)


@pytest.mark.parametrize(
    ("matrix", "words"), [("embed", "embed stands outside the layers"), ("router", "has no router")]
)
def test_only_matrices_of_layers_are_offered(matrix, words, dense):
    with pytest.raises(InputError, match=words) as caught:
        select_layers(dense, matrix)
    assert str(caught.value).endswith("; it has attn_q, attn_k, attn_v, attn_o, mlp_gate, mlp_up, mlp_down")
