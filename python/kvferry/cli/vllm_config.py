"""`kvferry vllm-config`: the arguments that make kvferry the host tier of `vllm serve`."""

import json
import shlex
import sys
from typing import Annotated

import typer

from kvferry.integrations.vllm.config import ConfigError, Settings, Share
from kvferry.integrations.vllm.plugin import CONNECTOR, SPEC
from kvferry.integrations.vllm.support import (
    SUPPORTED,
    Generation,
    generation_of,
    installed_release,
)

__all__ = ["vllm_config"]

_GIB = 1 << 30
_EXTRA = "--kv-transfer-config.kv_connector_extra_config"


def vllm_config(
    size: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help='Host memory of an engine: "64GiB", or "50%" of the machine\'s.'
        ),
    ],
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which chunks leave a full tier: lru, arc.")
    ] = None,
    blocks_per_chunk: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Blocks of a chunk.")
    ] = None,
    recompute_failed_loads: Annotated[
        bool,
        typer.Option(
            "--recompute-failed-loads",
            help="Recompute what could not be loaded instead of stopping the engine.",
        ),
    ] = False,
    release: Annotated[
        str | None,
        typer.Option(metavar="R", help="The release of vLLM.", show_default="the installed one"),
    ] = None,
) -> None:
    """Print the arguments for `vllm serve MODEL`, ready to paste."""
    extra: dict[str, object] = {}
    if policy is not None:
        extra["policy"] = policy
    if blocks_per_chunk is not None:
        extra["blocks_per_chunk"] = blocks_per_chunk
    try:
        generation = _generation(release, recompute_failed_loads)
        settings = Settings.read({**extra, "size": size})
    except ConfigError as error:
        sys.stderr.write(f"kvferry: {error}\n")
        raise typer.Exit(2) from None
    typer.echo(shlex.join(_arguments(settings, size, extra, generation, recompute_failed_loads)))


def _generation(release: str | None, recompute: bool) -> Generation:
    found = release or installed_release()
    if found is None:
        raise ConfigError("vLLM is not installed here: name its release, as in --release 0.32.0")
    generation = generation_of(found)
    if generation is None:
        runs = ", ".join(known.releases for known in SUPPORTED)
        raise ConfigError(f"vLLM {found} is none of those that kvferry serves: {runs}")
    if recompute and not generation.recompute:
        raise ConfigError(
            f"vLLM {generation.releases} stops at a failed load, whatever connector it has: "
            "leave --recompute-failed-loads out"
        )
    return generation


def _arguments(
    settings: Settings,
    size: str,
    extra: dict[str, object],
    generation: Generation,
    recompute: bool,
) -> list[str]:
    bytes_ = settings.size
    if generation.size_flag and not recompute and not isinstance(bytes_, Share) and bytes_:
        # vLLM's own flag counts in GiB.
        arguments = ["--kv-offloading-size", f"{bytes_ / _GIB:.10g}"]
        for name, value in {"spec_name": SPEC, **extra}.items():
            arguments += [f"{_EXTRA}.{name}", str(value)]
        return arguments
    transfer: dict[str, object] = {
        "kv_connector": CONNECTOR if recompute else "OffloadingConnector",
        "kv_role": "kv_both",
    }
    if recompute:
        transfer["kv_load_failure_policy"] = "recompute"
    else:
        extra = {"spec_name": SPEC, **extra}
    transfer["kv_connector_extra_config"] = {**extra, "size": size}
    return ["--kv-transfer-config", json.dumps(transfer)]
