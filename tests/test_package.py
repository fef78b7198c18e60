"""The distribution: a wheel that holds everything and runs by itself, floors whose imports point one way."""

import ast
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# A floor may import itself and the floors named beside it; every floor may use the errors.
FLOORS = {
    "cli": {"analyses", "engine", "checkpoint", "report"},
    "analyses": {"engine", "checkpoint", "indices", "report"},
    "engine": {"checkpoint", "indices"},
    "checkpoint": set(),
    "indices": set(),
    "report": set(),
    "demo": set(),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build folder in the tree would hand old files on."""
    out = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, out)
    for folder in ("docs_sim", "cli"):
        shutil.copytree(ROOT / folder, out / folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "."]
    subprocess.run(command, check=True, cwd=out)
    return next(out.glob("docs_sim-*.whl"))


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    files = [path for folder in ("docs_sim", "cli") for path in (ROOT / folder).rglob("*") if path.is_file()]
    names = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    expected = {f"docs_sim/{name}" if name.startswith("cli/") else name for name in names}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("docs_sim/")}
    assert held == expected


def test_the_wheel_runs_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True)
    program = (
        "import docs_sim, docs_sim.cli.app as app, docs_sim.__main__ as start; "
        f"assert {str(site)!r} in docs_sim.__file__ and {str(site)!r} in app.__file__; start.main()"
    )
    command = [sys.executable, "-c", program, "heatmap", "demo", "--matrix", "mlp_up"]
    subprocess.run(command, check=True, cwd=tmp_path, env={"PYTHONPATH": str(site), "HOME": str(tmp_path)})
    assert (tmp_path / "docs-sim-out" / "heatmap-demo-mlp_up" / "heatmap.png").stat().st_size > 10_000


def test_every_package_is_declared() -> None:
    folders = {path.parent for path in (ROOT / "docs_sim").rglob("*.py")} | {ROOT / "cli"}
    names = {str(folder.relative_to(ROOT)).replace("/", ".").replace("cli", "docs_sim.cli") for folder in folders}
    assert names == set(PROJECT["tool"]["setuptools"]["packages"])


def imported_floors(source: Path) -> set[str]:
    tree = ast.parse(source.read_text())
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert all(node.level < 2 for node in imports), f"{source} imports from above by a relative name"
    modules += [node.module for node in imports if node.module]
    return {parts[1] for parts in (module.split(".") for module in modules) if parts[0] == "docs_sim" and parts[1:]}


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_point_one_way(floor: str) -> None:
    folder = ROOT / "cli" if floor == "cli" else ROOT / "docs_sim" / floor
    errors = set() if floor == "indices" else {"errors"}
    for source in folder.rglob("*.py"):
        assert imported_floors(source) <= FLOORS[floor] | {floor} | errors, source
