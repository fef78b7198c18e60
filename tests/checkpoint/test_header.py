"""Headers as attacks: whatever the bytes are, a safetensors header is read or refused in one line."""

import json
import os
import struct
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from docs_sim.checkpoint.header import DTYPES, TensorHeader, read_header
from docs_sim.errors import InputError

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 2471645608\n"


def framed(header: bytes | dict, payload: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + payload


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def one_tensor(payload: bytes = bytes(8), **fields: object) -> bytes:
    return framed({"w": entry(**fields)}, payload)


def check_refused(path, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_header(path)
    message = str(caught.value)
    assert words in message
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < len(str(path)) + 1000, "a message of one line is one that can be read"


NOT_A_HEADER = {
    "empty file": (b"", "is empty"),
    "three bytes": (b"abc", "only 3 bytes"),
    "git lfs pointer": (LFS_POINTER, "git lfs pull"),
    "text": (b"import torch\nprint(torch)\n", "not a safetensors file"),
    "longer than the file": (framed(b"{}", length=200), "cut short in its header"),
    "of 1 GB": (framed(b"{}", length=10**9), "1,000,000,000"),
    "of 2^64 - 1 bytes": (framed(b"{}", length=2**64 - 1), "not a safetensors file"),
    "of no bytes": (framed(b"", bytes(8)), "not valid"),
    "not UTF-8": (framed(b'{"\xff\xfe": 1}'), "utf-8"),
    "not JSON": (framed(b"{'w': 1}"), "not valid"),
    "half of a JSON object": (framed(b'{"w": {'), "not valid"),
    "JSON array": (framed(b"[]"), "list"),
    "JSON null": (framed(b"null"), "NoneType"),
    "JSON number": (framed(b"17"), "int"),
    "deep lists": (framed(b"[" * 200_000), "not valid"),
    "deep objects": (framed(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "not valid"),
    "tensor twice": (
        framed(b'{"w":%s,"w":%s}' % ((json.dumps(entry()).encode(),) * 2), bytes(8)),
        "'w' occurs twice",
    ),
    "last of very many names twice": (
        framed(b"{%s}" % b",".join(b'"%d":0' % (number % 300_000) for number in range(300_001))),
        "'0' occurs twice",
    ),
    "field twice": (
        framed(b'{"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
        "'dtype' occurs twice",
    ),
}

BAD_ENTRY = {
    "no object": (framed({"w": 3}), "'w'"),
    "no fields": (framed({"w": {}}), "dtype"),
    "unknown dtype": (one_tensor(dtype="F33"), "'F33'"),
    "dtype in lower case": (one_tensor(dtype="f32"), "'f32'"),
    "dtype a list": (one_tensor(dtype=["F32"]), "dtype"),
    "dtype null": (one_tensor(dtype=None), "dtype"),
    "shape null": (one_tensor(shape=None), "shape"),
    "shape a number": (one_tensor(shape=2), "shape"),
    "shape negative": (one_tensor(shape=[-2, -1]), "[-2, -1]"),
    "shape float": (one_tensor(shape=[2.0]), "[2.0]"),
    "shape bool": (one_tensor(bytes(4), shape=[True], offsets=[0, 4]), "[True]"),
    "shape text": (one_tensor(shape=["2"]), "['2']"),
    "shape nested": (one_tensor(shape=[[2]]), "[[2]]"),
    "shape over 64 bits": (one_tensor(shape=[2**64]), "shape"),
    "shape that overflows to the right size": (one_tensor(shape=[2**62, 2**2, 2], offsets=[0, 0]), "does not fill"),
    "shape of infinite size": (framed(b'{"w":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,8]}}'), "shape"),
    "shape of 5000 digits": (framed(b'{"w":{"dtype":"F32","shape":[%s],"data_offsets":[0,8]}}' % (b"9" * 5000)), ""),
    "a million dimensions": (one_tensor(bytes(4), shape=[1] * 1_000_000, offsets=[0, 4]), "shape"),
    "offsets missing": (framed({"w": {"dtype": "F32", "shape": [2]}}, bytes(8)), "data_offsets"),
    "offsets negative": (one_tensor(offsets=[-8, 0]), "[-8, 0]"),
    "offsets float": (one_tensor(offsets=[0, 8.0]), "[0, 8.0]"),
    "offsets bool": (one_tensor(b"\0", dtype="U8", shape=[1], offsets=[False, True]), "[False, True]"),
    "offsets huge": (one_tensor(offsets=[2**70, 2**70 + 8]), "data_offsets"),
    "offsets reversed": (one_tensor(offsets=[8, 0]), "[8, 0]"),
    "one offset": (one_tensor(offsets=[0]), "[0]"),
    "three offsets": (one_tensor(offsets=[0, 8, 8]), "[0, 8, 8]"),
    "shape too small": (one_tensor(shape=[1]), "does not fill"),
    "shape too large": (one_tensor(shape=[3]), "does not fill"),
    "half bytes": (one_tensor(b"\0", dtype="F4", shape=[3], offsets=[0, 1]), "does not fill"),
    "overlap": (framed({"v": entry(), "w": entry(offsets=[4, 12])}, bytes(12)), "'v' and 'w' overlap"),
    "the same bytes twice": (framed({"v": entry(), "w": entry()}, bytes(8)), "overlap"),
    "gap": (framed({"v": entry(), "w": entry(offsets=[12, 20])}, bytes(20)), "'v' and 'w' leave a gap"),
    "gap after the header": (one_tensor(bytes(12), offsets=[4, 12]), "leave a gap"),
    "bytes cut off": (one_tensor(bytes(7)), "cut short"),
    "end far beyond the file": (one_tensor(shape=[2**40], offsets=[0, 2**42]), "cut short"),
    "bytes after the last tensor": (one_tensor(bytes(9)), "1 bytes after the last tensor"),
    "bytes but no tensor": (framed({"__metadata__": {"format": "pt"}}, bytes(5)), "5 bytes"),
}


@pytest.mark.parametrize("attack", [*NOT_A_HEADER, *BAD_ENTRY])
def test_attack_is_refused_in_one_line_that_names_the_file(attack, tmp_path):
    content, words = (NOT_A_HEADER | BAD_ENTRY)[attack]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    check_refused(path, words)


def test_header_of_1_gb_is_refused_even_if_the_file_is_that_long(tmp_path):
    path = tmp_path / "sparse.safetensors"
    path.write_bytes(framed(b"{", length=10**9))
    os.truncate(path, 10**9 + 8)
    check_refused(path, "1,000,000,000")


def test_long_tensor_name_does_not_drown_the_message(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(framed({"w" * 100_000: entry(dtype="F33")}, bytes(8)))
    check_refused(path, "F33")


@pytest.mark.parametrize("where", ["missing", "directory"])
def test_unreadable_path_is_refused(where, tmp_path):
    path = tmp_path / "model.safetensors"
    if where == "directory":
        path.mkdir()
    check_refused(path, "cannot be read")


@pytest.mark.parametrize("field", ["dtype", "shape", "offsets"])
def test_every_depth_of_nesting_is_refused(field, tmp_path):
    # Around the recursion limit the parser may succeed and something after it fail.
    path = tmp_path / "model.safetensors"
    limit = sys.getrecursionlimit()
    for depth in range(limit - 200, limit + 20):
        nested = b"[" * depth + b"]" * depth
        fields = {"dtype": b'"F32"', "shape": b"[2]", "offsets": b"[0,8]", field: nested}
        text = b'{"w":{"dtype":%s,"shape":%s,"data_offsets":%s}}' % tuple(fields.values())
        path.write_bytes(framed(text, bytes(8)))
        with pytest.raises(InputError):
            read_header(path)


def test_valid_corner_cases_are_read(tmp_path):
    path = tmp_path / "model.safetensors"
    header = {
        "__metadata__": {"format": "pt"},
        "later": entry(offsets=[4, 12]),
        "empty": entry(shape=[0, 7], offsets=[4, 4]),
        "scalar": entry(shape=[], offsets=[0, 4]),
    }
    path.write_bytes(framed(header, bytes(12)))
    start = path.stat().st_size - 12
    assert read_header(path)[0] == {
        "later": TensorHeader("F32", (2,), start + 4, start + 12),
        "empty": TensorHeader("F32", (0, 7), start + 4, start + 4),
        "scalar": TensorHeader("F32", (), start, start + 4),
    }


def test_file_without_tensors_is_an_empty_dict(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(framed({}))
    assert read_header(path)[0] == {}


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
        torch.bool,
    ],
    ids=str,
)
def test_agrees_with_safetensors(dtype, tmp_path):
    path = tmp_path / "model.safetensors"
    shapes = {"matrix": (3, 5), "scalar": (), "empty": (0, 4), "odd": (7,), "é\n": (1, 2, 3)}
    written = {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}
    save_file(written, path, metadata={"format": "pt"})
    found = read_header(path)[0]
    with safe_open(path, "pt") as theirs:
        names = theirs.keys()
        slices = {name: theirs.get_slice(name) for name in names}
        assert {name: (one.dtype, list(one.shape)) for name, one in found.items()} == {
            name: (one.get_dtype(), one.get_shape()) for name, one in slices.items()
        }
    for name, one in found.items():
        assert one.end - one.begin == written[name].nbytes
        assert DTYPES[one.dtype] == 8 * dtype.itemsize


def check_read_or_refused(path) -> dict[str, TensorHeader] | None:
    """What ``read_header`` makes of a file: tensors that tile it, or None and an error of one line; all else fails."""
    tensors, message = None, ""
    try:
        tensors = read_header(path)[0]
    except InputError as error:
        message = str(error)
    assert "\n" not in message
    if tensors is None:
        return None
    size = path.stat().st_size
    ordered = sorted(tensors.values(), key=lambda tensor: (tensor.begin, tensor.end))
    position = ordered[0].begin if ordered else size
    for tensor in ordered:
        assert tensor.begin == position
        position = tensor.end
    assert position == size
    return tensors


fuzz = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])

valid_file = framed(
    {
        "__metadata__": {"format": "pt"},
        "a.weight": entry("BF16", [2, 3], [0, 12]),
        "b.weight": entry("F32", [2], [12, 20]),
        "c": entry("I8", [], [20, 21]),
    },
    bytes(21),
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(sorted(DTYPES)),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=8), values, max_size=4),
    max_leaves=8,
)
almost_entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F4"]) | json_values,
        "shape": st.lists(st.integers(0, 4), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(0, 16), min_size=2, max_size=2) | json_values,
    }
)


