"""Checks that tests can fail: each known mutation of the engine must make a named test fail.

A mutation is a fault made on purpose: `tests/mutations.toml` lists them, each a piece of source
text, what replaces it, and the test that has to notice. This program copies the workspace, runs
each test there without the mutation (it must pass) and with it (it must fail, or hang until the
limit). A mutation that does not compile proves nothing and is an error. The working tree is not
touched.

Faults in the protocols between threads are made by the loom models themselves; here they are only
listed.

Usage: `python mutation_check.py [NAME…]`, all of them by default; `--list` brings the tables in
`tests/README.md` up to date instead.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "mutations.toml"
README = ROOT / "tests" / "README.md"
PROTOCOL_FAULTS = ROOT / "rust" / "core" / "src" / "mutant.rs"
MODELS = ROOT / "rust" / "core" / "src" / "loom"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
SCRATCH = TARGET / "mutations"
PACKAGES = {"rust/core": "kvferry", "rust/host": "kvferry-host", "rust/sim": "kvferry-sim"}

# Seconds for one test, many times what the slowest takes: a mutation may turn a loop endless.
LIMIT = 600


@dataclass(frozen=True)
class Mutation:
    """One fault, and the test that notices it."""

    name: str
    # What it breaks, in words.
    weakens: str
    file: str
    find: str
    replace: str
    # "lib", or the name of an integration test.
    target: str
    test: str
    # The package of the test, where it is not that of the file.
    package: str = ""

    def applied_to(self, source: str) -> str:
        """Returns the faulty source.

        Raises:
            ValueError: if the text to replace is not there exactly once.
        """
        count = source.count(self.find)
        if count != 1:
            message = f"{self.name}: {self.file} has its text {count} times, not once"
            raise ValueError(message)
        return source.replace(self.find, self.replace)

    def cargo(self) -> list[str]:
        """Returns the command that builds the test's program."""
        own = next(name for path, name in PACKAGES.items() if self.file.startswith(path))
        package = self.package or own
        target = ["--lib"] if self.target == "lib" else ["--test", self.target]
        command = ["cargo", "test", "--locked", "-p", package, *target]
        return [*command, "--features", "kvferry/testing"]


def listed(path: Path = LIST) -> list[Mutation]:
    """Returns all mutations, in the order of the list."""
    return [Mutation(**row) for row in tomllib.loads(path.read_text())["mutation"]]


def protocol_faults(path: Path = PROTOCOL_FAULTS) -> list[tuple[str, str]]:
    """Returns (name, what it breaks) of each fault that the loom models switch on."""
    (body,) = re.findall(r"^mutants! \{\n(.*?)\n\}", path.read_text(), re.DOTALL | re.MULTILINE)
    variants = re.findall(r"((?:^ +/// .*\n)+)^ +(\w+),$", body, re.MULTILINE)
    return [
        (name, " ".join(line.strip(" /") for line in comment.splitlines()).rstrip("."))
        for comment, name in variants
    ]


def models(folder: Path = MODELS) -> dict[str, list[str]]:
    """Returns the models that each fault of a protocol makes fail, by the name of the fault."""
    caught: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.rs")):
        declared = re.findall(
            r"^    (\w+): \d, [\d_]+, \[(.*?)\];$", path.read_text(), re.DOTALL | re.MULTILINE
        )
        for model, faults in declared:
            for fault in re.findall(r"(\w+) =>", faults):
                caught.setdefault(fault, []).append(f"{path.stem}::{model}")
    return caught


def tables() -> str:
    """Returns what tests/README.md holds between its two markers."""
    lines = ["", "| mutation | what it breaks | caught by |", "|---|---|---|"]
    lines += [f"| `{row.name}` | {row.weakens} | `{row.test}` |" for row in listed()]
    lines += ["", "| fault of a protocol | what it breaks | models that fail |", "|---|---|---|"]
    caught = models()
    lines += [
        f"| `{name}` | {what} | {', '.join(f'`{model}`' for model in caught[name])} |"
        for name, what in protocol_faults()
    ]
    return "\n".join([*lines, "", ""])


