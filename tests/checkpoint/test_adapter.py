"""LoRA adapters made with peft: every tensor equals what merge_and_unload makes of it, or the adapter is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from docs_sim.analyses.heatmap import heatmap
from docs_sim.checkpoint import open_checkpoint, patterns
from docs_sim.checkpoint.patterns import by_pattern
from docs_sim.errors import InputError

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
BASES = {
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=False)
    ),
    "phi3": lambda: transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**SIZES, num_key_value_heads=2, pad_token_id=0)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=16)
    ),
    "gpt_oss": lambda: transformers.GptOssForCausalLM(
        transformers.GptOssConfig(
            **SIZES, num_key_value_heads=2, head_dim=8, num_local_experts=3, num_experts_per_tok=1
        )
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            **SIZES, num_key_value_heads=2, head_dim=8, num_experts=3, num_experts_per_tok=1, moe_intermediate_size=10
        )
    ),
    "mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=1)
    ),
    "nemotron_h": lambda: transformers.NemotronHForCausalLM(
        transformers.NemotronHConfig(
            **{name: size for name, size in SIZES.items() if name != "num_hidden_layers"},
            num_key_value_heads=2,
            head_dim=8,
            layers_block_type=["attention", "moe"],
            n_routed_experts=3,
            num_experts_per_tok=1,
            moe_intermediate_size=10,
            moe_shared_expert_intermediate_size=10,
        )
    ),
    "classifier": lambda: transformers.LlamaForSequenceClassification(
        transformers.LlamaConfig(**SIZES, num_key_value_heads=2, pad_token_id=0)
    ),
    "tied": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=True)
    ),
}
STACKED = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
ADAPTERS = {
    "plain": ("llama", {"target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"]}),
    "patterns": (
        "llama",
        {
            "target_modules": ["q_proj", "up_proj", "down_proj"],
            "rank_pattern": {"up_proj": 6, r"layers\.1\.self_attn\.q_proj": 2},
            "alpha_pattern": {"down_proj": 3, r"model.layers.0.mlp.up_proj": 5},
        },
    ),
    "rsLoRA": ("llama", {"target_modules": "all-linear", "use_rslora": True}),
    "DoRA": ("llama", {"target_modules": ["q_proj", "o_proj", "gate_proj"], "use_dora": True}),
    "fused": ("phi3", {"target_modules": ["qkv_proj", "gate_up_proj"]}),
    "fan in, fan out": ("gpt2", {"target_modules": ["c_attn", "c_fc", "c_proj"], "fan_in_fan_out": True}),
    "fan in, fan out, DoRA": ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True, "use_dora": True}),
    "embedding, whole head": ("llama", {"target_modules": ["embed_tokens", "k_proj"], "modules_to_save": ["lm_head"]}),
    "experts": (
        "gpt_oss",
        {"target_modules": ["q_proj"], **STACKED},
    ),
    "experts that the file has one by one": ("qwen3_moe", {"target_modules": ["q_proj"], **STACKED}),
    "experts under older names": ("mixtral", {"target_modules": ["q_proj"], "use_rslora": True, **STACKED}),
    "gate and up of experts": (
        "qwen3_moe",
        {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj"]},
    ),
    "down of experts": ("mixtral", {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.down_proj"]}),
    "experts without a gate": (
        "nemotron_h",
        {"target_modules": ["q_proj"], "target_parameters": ["mixer.experts.up_proj", "mixer.experts.down_proj"]},
    ),
    "whole head": ("classifier", {"target_modules": ["q_proj"], "modules_to_save": ["score"]}),
    "embedding of a tied head": ("tied", {"target_modules": ["embed_tokens", "k_proj"]}),
    "patterns that choose": (
        "llama",
        {
            "target_modules": ["q_proj", "up_proj"],
            "rank_pattern": {r"layers\.(0|7)\.self_attn\.q_proj": 2},
            "alpha_pattern": {r"layers\.\d+\..*up_proj": 3, "u[a-z]_proj": 5},
        },
    ),
}


@pytest.fixture
def adapter(tmp_path):
    """Save a tiny base and an adapter on it; what peft merges them to, by name."""

    def make(base: str, settings: dict) -> tuple[Path, Path, dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        model = BASES[base]()
        model.save_pretrained(tmp_path / "base")
        tuned = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, **settings))
        for parameter in tuned.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
        tuned.save_pretrained(tmp_path / "adapter")
        tuned.merge_and_unload().save_pretrained(tmp_path / "merged")
        return tmp_path / "adapter", tmp_path / "base", load_file(tmp_path / "merged" / "model.safetensors")

    return make


@pytest.mark.parametrize("case", ADAPTERS)
def test_equals_what_peft_merges(case, adapter):
    path, base, merged = adapter(*ADAPTERS[case])
    found, plain = open_checkpoint(f"{path}+{base}"), open_checkpoint(base)
    assert found.name == "adapter+base"
    changed = 0
    assert found.tensors.keys() == merged.keys()
    for name, tensor in found.tensors.items():
        torch.testing.assert_close(tensor.load().float(), merged[name].float(), rtol=1e-5, atol=1e-5)
        changed += not torch.equal(tensor.load().float(), plain.tensors[name].load().float())
        if tensor.shape[0] > 2:
            assert torch.allclose(tensor.load(1, 3), tensor.load()[1:3], atol=1e-6)
    updates = {key.split(".lora_")[0] for key in load_file(path / "adapter_model.safetensors") if ".lora_" in key}
    assert changed >= len(updates) > 0


@pytest.mark.parametrize("base", ["base", "base/model.safetensors"])
def test_is_a_model_like_any_other(base, adapter, tmp_path):
    path, _, _ = adapter(*ADAPTERS["plain"])
    result = heatmap(f"{path / 'adapter_model.safetensors'}+{tmp_path / base}", "mlp_up", layers="0-1")
    assert result.values.shape == (2, 2)
    assert result.model["adapter"] == str(path / "adapter_model.safetensors")


def test_an_adapter_of_a_layer_is_not_put_on_another(adapter):
    path, base, _ = adapter("llama", {"target_modules": ["q_proj"], "layers_to_transform": [1]})
    plain = {name: tensor for name, tensor in load_file(base / "model.safetensors").items() if ".1." not in name}
    save_file(plain, base / "model.safetensors")
    with pytest.raises(InputError, match=r"model\.layers\.1\.self_attn\.q_proj"):
        open_checkpoint(f"{path}+{base}")


def test_prefixes_may_differ(adapter):
    path, base, merged = adapter(*ADAPTERS["plain"])
    plain = {name.removeprefix("model."): tensor for name, tensor in load_file(base / "model.safetensors").items()}
    save_file(plain, base / "model.safetensors")
    found = open_checkpoint(f"{path}+{base}").tensors["layers.1.mlp.up_proj.weight"].load()
    torch.testing.assert_close(found, merged["model.layers.1.mlp.up_proj.weight"], rtol=1e-5, atol=1e-5)


def test_head_that_the_base_lacks_is_added(adapter):
    path, base, merged = adapter("tied", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]})
    found = open_checkpoint(f"{path}+{base}")
    assert "lm_head.weight" not in open_checkpoint(base).tensors
    assert found.tensors.keys() == merged.keys()
    assert torch.equal(found.matrices("lm_head")[0].parts[0].tensor.load(), merged["lm_head.weight"])


def test_head_of_a_classifier_on_a_base_without_one(adapter):
    path, base, merged = adapter("classifier", {"target_modules": ["q_proj"], "modules_to_save": ["score"]})
    plain = load_file(base / "model.safetensors")
    del plain["score.weight"]
    save_file(plain, base / "model.safetensors")
    found = open_checkpoint(f"{path}+{base}")
    assert torch.equal(found.tensors["score.weight"].load(), merged["score.weight"])
    assert [one.name for one in found.unnamed if one.name == "score.weight"] == ["score.weight"]


def test_update_of_a_tied_head_is_refused(adapter):
    path, base, _ = adapter("tied", {"target_modules": ["q_proj", "lm_head"]})
    with pytest.raises(InputError, match="no 'lm_head'; if it is tied to the embedding, merge it with peft first"):
        open_checkpoint(f"{path}+{base}")


def test_whole_bias_is_that_of_the_adapter(adapter):
    path, base, merged = adapter("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True, "bias": "lora_only"})
    name = "transformer.h.0.attn.c_attn.bias"
    found = open_checkpoint(f"{path}+{base}").tensors[name].load()
    assert torch.equal(found, merged[name])
    assert not torch.equal(found, open_checkpoint(base).tensors[name].load())


def test_pattern_that_never_ends_is_refused(adapter, monkeypatch):
    """(a+)+ tries every way to cut a run of letters: two to the power of their number."""
    monkeypatch.setattr(patterns, "_SECONDS", 0.5)
    path, base, _ = adapter(*ADAPTERS["plain"])
    rename(path, "base_model.model.", f"base_model.model.{'a' * 40}.")
    change(path, alpha_pattern={"(a+)+!": 1})
    with pytest.raises(InputError, match="TimeoutExpired"):
        open_checkpoint(f"{path}+{base}")


def test_patterns_mean_what_they_mean_to_peft():
    paths = [f"model.layers.{layer}.mlp.{name}" for layer in (0, 1, 10) for name in ("up_proj", "down_proj")]
    for pattern in (
        "up_proj",
        "layers.1.mlp.up_proj",
        r".*\.1\..*",
        "(?:up|down)_proj",
        "p_proj",
        "^model.*up_proj",
    ):
        expected = [path for path in paths if peft_matches(pattern, path)]
        assert list(by_pattern({pattern: 1}, paths, "adapter")) == expected
    assert by_pattern({"up_proj": 1, ".*proj": 2}, paths, "adapter") == {
        path: 1 if "up_proj" in path else 2 for path in paths
    }


def peft_matches(pattern: str, path: str) -> bool:
    return peft.utils.other.get_pattern_key([pattern], path) == pattern


def test_experts_under_numbered_names(adapter):
    path, base, merged = adapter("mixtral", {"target_modules": ["q_proj"], **STACKED})
    names = {"block_sparse_moe": "mlp", "w1": "fc1", "w3": "fc3", "w2": "fc2"}

    def renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {".".join(names.get(part, part) for part in name.split(".")): one for name, one in tensors.items()}

    save_file(renamed(load_file(base / "model.safetensors")), base / "model.safetensors")
    for name, tensor in open_checkpoint(f"{path}+{base}").tensors.items():
        torch.testing.assert_close(tensor.load(), renamed(merged)[name], rtol=1e-5, atol=1e-5)


def change(path: Path, **changes: object) -> None:
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps(config | changes))


def rename(path: Path, old: str, new: str) -> None:
    tensors = load_file(path / "adapter_model.safetensors")
    save_file({name.replace(old, new): tensor for name, tensor in tensors.items()}, path / "adapter_model.safetensors")


def nest(path: Path) -> None:
    tensors = load_file(path / "adapter_model.safetensors")
    more = {name.replace(".lora_", ".base_layer.lora_"): 2 * one for name, one in tensors.items() if "q_proj" in name}
    save_file(tensors | more, path / "adapter_model.safetensors")


def name_twice(path: Path) -> None:
    tensors = load_file(path / "adapter_model.safetensors")
    more = {name.replace("lora_A.", "lora_A.default."): 2 * one for name, one in tensors.items()}
    save_file(tensors | more, path / "adapter_model.safetensors")


def save_twice(path: Path) -> None:
    tensors = load_file(path / "adapter_model.safetensors")
    more = {f"base_model.model.lm_head.{part}weight": torch.ones(3, 3) for part in ("", "modules_to_save.")}
    save_file(tensors | more, path / "adapter_model.safetensors")


FAULTS = {
    "a whole module twice": (save_twice, "'lm_head.weight' twice"),
    "an update that only some tokens get": (
        lambda path: change(path, alora_invocation_tokens=[1, 2]),
        "alora_invocation_tokens",
    ),
    "a pattern that is none": (lambda path: change(path, rank_pattern={"q_proj(": 4}), r"'q_proj\(' is no regular"),
    "DoRA without its lengths": (lambda path: change(path, use_dora=True), "no lora_magnitude_vector"),
    "a text for a truth value": (lambda path: change(path, use_rslora="false"), "use_rslora is 'false'"),
    "a truth value for a number": (lambda path: change(path, lora_alpha=True), "lora_alpha of .* is True"),
    "patterns in a list": (lambda path: change(path, rank_pattern=["q_proj"]), "rank_pattern is"),
    "parameters in a text": (lambda path: change(path, target_parameters="mlp.experts.up"), "target_parameters is"),
    "a piece twice": (name_twice, "lora_A of .* twice"),
    "two updates of one module": (nest, "would both be"),
    "an embedding and a linear layer in one": (
        lambda path: rename(path, "q_proj.lora_A", "q_proj.lora_embedding_A"),
        "of a linear layer and of an embedding",
    ),
    "the vision tower": (
        lambda path: rename(path, "model.model.layers", "model.model.vision_tower.encoder.layers"),
        "'model.vision_tower",
    ),
    "another kind": (lambda path: change(path, peft_type="LOHA"), "'LOHA'"),
    "layers that are copied": (lambda path: change(path, layer_replication=[[0, 1]]), "layer_replication"),
    "an initialization that changes the base": (
        lambda path: change(path, init_lora_weights="pissa"),
        "changes the base",
    ),
    "another rank": (lambda path: change(path, r=8), "rank 4"),
    "alpha that is no number": (lambda path: change(path, lora_alpha="much"), "'much'"),
    "a module that the base lacks": (lambda path: rename(path, "layers.1.", "layers.7."), "'model.layers.7"),
    "a piece of another kind": (lambda path: rename(path, "lora_A", "hada_w1_a"), "hada_w1_a"),
    "half of the pieces": (lambda path: rename(path, "q_proj.lora_A", "k_proj.lora_A"), "only one of"),
    "a whole module of a layer that the base lacks": (
        lambda path: rename(path, "layers.1.mlp.up_proj.lora_A", "layers.9.mlp.up_proj"),
        "'model.layers.9",
    ),
    "modules of another shape": (lambda path: rename(path, "up_proj", "o_proj"), "does not fit"),
    "no config": (lambda path: (path / "adapter_config.json").unlink(), "belong together"),
    "no weights": (lambda path: (path / "adapter_model.safetensors").unlink(), "belong together"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_refused_in_one_line(fault, adapter):
    path, base, _ = adapter(*ADAPTERS["plain"])
    act, words = FAULTS[fault]
    act(path)
    with pytest.raises(InputError, match=words) as caught:
        open_checkpoint(f"{path}+{base}")
    assert "\n" not in str(caught.value)
    assert "adapter" in str(caught.value)


@pytest.mark.parametrize("fronts", [("encoder", "decoder"), ("decoder", "encoder")])
def test_an_adapter_of_one_stack_is_not_put_on_the_other(fronts, tmp_path):
    """As that of a T5 model on its encoder alone: the shapes are the same."""
    base, other = fronts
    name = "block.0.layer.0.SelfAttention.q"
    write_checkpoint(tmp_path / "base", {f"{base}.{name}.weight": torch.zeros(6, 6)}, {})
    pieces = {"lora_A": torch.ones(2, 6), "lora_B": torch.ones(6, 2)}

    def open_with(*stacks: str):
        tensors = {
            f"base_model.model.{stack}.{name}.{piece}.weight": one.clone()
            for stack in stacks
            for piece, one in pieces.items()
        }
        write_checkpoint(tmp_path / "adapter", tensors, {"peft_type": "LORA", "r": 2, "lora_alpha": 2}, "adapter_")
        return open_checkpoint(f"{tmp_path / 'adapter'}+{tmp_path / 'base'}")

    assert float(open_with(base).tensors[f"{base}.{name}.weight"].load()[0, 0]) == 2
    for stacks in ((other,), (base, other)):
        with pytest.raises(InputError, match=f"'{other}"):
            open_with(*stacks)


def write_checkpoint(path: Path, tensors: dict[str, torch.Tensor], config: dict, beginning: str = "") -> None:
    path.mkdir(exist_ok=True)
    save_file(tensors, path / f"{beginning}model.safetensors")
    (path / f"{beginning}config.json").write_text(json.dumps(config))


def test_path_with_a_plus_is_a_path(adapter, tmp_path):
    _, base, _ = adapter(*ADAPTERS["plain"])
    base.rename(tmp_path / "a+b")
    assert open_checkpoint(tmp_path / "a+b").name == "a+b"
    with pytest.raises(InputError, match="no such adapter"):
        open_checkpoint(f"nothing+{tmp_path / 'a+b'}")


@pytest.mark.parametrize("case", ["DoRA", "experts"])
def test_lengths_that_the_config_does_not_announce_are_refused(case, adapter):
    path, base, _ = adapter(*ADAPTERS[case])
    change(path, use_dora=False)
    tensors = load_file(path / "adapter_model.safetensors")
    more = {
        name.replace("lora_B.weight", "lora_magnitude_vector"): torch.ones(len(one))
        for name, one in tensors.items()
        if "lora_B" in name
    }
    save_file(tensors | more, path / "adapter_model.safetensors")
    with pytest.raises(InputError, match="a lora_magnitude_vector, and use_dora is False"):
        open_checkpoint(f"{path}+{base}")


def test_ranks_are_those_of_every_update(adapter):
    """Patterns, and experts whose updates are stored side by side."""
    settings = {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"v_proj": 6}, **STACKED}
    path, base, _ = adapter("qwen3_moe", settings)
    ranks = open_checkpoint(f"{path}+{base}").adapter_ranks
    layers = len(open_checkpoint(base).layers)
    assert sorted(ranks) == [4] * (3 * layers) + [6] * layers
