"""The built-in models: small, in the ordinary form, and models of language."""

import csv
import math
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import docs_sim

DEMO = Path(str(files("docs_sim.demo")))
NAMES = ["demo", "demo-tuned", "demo-moe"]
SENTENCE = "The :class:`list` object returns a new iterator. If the argument is not a string, an exception is raised."
VERSE = "And it came to pass in those days, that the LORD spake unto the king, saying, Go thou unto the people."


@pytest.mark.parametrize("name", NAMES)
def test_is_small_and_in_bfloat16(name: str) -> None:
    checkpoint = docs_sim.open_checkpoint(name)
    assert sum(file.stat().st_size for file in (DEMO / name).iterdir()) < 4_000_000
    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {"BF16"}
    assert checkpoint.layers == list(range(8))


def test_the_mixture_has_experts_and_a_router() -> None:
    checkpoint = docs_sim.open_checkpoint("demo-moe")
    assert [matrix.expert for matrix in checkpoint.matrices("mlp_up")][:4] == [0, 1, 2, 3]
    assert checkpoint.matrices("router")[0].shape == (96, 4)


def loss(name: str, text: str) -> float:
    transformers = pytest.importorskip("transformers", reason="the [activations] extra is not installed")
    tokens = transformers.AutoTokenizer.from_pretrained(DEMO / name)(text, return_tensors="pt")["input_ids"]
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO / name, dtype=torch.float32).eval()
    with torch.no_grad():
        return float(model(input_ids=tokens, labels=tokens, output_router_logits=False).loss)


def test_transformers_loads_them_and_they_know_their_texts() -> None:
    """Random weights would give log 2048 = 7.6 on both texts."""
    assert loss("demo", SENTENCE) < 5
    assert loss("demo-tuned", VERSE) < loss("demo", VERSE) - 1
    assert loss("demo-moe", SENTENCE) < 5
    assert loss("demo-moe", VERSE) < 5


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_curve_is_recorded_and_falls(name: str) -> None:
    with (DEMO / name / "losses.csv").open() as file:
        curve = [float(row["train"]) for row in csv.DictReader(file)]
    assert curve[-1] < curve[0] < math.log(2048)


def test_layers_of_the_demo_resemble_their_neighbours_above_chance() -> None:
    result = docs_sim.heatmap("demo", matrix="mlp_up")
    neighbours = [result.values[layer, layer + 1] for layer in range(2, 7)]
    assert min(neighbours) > result.chance + 0.02
    assert min(neighbours) > result.values[0, 7]


def test_the_tuned_model_is_close_to_its_base() -> None:
    pairs = zip(*(docs_sim.open_checkpoint(name).matrices("mlp_up") for name in ("demo", "demo-tuned")), strict=True)
    assert all(0.6 < docs_sim.docs(base.load(), tuned.load()) < 1 for base, tuned in pairs)
