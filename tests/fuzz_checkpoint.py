"""Coverage-guided fuzzing of everything that reads untrusted bytes, for an hour now and then; not part of the suite.

    pip install atheris
    python tests/fuzz_checkpoint.py header|index|config|adapter|layout|gguf|quantized [libFuzzer options]

A run ends at the first input that is neither read nor refused with an ``InputError``, and writes it to a file.
"""

import json
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["docs_sim"]):
    from docs_sim.checkpoint import dequantize, open_checkpoint
    from docs_sim.checkpoint.header import DTYPES
    from docs_sim.errors import InputError

FOLDER = Path(tempfile.mkdtemp())
UP = "model.layers.0.mlp.up_proj"


def safetensors(header: object, payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def write(name: str, content: bytes) -> Path:
    (FOLDER / name).write_bytes(content)
    return FOLDER / name


PLAIN = safetensors({f"{UP}.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}, bytes(16))


def header(data: bytes) -> None:
    look(open_checkpoint(write("plain.safetensors", data)))


def index(data: bytes) -> None:
    write("part.safetensors", PLAIN)
    look(open_checkpoint(write("plain.safetensors.index.json", data)))


def config(data: bytes) -> None:
    shape = {"dtype": "F32", "shape": [6, 2], "data_offsets": [0, 48]}
    out = {"dtype": "F32", "shape": [2, 2], "data_offsets": [48, 64]}
    tensors = {"h.0.self_attention.query_key_value.weight": shape, "h.0.self_attention.dense.weight": out}
    write("model.safetensors", safetensors(tensors, bytes(64)))
    write("config.json", data)
    look(open_checkpoint(FOLDER / "model.safetensors"))


def adapter(data: bytes) -> None:
    folder = FOLDER / "adapter"
    folder.mkdir(exist_ok=True)
    cut = len(data) // 2
    (folder / "adapter_config.json").write_bytes(data[:cut])
    (folder / "adapter_model.safetensors").write_bytes(data[cut:])
    look(open_checkpoint(f"{folder}+{write('plain.safetensors', PLAIN)}"))


def layout(data: bytes) -> None:
    write("mine.toml", data)
    look(open_checkpoint(write("plain.safetensors", PLAIN), layout=FOLDER / "mine.toml"))


def gguf(data: bytes) -> None:
    look(open_checkpoint(write("plain.gguf", data)))


def quantized(data: bytes) -> None:
    """Tensors of any type and shape under the names that quantized formats use."""
    provider = atheris.FuzzedDataProvider(data)
    tensors, position = {}, 0
    for _ in range(provider.ConsumeIntInRange(1, 6)):
        name = UP + dequantize._ENDINGS[provider.ConsumeIntInRange(0, len(dequantize._ENDINGS) - 1)]
        dtype = list(DTYPES)[provider.ConsumeIntInRange(0, len(DTYPES) - 1)]
        shape = [provider.ConsumeIntInRange(0, 16) for _ in range(provider.ConsumeIntInRange(0, 4))]
        size = DTYPES[dtype]
        for length in shape:
            size *= length
        if name not in tensors and size % 8 == 0:
            tensors[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size // 8]}
            position += size // 8
    payload = (provider.ConsumeBytes(position) + bytes(position))[:position]
    look(open_checkpoint(write("plain.safetensors", safetensors(tensors, payload))))


def look(checkpoint: object) -> None:
    """Read what there is, as long as it is small."""
    for matrix in checkpoint.matrices()[:4]:
        if matrix.shape[0] * matrix.shape[1] < 1_000_000:
            matrix.load()


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (header, index, config, adapter, layout, gguf, quantized)
}


def main() -> None:
    """Fuzz one target."""
    target = TARGETS[sys.argv.pop(1)]

    def once(data: bytes) -> None:
        with suppress(InputError):
            target(data)

    atheris.Setup(sys.argv, once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
