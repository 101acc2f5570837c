"""The commands and their options."""

from typing import Annotated

import typer

from kvferry import __version__
from kvferry.cli.replay import replay
from kvferry.cli.vllm_config import vllm_config

__all__ = ["app"]

app = typer.Typer(
    help="Bookkeeping for KV-cache offloading: what a host tier would do on your traffic.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvferry {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Options of `kvferry` itself."""


app.command()(replay)
app.command("vllm-config")(vllm_config)
