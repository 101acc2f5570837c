"""Asks a real vLLM engine on the CPU the same prompts again, without kvferry and with it.

The engine's block pool holds one prompt and a half, so that nothing of a prompt is left on the
device when it comes again: without a host tier it is computed again, with kvferry it is loaded. The
model is tiny and random, made from a fixed seed; nothing is downloaded. On the CPU the device's
memory is host memory too: the seconds show that loading replaces computing, not what a GPU gains.

Usage: `python demo_vllm.py [--models FOLDER] [--prompts N] [--length TOKENS]`, with the Python of
an environment that has vLLM and kvferry. Exits with 1 if the answers differ or nothing was loaded.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm import LLM

# Before vLLM is imported. With the engine in this process, nothing else has to start.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

MODELS = Path(__file__).resolve().parents[1] / "tests" / "vllm" / "models.py"
VOCABULARY = 1000
BLOCK = 32
ANSWER = 8
ROUNDS = 6
HOST_GIB = 0.25
CLOSE = 0.01
"""Log-probabilities of one prompt, computed in two ways, differ by less."""


@dataclass
class Round:
    """What an engine answered, and what that took.

    Attributes:
        loaded: Tokens that came from the host tier.
    """

    tokens: list[list[int]]
    logprobs: list[float]
    seconds: float
    loaded: int


def main() -> int:
    arguments = _arguments()
    model = arguments.models / "llama"
    command = [sys.executable, str(MODELS), "llama", str(model)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rng = random.Random(1)  # noqa: S311 - the same prompts each time
    prompts = [
        [rng.randrange(3, VOCABULARY) for _ in range(arguments.length)]
        for _ in range(arguments.prompts)
    ]
    blocks = arguments.length * 3 // 2 // BLOCK
    print(
        f"{arguments.prompts} prompts of {arguments.length:,} tokens, {ROUNDS} times, to a tiny "
        f"Llama on the CPU; the engine's pool holds {blocks * BLOCK:,} tokens",
        flush=True,
    )
    without = _rounds(model, blocks, prompts, offload=False)
    with_kvferry = _rounds(model, blocks, prompts, offload=True)
    return _report(without, with_kvferry, sum(map(len, prompts)))


def _rounds(model: Path, blocks: int, prompts: list[list[int]], *, offload: bool) -> list[Round]:
    from vllm.config import KVTransferConfig
    from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

    from vllm import LLM

    options = {}
    if offload:
        # Beside the size, the spec's name is all that there is to set.
        spec = KVTransferConfig(kv_connector_extra_config={"spec_name": "kvferry"})
        options = {"kv_offloading_size": HOST_GIB, "kv_transfer_config": spec}
    llm = LLM(
        model=str(model),
        dtype="float32",
        enforce_eager=True,
        block_size=BLOCK,
        num_gpu_blocks_override=blocks,
        max_model_len=len(prompts[0]) + 2 * BLOCK,
        disable_log_stats=False,
        use_tqdm_on_load=False,
        **options,
    )
    # The first engine of a process warms more than itself up.
    _round(llm, [prompts[0][::-1]])
    rounds = [_round(llm, prompts) for _ in range(ROUNDS)]
    llm.llm_engine.engine_core.shutdown()
    destroy_model_parallel()
    destroy_distributed_environment()
    del llm
    gc.collect()
    return rounds


def _round(llm: LLM, prompts: list[list[int]]) -> Round:
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=ANSWER, logprobs=1, ignore_eos=True)
    loaded = _loaded(llm)
    started = time.perf_counter()
    # One after the other: each pushes the one before out of the pool.
    answers = [
        llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)[0].outputs[0]
        for prompt in prompts
    ]
    seconds = time.perf_counter() - started
    logprobs = [
        step[token].logprob
        for answer in answers
        for token, step in zip(answer.token_ids, answer.logprobs, strict=True)
    ]
    tokens = [list(answer.token_ids) for answer in answers]
    return Round(tokens, logprobs, seconds, _loaded(llm) - loaded)


def _loaded(llm: LLM) -> int:
    """Tokens loaded from the host tier so far, as vLLM counts them."""
    return sum(
        metric.value
        for metric in llm.get_metrics()
        if metric.name == "vllm:external_prefix_cache_hits"
    )


def _report(without: list[Round], with_kvferry: list[Round], asked: int) -> int:
    first, *others = without + with_kvferry
    same = all(other.tokens == first.tokens for other in others)
    apart = max(
        abs(ours - theirs)
        for other in others
        for ours, theirs in zip(other.logprobs, first.logprobs, strict=True)
    )
    loaded = [again.loaded for again in with_kvferry[1:]]
    print(f"\n{'':30}{'without kvferry':>22}{'with kvferry':>22}")
    for name, ours, theirs in (
        ("round 1, seconds", f"{without[0].seconds:.2f}", f"{with_kvferry[0].seconds:.2f}"),
        (f"rounds 2 to {ROUNDS}, seconds", _spread(without[1:]), _spread(with_kvferry[1:])),
        (
            "tokens loaded in each of them",
            f"{max(each.loaded for each in without):,}",
            f"{min(loaded):,} of {asked:,}",
        ),
    ):
        print(f"{name:30}{ours:>22}{theirs:>22}")
    count = sum(map(len, first.tokens))
    print(
        f"\nanswers: {'the same' if same else 'NOT the same'} {count} tokens in all rounds; "
        f"log-probabilities differ by at most {apart:.5f}"
    )
    if same and apart < CLOSE and min(loaded) > 0:
        return 0
    print("this is not what kvferry is to do", file=sys.stderr)
    return 1


def _spread(rounds: list[Round]) -> str:
    seconds = [each.seconds for each in rounds]
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--models", type=Path, default=Path("out/models"), help="where the model is made and kept"
    )
    parser.add_argument("--prompts", type=int, default=4, help="how many prompts")
    parser.add_argument("--length", type=int, default=3000, help="tokens of a prompt")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