@fuzz
@given(content=st.binary(max_size=300))
def test_random_bytes(tmp_path, content):
    path = tmp_path / "fuzz.safetensors"
    path.write_bytes(content)
    check_read_or_refused(path)


@fuzz
@given(text=st.binary(max_size=200), payload=st.binary(max_size=16))
def test_random_bytes_behind_a_true_length(tmp_path, text, payload):
    path = tmp_path / "fuzz.safetensors"
    path.write_bytes(framed(text, payload))
    check_read_or_refused(path)


@fuzz
@given(
    header=st.dictionaries(st.text(max_size=4), almost_entries | json_values, max_size=3),
    payload=st.binary(max_size=32),
)
def test_random_json(tmp_path, header, payload):
    path = tmp_path / "fuzz.safetensors"
    path.write_bytes(framed(header, payload))
    check_read_or_refused(path)


@fuzz
@given(
    changes=st.lists(st.tuples(st.integers(0, len(valid_file) - 1), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, len(valid_file)),
    whole=st.booleans(),
)
def test_mutated_file(tmp_path, changes, cut, whole):
    content = bytearray(valid_file)
    for position, byte in changes:
        content[position] = byte
    path = tmp_path / "fuzz.safetensors"
    path.write_bytes(content if whole else content[:cut])
    ours = check_read_or_refused(path)
    if ours is None:
        return
    try:
        with safe_open(path, "np") as theirs:
            names = theirs.keys()
            shapes = {name: theirs.get_slice(name).get_shape() for name in names}
    except SafetensorError:
        return  # it refuses some headers that have nothing to do with where tensors lie, such as odd metadata
    assert {name: list(tensor.shape) for name, tensor in ours.items()} == shapes


def test_reading_headers_does_not_import_torch(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(valid_file)
    program = (
        "import sys, docs_sim.checkpoint; docs_sim.checkpoint.open_checkpoint(sys.argv[1]); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
