"""Every command and example of the README is run, and prints what the README shows."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from docs_sim.__main__ import main
from docs_sim.checkpoint import open_checkpoint
from docs_sim.checkpoint.layout import GROUPS
from docs_sim.checkpoint.layout_file import _KEYS
from docs_sim.checkpoint.rows import RULES
from docs_sim.engine.device import product_dtype

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [
    (command, shown)
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for command, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]
LAYOUTS = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def beside_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory like the repository's, without its files."""
    (tmp_path / "real-models").symlink_to(ROOT / "real-models")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def comparable(text: str) -> list[str]:
    """Lines without what differs between machines: times, the folder of the package, and int8 where there is none."""
    if product_dtype(torch.device("cpu")) != torch.int8:
        text = text.replace(" on cpu in int8", " on cpu in float32")
    text = re.sub(r"[\d.]+ s on cpu", "s on cpu", text)
    return [re.sub(r"\S*(docs_sim/demo/)", r"\1", line) for line in text.strip().splitlines()]


def words(text: str) -> list[list[str]]:
    """Of each line, without its numbers and the space between columns, which depends on them."""
    return [NUMBER.sub("#", line).split() for line in comparable(text)]


def numbers(text: str) -> list[float]:
    """All of them: another machine may round the last digit the other way."""
    return [float(number) for line in comparable(text) for number in NUMBER.findall(line)]


@pytest.mark.parametrize(("command", "shown"), COMMANDS, ids=[command for command, _ in COMMANDS])
@pytest.mark.usefixtures("beside_the_models")
def test_command(command: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if "real-models" in command and not (ROOT / "real-models" / "installed").exists():
        pytest.skip("`make test` installs the real models")
    monkeypatch.setattr("sys.argv", shlex.split(command))
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert words(printed) == words(shown)
    assert numbers(printed) == pytest.approx(numbers(shown), rel=2e-3, abs=2e-4)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example: str, beside_the_models: Path) -> None:
    exec(compile(example, "README.md", "exec"), {})
    assert (beside_the_models / "docs-sim-out" / "from-python" / "heatmap.pdf").exists()


def test_linked_files_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert all((ROOT / link).exists() for link in links if "://" not in link)


def test_makefile_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("$(REAL)", "real-models")
    targets = re.findall(r"make ([\w/-]+)`", README)
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_layout_file_of_the_readme_is_understood(tmp_path: Path) -> None:
    (text,) = LAYOUTS
    (tmp_path / "mine.toml").write_text(text)
    tensors = {
        f"net.blocks.{layer}.{path}.weight": torch.randn(shape)
        for layer in range(2)
        for path, shape in {
            "att.qkv": (32, 16),
            "att.out": (16, 16),
            "ffn.second": (24, 16),
            "moe.0.first": (8, 16),
            "moe.0.second": (16, 8),
        }.items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path, layout=tmp_path / "mine.toml")
    assert checkpoint.unnamed == checkpoint.unused_paths == ()
    assert {matrix.name for matrix in checkpoint.matrices()} == {
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_o",
        "mlp_down",
        "mlp_up",
    }


def test_the_readme_knows_all_keys_and_rules_of_layout_files() -> None:
    words = {word for code in re.findall(r"`([^`\n]+)`", README) for word in re.split(r"[\[\].=]+", code)}
    assert {*_KEYS, *GROUPS, *RULES} - {"layers", "extends"} <= words
