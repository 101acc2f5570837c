"""Compares two managers from the command line: `python -m differential --help`."""

from __future__ import annotations

import argparse
import time

from differential.lockstep import MakeDriver, run_histories


def driver_class(name: str) -> MakeDriver:
    """Return the driver of that name, importing what it drives only now."""
    if name == "reference":
        from differential.reference_driver import ReferenceDriver

        return ReferenceDriver
    if name == "vllm":
        from differential.vllm_driver import VllmDriver

        return VllmDriver
    from differential.kvferry_driver import KvferryDriver

    return KvferryDriver


def main() -> None:
    """Run histories and print what they met."""
    parser = argparse.ArgumentParser(prog="differential", description=__doc__)
    names = ["kvferry", "reference", "vllm"]
    parser.add_argument("left", choices=names)
    parser.add_argument("right", choices=names)
    parser.add_argument("--policy", default="lru,arc", help="comma-separated")
    parser.add_argument("--operations", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rough", action="store_true", help="not with vllm")
    options = parser.parse_args()
    left, right = driver_class(options.left), driver_class(options.right)
    for policy in options.policy.split(","):
        start = time.perf_counter()
        tally = run_histories(
            policy, options.seed, options.operations, left, right, rough=options.rough
        )
        seconds = time.perf_counter() - start
        print(f"{policy}: {tally}; {tally.operations / seconds:,.0f} operations a second")


if __name__ == "__main__":
    main()
