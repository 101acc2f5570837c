"""The lists of faults that tests must notice, against the sources and tests/README.md."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def mutation_check(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program under scripts/."""
    monkeypatch.syspath_prepend(repository / "scripts")
    monkeypatch.delitem(sys.modules, "mutation_check", raising=False)
    import mutation_check

    return mutation_check


def test_readme_lists_every_fault_and_no_other(
    repository: Path, mutation_check: ModuleType
) -> None:
    readme = (repository / "tests" / "README.md").read_text()
    assert mutation_check.with_tables(readme) == readme, "run scripts/mutation_check.py --list"


def test_no_two_faults_have_one_name(mutation_check: ModuleType) -> None:
    names = [mutation.name for mutation in mutation_check.listed()]
    names += [name for name, _ in mutation_check.protocol_faults()]
    assert names
    assert len(names) == len(set(names))


def test_protocol_faults_are_read_with_their_comments(
    mutation_check: ModuleType, tmp_path: Path
) -> None:
    source = tmp_path / "mutant.rs"
    source.write_text(
        "/// Faults.\nmutants! {\n    /// A pin is\n    /// lost.\n    PinLost,\n"
        "    /// Another.\n    Other,\n}\n\nenum Unrelated {\n    /// Not one.\n    No,\n}\n"
    )
    assert mutation_check.protocol_faults(source) == [
        ("PinLost", "A pin is lost"),
        ("Other", "Another"),
    ]


def test_every_mutation_still_fits_the_sources(
    repository: Path, mutation_check: ModuleType
) -> None:
    for mutation in mutation_check.listed():
        source = (repository / mutation.file).read_text()
        assert mutation.applied_to(source) != source, mutation.name
        assert mutation.cargo()


@pytest.mark.parametrize("source", ["nothing of the kind", "if a < b { } if a < b { }"])
def test_a_mutation_whose_text_is_not_there_once_is_refused(
    mutation_check: ModuleType, source: str
) -> None:
    mutation = mutation_check.Mutation("m", "w", "rust/core/src/a.rs", "a < b", "a > b", "lib", "t")
    with pytest.raises(ValueError, match="not once"):
        mutation.applied_to(source)
