"""Tiny checkpoints as real files: what the tests of all floors are made of."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from docs_sim.__main__ import main

collect_ignore = ["fuzz_checkpoint.py"]  # a program of its own, which needs atheris
SHARED = Path(__file__).resolve().parents[2] / "shared"

Tensors = dict[str, Tensor]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Whatever a test asks for, it is not the Hub of the world."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def shared() -> Path:
    """The folder of reference checkpoints beside the repository."""
    if not SHARED.is_dir():
        pytest.skip(f"no reference checkpoints: {SHARED} is not there")
    return SHARED


@pytest.fixture
def write_model(tmp_path) -> Callable[..., Path]:
    """Write tensors as ``FOLDER/model.safetensors`` (with a config if given) and return the folder."""

    def write(tensors: Tensors, folder: str = "tiny", *, config: dict | None = None) -> Path:
        directory = tmp_path / folder
        directory.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
        if config is not None:
            (directory / "config.json").write_text(json.dumps(config))
        return directory

    return write


@pytest.fixture
def write_raw(tmp_path) -> Callable[..., Path]:
    """Write a safetensors file byte by byte: the header as given, well-formed or not, then the payload."""

    def write(
        header: bytes | dict, payload: bytes = b"", *, length: int | None = None, name: str = "raw.safetensors"
    ) -> Path:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + payload)
        return path

    return write


@pytest.fixture
def open_with_little_time() -> Callable[[Path], str]:
    """Open a checkpoint in a process with five seconds of processor time: "opened", "refused", or a failed test."""
    if sys.platform == "win32":
        pytest.skip("limits the processor time of a process")
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, (5, 5))\n"
        "from docs_sim.checkpoint import open_checkpoint; from docs_sim.errors import InputError\n"
        "try: open_checkpoint(sys.argv[1]); print('opened')\n"
        "except InputError: print('refused')"
    )

    def open_it(path: Path) -> str:
        command = [sys.executable, "-c", program, str(path)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr or "neither opened nor refused in the time it had"
        return ended.stdout.strip()

    return open_it


@pytest.fixture
def llama_tensors() -> Callable[..., Tensors]:
    """The tensors of a Llama: n = ``width``, grouped-query attention, an embedding, norms."""

    def make(
        layers: int = 3,
        width: int = 16,
        inner: int = 24,
        heads: int = 16,
        kv_heads: int = 8,
        *,
        prefix: str = "model.",
        dtype: torch.dtype = torch.bfloat16,
        seed: int = 0,
    ) -> Tensors:
        random = torch.Generator().manual_seed(seed)
        shapes = {
            "self_attn.q_proj": (heads, width),
            "self_attn.k_proj": (kv_heads, width),
            "self_attn.v_proj": (kv_heads, width),
            "self_attn.o_proj": (width, heads),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
            "input_layernorm": (width,),
        }
        tensors = {
            f"{prefix}layers.{layer}.{name}.weight": torch.randn(shape, generator=random).to(dtype)
            for layer in range(layers)
            for name, shape in shapes.items()
        }
        return tensors | {f"{prefix}embed_tokens.weight": torch.randn((32, width), generator=random).to(dtype)}

    return make


@pytest.fixture
def moe_tensors() -> Callable[..., Tensors]:
    """The MLPs of a mixture of experts: ``dense`` dense layers, then ``sparse`` ones, Qwen's names or Mixtral's."""

    def make(
        dense: int = 0,
        sparse: int = 3,
        experts: int = 4,
        width: int = 16,
        inner: int = 6,
        *,
        family: str = "qwen2_moe",
        seed: int = 0,
    ) -> Tensors:
        random = torch.Generator().manual_seed(seed)
        up, down = (inner, width), (width, inner)
        if family == "mixtral":
            block, names, shared = "block_sparse_moe", {"w1": up, "w3": up, "w2": down}, {}
        else:
            block, names = "mlp", {"gate_proj": up, "up_proj": up, "down_proj": down}
            shared = {f"shared_expert.{name}": shape for name, shape in names.items()}
        routed = {f"experts.{expert}.{name}": shape for expert in range(experts) for name, shape in names.items()}
        plain = {"mlp.gate_proj": up, "mlp.up_proj": up, "mlp.down_proj": down}
        mixed = {f"{block}.{name}": shape for name, shape in {"gate": (experts, width), **shared, **routed}.items()}
        return {
            f"model.layers.{layer}.{name}.weight": torch.randn(shape, generator=random).bfloat16()
            for layer in range(dense + sparse)
            for name, shape in (plain if layer < dense else mixed).items()
        }

    return make


@pytest.fixture
def failing_replace(monkeypatch):
    """Make the ``step``-th renaming fail."""

    def make(step: int) -> None:
        replace, count = Path.replace, 0

        def failing(self: Path, target: Path) -> Path:
            nonlocal count
            count += 1
            if count == step:
                raise OSError(28, "No space left on device")
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", failing)

    return make


@dataclass(frozen=True)
class Ended:
    """What a run of the program left."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the program in this process, in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["docs-sim", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        return Ended(caught.value.code or 0, *capsys.readouterr())

    return run
