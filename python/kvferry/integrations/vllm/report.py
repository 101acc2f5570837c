"""What kvferry says once when an engine starts."""

from collections.abc import Sequence

from kvferry._core import __version__
from kvferry.integrations.vllm.config import HostTier, Settings, human_bytes
from kvferry.integrations.vllm.support import installed_release

__all__ = ["start_line"]


def start_line(
    settings: Settings,
    host_tier: HostTier,
    tokens_per_chunk: Sequence[int],
    *,
    prompts_only: bool,
) -> str:
    """The resolved configuration in one line.

    Args:
        settings: The user's.
        host_tier: What they come to.
        tokens_per_chunk: For each KV-cache group.
        prompts_only: Whether what a request generates is left out.
    """
    tokens = sorted(set(tokens_per_chunk))
    per_token = host_tier.bytes_per_chunk / tokens[-1]
    parts = [
        f"{host_tier.chunks:,} chunks of {'/'.join(map(str, tokens))} tokens",
        f"{human_bytes(host_tier.bytes_per_chunk)} a chunk ({per_token:,.0f} bytes a token)",
        f"policy {settings.policy}",
    ]
    if host_tier.ranks > 1:
        parts.append(f"{host_tier.ranks} ranks")
    if settings.store_threshold > 1:
        parts.append(f"store_threshold {settings.store_threshold}")
    if prompts_only:
        parts.append("prompts only")
    return (
        f"kvferry {__version__} for vLLM {installed_release() or 'from source'}: "
        f"host tier of {human_bytes(host_tier.bytes)}: {', '.join(parts)}"
    )
