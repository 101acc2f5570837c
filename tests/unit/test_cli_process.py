"""The command as a process of its own: terminals, signals, what is installed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = [sys.executable, "-m", "kvferry.cli"]
# Some minutes of work: whatever ends earlier was ended.
LONG = ["replay", "--policy", "lru", "--chunk-tokens", "64", "--capacity", ",".join(["5%"] * 500)]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """The two ends of a pseudo-terminal: what a program writes to, what a person sees."""
    seen, written = pty.openpty()
    try:
        yield seen, written
    finally:
        os.close(seen)


def test_without_a_terminal_there_is_no_bar_and_no_escape_sequence() -> None:
    result = run(*COMMAND, "replay", "--policy", "lru", "--capacity", "5%")
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    assert "lru" in result.stdout


def test_the_installed_script_is_the_command() -> None:
    script = os.path.join(os.path.dirname(sys.executable), "kvferry")  # noqa: PTH118, PTH120 - a link must stay
    result = run(script, "--version")
    assert (result.returncode, result.stdout.split()[0]) == (0, "kvferry")


def test_errors_have_status_2_and_no_traceback() -> None:
    result = run(*COMMAND, "replay", "/nonexistent/trace")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("kvferry: /nonexistent/trace: No such file")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_without_the_extra_the_command_says_how_to_get_it(module: str) -> None:
    program = f"import sys; sys.modules[{module!r}] = None; from kvferry.cli import main; main()"
    result = run(sys.executable, "-c", program)
    assert (result.returncode, result.stdout) == (2, "")
    expected = f"the command line needs {module}, which is not installed"
    assert expected in result.stderr
    assert "pip install 'kvferry[cli]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_importing_the_package_loads_nothing_of_the_command() -> None:
    program = "import kvferry, sys; print({'typer', 'rich', 'matplotlib'} & set(sys.modules))"
    assert run(sys.executable, "-c", program).stdout == "set()\n"


def test_a_terminal_shows_a_bar_and_an_interrupt_ends_it_with_status_130() -> None:
    with terminal() as (seen, written):
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
        process = subprocess.Popen(
            [*COMMAND, *LONG], stdout=subprocess.PIPE, stderr=written, env=environment
        )
        os.close(written)
        shown = b""
        try:
            while b"lru 5%" not in shown:
                shown += os.read(seen, 4096)
            process.send_signal(signal.SIGINT)
            while True:
                try:
                    piece = os.read(seen, 4096)
                except OSError:  # The program has closed its end.
                    break
                if not piece:
                    break
                shown += piece
            assert process.wait(timeout=30) == 130
        finally:
            process.kill()
            output, _ = process.communicate()
    assert output == b""
    assert b"kvferry: interrupted" in shown
    assert b"Traceback" not in shown


def test_an_interrupt_without_a_terminal_ends_it_with_status_130() -> None:
    # The same command, which tells on its standard output when the replay starts.
    program = (
        "import sys\n"
        "from kvferry import _core\n"
        "replay = _core.replay\n"
        "def started(*arguments, **options):\n"
        "    print('started', flush=True)\n"
        "    return replay(*arguments, **options)\n"
        "_core.replay = started\n"
        f"sys.argv[1:] = {LONG!r}\n"
        "from kvferry.cli import main\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, "", "kvferry: interrupted\n")
