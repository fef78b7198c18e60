"""Results on disk: of one run, whole, or not there."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from docs_sim.errors import InputError
from docs_sim.report.files import check_replaceable, earlier_result, reserved, write_files


def files(mark: str, *, figure: str = "png") -> dict[str, bytes]:
    return {"result.json": mark.encode(), "grid.csv": mark.encode(), f"heatmap.{figure}": mark.encode()}


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


@pytest.mark.parametrize("step", [1, 2, 3])
def test_where_a_result_is_all_files_are_of_its_run(step, tmp_path, failing_replace):
    write_files(tmp_path, files("old"))
    failing_replace(step)
    with pytest.raises(InputError, match="No space left"):
        write_files(tmp_path, files("new"))
    assert "result.json" not in contents(tmp_path)


def test_stale_figures_go_also_after_a_run_that_failed(tmp_path, failing_replace, monkeypatch):
    write_files(tmp_path, files("old", figure="svg"))
    with monkeypatch.context():
        failing_replace(2)
        with pytest.raises(InputError):
            write_files(tmp_path, files("failed"), stale=["heatmap.svg"])
    monkeypatch.undo()
    write_files(tmp_path, files("new"), stale=["heatmap.svg"])
    assert contents(tmp_path) == dict.fromkeys(["result.json", "grid.csv", "heatmap.png"], "new")


@pytest.mark.parametrize("other", ['{"loss": 0.1}', "[]", "null", "notes", "\ufeff{}"])
def test_results_of_others_are_not_replaced(other, tmp_path):
    (tmp_path / "result.json").write_text(other)
    with pytest.raises(InputError, match="not of docs-sim"):
        check_replaceable(tmp_path)
    with pytest.raises(InputError, match="not of docs-sim"), reserved(tmp_path):
        pass
    for own in ('{"docs_sim": "0.1.0"}', "\0" * 100, ""):
        (tmp_path / "result.json").write_text(own)
        check_replaceable(tmp_path)


def test_a_pipe_in_place_of_a_result_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "result.json")
    check_replaceable(tmp_path)
    assert earlier_result(tmp_path) == {}


def test_figures_of_others_stay(tmp_path):
    (tmp_path / "heatmap.svg").write_text("mine")
    write_files(tmp_path, files("new"), stale=["heatmap.svg"])
    assert contents(tmp_path)["heatmap.svg"] == "mine"


def test_runs_at_once_do_not_mix_their_files(tmp_path, monkeypatch):
    pytest.importorskip("fcntl")
    replace = Path.replace

    def slow(self: Path, target: Path) -> Path:
        time.sleep(0.02)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", slow)
    runs = [threading.Thread(target=write_files, args=(tmp_path, files(str(number)))) for number in range(6)]
    for run in runs:
        run.start()
        time.sleep(0.03)
    for run in runs:
        run.join()
    assert len(set(contents(tmp_path).values())) == 1


@pytest.mark.parametrize("text", [None, "", "{", "[]", "[" * 100_000, b"\xff"])
def test_what_is_no_earlier_result(text, tmp_path):
    if text is not None:
        (tmp_path / "result.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert earlier_result(tmp_path) == {}
    (tmp_path / "result.json").write_text(json.dumps({"schema": 1}))
    assert earlier_result(tmp_path) == {"schema": 1}
