"""The program, run in this process."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs_sim.__main__ import main


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


@pytest.fixture
def model(write_model, llama_tensors) -> Path:
    """A Llama of four layers with a config."""
    return write_model(llama_tensors(4), config={"architectures": ["LlamaForCausalLM"]})
