"""Engines for tests: one process runs them one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

HERE = Path(__file__).parent
# The pool holds one request and little more: nothing of it is left when it comes again.
ENGINES: dict[str, dict[str, Any]] = {
    "llama": {"block_size": 32, "num_gpu_blocks_override": 40, "max_model_len": 1024},
    "hybrid": {"block_size": 32, "num_gpu_blocks_override": 150, "max_model_len": 1024},
    "mla": {"block_size": 16, "num_gpu_blocks_override": 80, "max_model_len": 1024},
}

Step = tuple[str, dict[str, Any]]


class EngineProcess:
    """A process that runs engines. It starts with the first one, and again after a failure."""

    def __init__(self, models: Path, log: Path, environment: dict[str, str]) -> None:
        self._models = models
        self._log = log
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self._baselines: dict[str, dict[str, Any]] = {}

    def run(self, *steps: Step, **wanted: Any) -> dict[str, Any]:
        """Run an engine, take the steps, end it."""
        self.ask(*steps, **wanted)
        return self.answer()

    def without(
        self, model: str = "llama", engine: dict[str, Any] | None = None, **wanted: Any
    ) -> dict[str, Any]:
        """What an engine without offloading answers; the same question is asked once."""
        key = json.dumps([model, engine, wanted], sort_keys=True)
        if key not in self._baselines:
            found = self.run(("round", wanted), model=model, connector=None, engine=engine)
            self._baselines[key] = found["steps"][0]
        return self._baselines[key]

    def ask(
        self,
        *steps: Step,
        model: str = "llama",
        connector: str | None = "KvferryConnector",
        settings: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = None,
        faults: dict[str, tuple[int, int]] | None = None,
        **rest: Any,
    ) -> None:
        """Have an engine run; `answer` waits for it.

        Args:
            steps: Methods of `session.Session`, with their arguments.
            model: Which of the tiny models.
            connector: vLLM's name of it; None is no offloading.
            settings: kvferry's.
            engine: What differs from `ENGINES`.
            faults: For `store` and `load`: each how many fail, and how often.
            rest: Whatever else a session takes.
        """
        wanted = {
            "steps": steps,
            "model": str(self._model(model)),
            "connector": connector,
            "settings": {"spec_name": "kvferry", "size": "64MiB", **(settings or {})},
            "engine": ENGINES[model] | (engine or {}),
            "faults": faults or {},
            **rest,
        }
        if self._process is None:
            with self._log.open("a") as log:
                self._process = subprocess.Popen(
                    [sys.executable, str(HERE / "server.py")],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**os.environ, **self._environment},
                )
        _pipe(self._process.stdin).write(json.dumps(wanted) + "\n")
        _pipe(self._process.stdin).flush()

    def answer(self) -> dict[str, Any]:
        """What the engine did."""
        try:
            answer = self._line()
        except BaseException:
            # A test ran out of time, say: the answer would be taken for the next one's.
            self.end()
            raise
        if "error" in answer:
            self.end()
            raise AssertionError(f"the engine failed:\n{answer['error']}\n{self._tail()}")
        return answer

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _line(self) -> dict[str, Any]:
        assert self._process is not None
        for line in _pipe(self._process.stdout):
            if line.startswith("result: "):
                answer: dict[str, Any] = json.loads(line.removeprefix("result: "))
                return answer
        return {"error": "its process ended"}

    def _model(self, name: str) -> Path:
        destination = self._models / name
        if not (destination / "complete.json").exists():
            command = [sys.executable, str(HERE.parent / "models.py"), name, str(destination)]
            subprocess.run(command, check=True, capture_output=True)
        return destination

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models are made; a folder of one's own keeps them for the next time."""
    kept = os.environ.get("KVFERRY_MODELS")
    return Path(kept) if kept else tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def engines(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """The process that runs engines."""
    process = EngineProcess(models, tmp_path_factory.mktemp("engine") / "log", {})
    yield process
    process.end()
