"""The command `kvferry`.

What it needs beyond the package comes with the extra `cli`; without it the command says how to get
it.
"""

import sys

__all__ = ["main"]

_EXTRA = frozenset({"rich", "typer"})


def main() -> None:
    """Runs the command with the arguments of the process and exits with its status."""
    try:
        from kvferry.cli.app import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        sys.stderr.write(
            f"kvferry: the command line needs {package}, which is not installed: "
            "pip install 'kvferry[cli]'\n"
        )
        sys.exit(2)
    try:
        app(prog_name="kvferry")
    except KeyboardInterrupt:  # Outside any command, which has its own answer.
        sys.exit(130)