def with_tables(readme: str) -> str:
    """Returns the text of tests/README.md with the tables as they should be."""
    begin, end = "<!-- begin of the lists -->\n", "<!-- end of the lists -->\n"
    before, _, rest = readme.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        message = "tests/README.md lacks the markers between which the faults are listed"
        raise ValueError(message)
    return f"{before}{begin}{tables()}{end}{after}"


def copy_workspace() -> Path:
    """Copies what cargo needs, with new times so that nothing built earlier is taken for it."""
    tree = SCRATCH / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for name in ("Cargo.toml", "Cargo.lock"):
        shutil.copyfile(ROOT / name, tree / name)
    shutil.copytree(ROOT / "rust", tree / "rust", copy_function=shutil.copyfile)
    return tree


def cargo(tree: Path, command: list[str], limit: int | None) -> subprocess.CompletedProcess[str]:
    # Dependencies are shared with the other builds. The crates of the workspace must not be: cargo
    # tells the copy's from the original's by their compiler wrapper alone.
    wrapper = SCRATCH / "rustc"
    wrapper.write_text('#!/bin/sh\nexec "$@"\n')
    wrapper.chmod(0o755)
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(TARGET),
        "RUSTC_WORKSPACE_WRAPPER": str(wrapper),
        # A counterexample is wanted, not the smallest one, and not in a file.
        "PROPTEST_FAILURE_PERSISTENCE": "off",
        "PROPTEST_MAX_SHRINK_ITERS": "1",
    }
    return subprocess.run(
        command,
        cwd=tree,
        env=environment,
        timeout=limit,
        capture_output=True,
        text=True,
        check=False,
    )


def passes(tree: Path, mutation: Mutation) -> bool:
    """Builds, then runs the mutation's test. Anything but a clean verdict ends the program."""
    built = cargo(tree, [*mutation.cargo(), "--no-run"], None)
    if built.returncode:
        sys.exit(f"{mutation.name}: does not compile\n{built.stderr}")
    command = [*mutation.cargo(), mutation.test, "--", "--exact", "--include-ignored"]
    try:
        result = cargo(tree, command, LIMIT)
    except subprocess.TimeoutExpired:
        return False
    if "running 1 test\n" not in result.stdout:
        sys.exit(f"{mutation.name}: {mutation.target} has no test {mutation.test}")
    return result.returncode == 0


def is_caught(tree: Path, mutation: Mutation) -> bool:
    path = tree / mutation.file
    source = path.read_text(encoding="utf-8")
    path.write_text(mutation.applied_to(source), encoding="utf-8")
    try:
        return not passes(tree, mutation)
    finally:
        path.write_text(source, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="the mutations to check; all by default")
    parser.add_argument("--list", action="store_true", help="update tests/README.md and stop")
    arguments = parser.parse_args()
    if arguments.list:
        README.write_text(with_tables(README.read_text()))
        return
    names = arguments.names
    mutations = [mutation for mutation in listed() if not names or mutation.name in names]
    unknown = set(names) - {mutation.name for mutation in mutations}
    if unknown:
        sys.exit(f"not in {LIST.relative_to(ROOT)}: {', '.join(sorted(unknown))}")
    tree = copy_workspace()
    for mutation in mutations:
        if not passes(tree, mutation):
            sys.exit(f"{mutation.test} fails without any mutation")
    missed = 0
    for mutation in mutations:
        started = time.monotonic()
        caught = is_caught(tree, mutation)
        missed += not caught
        print(
            f"{'caught' if caught else 'MISSED'}  {mutation.name}  by {mutation.test}"
            f"  {time.monotonic() - started:.0f} s",
            flush=True,
        )
    print(f"{len(mutations)} mutations, {missed} missed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
