"""Ends that come early: interpreter shutdown, fork, a dropped engine. None hangs or crashes.

Each case is a program of its own, so that a crash is a status and a hang a timeout.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Run = Callable[[str], subprocess.CompletedProcess[str]]

# Two tensors of 64 MiB: their jobs take milliseconds, so that they are still in flight.
SETUP = """
import gc, os, sys, threading
import numpy as np, torch
from kvferry import CPULoadStoreSpec, CpuGpuOffloadingHandlers, GPULoadStoreSpec
import kvferry

def make():
    # By numpy: torch's own threads do not survive a fork.
    pages = [torch.from_numpy(np.zeros((64, 1 << 20), np.uint8)) for _ in range(2)]
    return CpuGpuOffloadingHandlers(pages, 1, 64, compute_stream=None)

everything = np.arange(64)
spec = (GPULoadStoreSpec(everything), CPULoadStoreSpec(everything))
small = (GPULoadStoreSpec([0]), CPULoadStoreSpec([0]))
"""

ENDINGS = {
    "with a job in flight": """
handlers = make()
assert handlers.gpu_to_cpu_handler.transfer_async(0, spec)
""",
    "by sys.exit in a function that holds the engine": """
def main():
    handlers = make()
    assert handlers.gpu_to_cpu_handler.transfer_async(0, spec)
    sys.exit(0)
main()
""",
    "with an engine in a cycle": """
handlers = make()
handlers.gpu_to_cpu_handler.loop = handlers
assert handlers.gpu_to_cpu_handler.transfer_async(0, spec)
""",
    "while a daemon thread waits": """
handlers = make()
assert handlers.gpu_to_cpu_handler.transfer_async(0, spec)
threading.Thread(target=lambda: handlers.gpu_to_cpu_handler.wait([0]), daemon=True).start()
""",
    "after the engine was dropped with a job in flight": """
handlers = make()
assert handlers.gpu_to_cpu_handler.transfer_async(0, spec)
del handlers
gc.collect()
""",
    "after the tensors were dropped before the engine": """
handlers = make()
for job in range(4):
    handlers.gpu_to_cpu_handler.transfer_async(job, spec) if job == 0 else None
gc.collect()
assert handlers.gpu_to_cpu_handler.wait([0])
""",
    "after an exception between two submits": """
handlers = make()
try:
    assert handlers.gpu_to_cpu_handler.transfer_async(0, spec)
    raise RuntimeError("the scheduler failed")
except RuntimeError:
    pass
assert handlers.gpu_to_cpu_handler.wait([0])
assert handlers.gpu_to_cpu_handler.transfer_async(1, small)
assert handlers.gpu_to_cpu_handler.wait([1])
assert [r.success for r in handlers.gpu_to_cpu_handler.get_finished()] == [True, True]
""",
    "in many engines one after the other": """
for _ in range(20):
    handlers = make()
    assert handlers.gpu_to_cpu_handler.transfer_async(0, spec)
""",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends(ending: str, run_script: Run) -> None:
    result = run_script(SETUP + ENDINGS[ending])
    assert (result.returncode, result.stderr) == (0, "")


FORK = """
import warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)  # fork beside threads
handlers = make()
{before}
child = os.fork()
if child == 0:
    store = handlers.gpu_to_cpu_handler
    try:
        store.transfer_async(100, small)
    except kvferry.StateError as error:
        assert "fork" in str(error), error
    else:
        os._exit(3)
    assert store.get_finished() == []
    assert store.wait([0])
    handlers.stats()
    handlers.shutdown()
    del store, handlers
    gc.collect()
    # An engine of the child's own works.
    mine = make()
    assert mine.gpu_to_cpu_handler.transfer_async(0, spec)
    assert mine.gpu_to_cpu_handler.wait([0])
    assert mine.gpu_to_cpu_handler.get_finished()[0].success
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert handlers.gpu_to_cpu_handler.wait([0])
assert handlers.gpu_to_cpu_handler.transfer_async(1, small)
assert handlers.gpu_to_cpu_handler.wait([1])
"""


@pytest.mark.parametrize(
    "before",
    [
        "assert handlers.gpu_to_cpu_handler.transfer_async(0, spec)",
        """assert handlers.gpu_to_cpu_handler.transfer_async(0, spec)
assert handlers.gpu_to_cpu_handler.wait([0])""",
    ],
    ids=["with a job in flight", "with an idle engine"],
)
def test_a_forked_child_is_told_and_ends(before: str, run_script: Run) -> None:
    result = run_script(SETUP + FORK.format(before=before))
    assert (result.returncode, result.stderr) == (0, "")


def test_an_engine_that_was_not_used_before_a_fork_works_in_the_child(run_script: Run) -> None:
    result = run_script(
        SETUP
        + """
handlers = make()
child = os.fork()
assert handlers.gpu_to_cpu_handler.transfer_async(0, spec)
assert handlers.gpu_to_cpu_handler.wait([0])
assert handlers.gpu_to_cpu_handler.get_finished()[0].success
if child:
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
"""
    )
    assert (result.returncode, result.stderr) == (0, "")
