"""The distributions: complete, buildable in an empty environment, and light to import."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

# What a source distribution may lack: each is of use in a git checkout only.
NOT_IN_SDIST = {".gitignore", ".ci/run"}
# What it has beyond the checkout: its metadata.
ONLY_IN_SDIST = {"PKG-INFO"}

TOOLS = Path(sysconfig.get_path("scripts"))

# Settings that would let the surrounding environment into an isolated build.
LEAKS = ("PYTHON", "VIRTUAL_ENV", "PYO3_", "MATURIN_", "CARGO_BUILD_", "RUSTFLAGS", "CONDA")


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(LEAKS)} | variables
    result = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def workspace_version(root: Path) -> str:
    manifest = tomllib.loads((root / "Cargo.toml").read_text())
    return str(manifest["workspace"]["package"]["version"])


def normal(version: str) -> str:
    """Cargo's spelling of a version in Python's: 0.2.0-rc.1 is 0.2.0rc1."""
    return re.sub(
        r"-(alpha|beta|rc)\.?", lambda m: {"alpha": "a", "beta": "b"}.get(m[1], "rc"), version
    )


@pytest.fixture(scope="module")
def sdist(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution of this tree."""
    folder = tmp_path_factory.mktemp("sdist")
    run(TOOLS / "maturin", "sdist", "--out", folder, cwd=repository)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


@pytest.fixture(scope="module")
def wheel(repository: Path, sdist: Path) -> Path:
    """The wheel that the unpacked source distribution builds in an environment of its own."""
    # The target folder is shared, so that dependencies are compiled once. The crates of the
    # workspace must not be: cargo tells them apart by a path that is relative to the workspace and
    # by the age of their files, and would take this tree's crates for the unpacked ones. A compiler
    # wrapper gives them another identity, and new times make each build start with them.
    target = Path(os.environ.get("CARGO_TARGET_DIR", repository / "target")).absolute()
    wrapper = target / "sdist-rustc"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text('#!/bin/sh\nexec "$@"\n')
    wrapper.chmod(0o755)
    for source in sdist.rglob("*.rs"):
        os.utime(source)
    out = sdist.parent / "wheel"
    run(
        *(TOOLS / "uv", "build", "--wheel", "--python", sys.executable, "--out-dir", out, sdist),
        cwd=sdist.parent,
        CARGO_TARGET_DIR=str(target),
        RUSTC_WORKSPACE_WRAPPER=str(wrapper),
    )
    (built,) = out.glob("*.whl")
    return built


def test_sdist_holds_the_whole_tree_and_nothing_else(repository: Path, sdist: Path) -> None:
    if not (repository / ".git").exists():
        pytest.skip("not a git checkout: there is no list of files to compare with")
    listing = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=repository)
    tree = {name for name in listing.splitlines() if (repository / name).exists()}
    packed = {str(path.relative_to(sdist)) for path in sdist.rglob("*") if path.is_file()}
    assert tree - packed == NOT_IN_SDIST
    assert packed - tree == ONLY_IN_SDIST


def test_sdist_keeps_every_member_of_the_workspace(repository: Path, sdist: Path) -> None:
    def members(root: Path) -> list[str]:
        return list(tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["members"])

    assert members(sdist) == members(repository)
    assert all((sdist / member / "Cargo.toml").is_file() for member in members(sdist))
    assert (sdist / "Cargo.lock").read_bytes() == (repository / "Cargo.lock").read_bytes()


@pytest.mark.packaging
def test_wheel_built_from_the_sdist_is_for_every_python_from_3_11(wheel: Path) -> None:
    # abi3: one wheel loads in every Python from 3.11 on. A wheel that is built where it is used
    # carries this platform's own tag; `make wheel` links the one to hand out for manylinux_2_28.
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.stem.split("-")[2:] == ["cp311", "abi3", platform]


@pytest.mark.packaging
def test_wheel_holds_the_package_and_its_types(repository: Path, wheel: Path) -> None:
    package = repository / "python"
    expected = {
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.suffix in {".py", ".pyi", ".typed"}
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {PurePosixPath(name) for name in archive.namelist()}
    inside = {path for path in names if not path.parts[0].endswith(".dist-info")}
    native = {path for path in inside if path.suffix == ".so"}
    assert {str(path) for path in inside - native} == expected
    assert [path.name.split(".")[0] for path in native] == ["_core"]
    assert any(path.name == "LICENSE" for path in names)


@pytest.mark.packaging
def test_wheel_works_in_an_environment_with_the_oldest_numpy_alone(
    repository: Path, wheel: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "venv"
    python = environment / "bin" / "python"
    run(TOOLS / "uv", "venv", "--python", sys.executable, environment, cwd=tmp_path)
    install = (TOOLS / "uv", "pip", "install", "--python", python, "--only-binary", ":all:")
    run(*install, "--resolution", "lowest", wheel, cwd=tmp_path)
    installed = run(TOOLS / "uv", "pip", "list", "--python", python, cwd=tmp_path)
    assert re.findall(r"^([\w-]+) +\d", installed, re.MULTILINE) == ["kvferry", "numpy"]
    smoke = shutil.copy(repository / "scripts" / "smoke.py", tmp_path)
    assert "works" in run(python, smoke, cwd=tmp_path)


def test_import_loads_neither_torch_nor_vllm_nor_the_command_line() -> None:
    program = "import sys, numpy; before = set(sys.modules); import kvferry; "
    program += "print(*sorted(set(sys.modules) - before))"
    loaded = run(sys.executable, "-c", program, cwd=Path.cwd()).split()
    print(f"import kvferry loads {len(loaded)} modules beyond numpy: {' '.join(loaded)}")
    roots = {name.split(".")[0] for name in loaded}
    assert "kvferry" in roots
    foreign = roots - {"kvferry", "numpy"} - sys.stdlib_module_names
    assert not foreign, foreign
    assert not {name for name in loaded if name.startswith(("kvferry.cli", "kvferry.integrations"))}


def test_versions_agree(repository: Path) -> None:
    import kvferry

    version = workspace_version(repository)
    assert kvferry.__version__ == version
    assert importlib.metadata.version("kvferry") == normal(version)
    # pyproject.toml leaves the version to Cargo.toml.
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    changelog = (repository / "CHANGELOG.md").read_text()
    assert version in changelog, f"CHANGELOG.md does not mention {version}"


def test_crates_of_the_workspace_share_its_version(repository: Path) -> None:
    manifest = tomllib.loads((repository / "Cargo.toml").read_text())["workspace"]
    for member in manifest["members"]:
        package = tomllib.loads((repository / member / "Cargo.toml").read_text())["package"]
        assert package["version"] == {"workspace": True}, member
    for name, dependency in manifest["dependencies"].items():
        if "path" in dependency:
            assert dependency["version"] == workspace_version(repository), name
