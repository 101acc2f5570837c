"""Stand-ins for the CUDA libraries that a CUDA build of torch is linked with.

On x86-64 the package index offers torch for CUDA only, and its shared objects name several
gigabytes of CUDA libraries that a process without a GPU loads and never calls. This module reads
the dynamic sections of torch's own libraries, finds which libraries and symbols are missing, and
compiles one small library for each: every function in it returns `NO_DEVICE`, CUDA's own word for
"there is no GPU", so torch starts as it does on a machine without one.

Nothing that is already in place is written to: package files may be hard links into a shared cache.

Usage: `python cuda_stubs.py SITE_PACKAGES` (Linux, little-endian 64-bit ELF; needs a C compiler).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE have the same value.
NO_DEVICE = 100

# What the machine itself provides. Everything else has to be a file in torch's or nvidia's folders.
SYSTEM_LIBRARIES = (
    "ld-linux",
    "libc.",
    "libdl.",
    "libgcc_s.",
    "libm.",
    "libpthread.",
    "librt.",
    "libstdc++.",
)

# The driver's library comes with a GPU; torch loads it by name, if at all, and copes without.
DRIVER_LIBRARY = "libcuda.so.1"

SHT_DYNAMIC, SHT_DYNSYM = 6, 11
SHT_GNU_VERNEED, SHT_GNU_VERSYM = 0x6FFFFFFE, 0x6FFFFFFF
DT_NEEDED = 1
STB_WEAK = 2
VERSION_HIDDEN = 0x8000


@dataclass
class SharedObject:
    """The part of a shared object's dynamic section that decides whether it loads."""

    needed: list[str] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)
    # Strong undefined symbols without a version: any loaded library may provide them.
    undefined: set[str] = field(default_factory=set)
    # library → version → symbols
    versioned: dict[str, dict[str, set[str]]] = field(default_factory=dict)


def read_shared_object(path: Path) -> SharedObject | None:
    """Reads one file, or returns `None` if it is no 64-bit little-endian ELF file."""
    with path.open("rb") as file:
        if file.read(6) != b"\x7fELF\x02\x01":
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
            return _parse(image)


def _parse(image: mmap.mmap) -> SharedObject:
    found = SharedObject()
    table_offset = struct.unpack_from("<Q", image, 40)[0]
    entry_size, entries = struct.unpack_from("<HH", image, 58)
    # (name, type, flags, address, offset, size, link, info, alignment, entry size)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", image, table_offset + i * entry_size)
        for i in range(entries)
    ]
    by_type = {section[1]: section for section in sections}
    if SHT_DYNAMIC not in by_type or SHT_DYNSYM not in by_type:
        return found

    dynamic = by_type[SHT_DYNAMIC]
    dynamic_names = _content(image, sections[dynamic[6]])
    for tag, value in struct.iter_unpack("<QQ", _content(image, dynamic)):
        if tag == DT_NEEDED:
            found.needed.append(_string(dynamic_names, value))

    versions: dict[int, tuple[str, str]] = {}
    if SHT_GNU_VERNEED in by_type:
        versions = dict(_version_needs(image, by_type[SHT_GNU_VERNEED], dynamic_names))
    symbols = by_type[SHT_DYNSYM]
    count = symbols[5] // 24
    indices: tuple[int, ...] = (0,) * count
    if SHT_GNU_VERSYM in by_type:
        indices = struct.unpack_from(f"<{count}H", image, by_type[SHT_GNU_VERSYM][4])
    names = _content(image, sections[symbols[6]])
    for symbol, index in zip(
        struct.iter_unpack("<IBBHQQ", _content(image, symbols)), indices, strict=True
    ):
        _sort_symbol(found, symbol, names, versions.get(index & ~VERSION_HIDDEN))
    return found


def _sort_symbol(
    found: SharedObject, symbol: tuple[int, ...], names: bytes, version: tuple[str, str] | None
) -> None:
    name_offset, info, _, section, _, _ = symbol
    name = _string(names, name_offset)
    if not name:
        return
    if section:
        found.defined.add(name)
    elif version:
        library, label = version
        found.versioned.setdefault(library, {}).setdefault(label, set()).add(name)
    elif info >> 4 != STB_WEAK:
        found.undefined.add(name)


def _content(image: mmap.mmap, section: tuple[int, ...]) -> bytes:
    return image[section[4] : section[4] + section[5]]


def _version_needs(
    image: mmap.mmap, section: tuple[int, ...], names: bytes
) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yields version index → (library, version), from the chains of `.gnu.version_r`."""
    need = section[4]
    while True:
        _, _, file, first, following = struct.unpack_from("<HHIII", image, need)
        entry = need + first
        while True:
            _, _, index, name, step = struct.unpack_from("<IHHII", image, entry)
            yield index, (_string(names, file), _string(names, name))
            if not step:
                break
            entry += step
        if not following:
            return
        need += following


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


def missing_libraries(site_packages: Path) -> dict[str, dict[str, set[str]]]:
    """Returns library → version → symbols for what torch needs and no file provides.

    Symbols without a version are listed under the empty version of one of the libraries that has no
    versions: the loader asks only that somebody provides them.
    """
    torch_files = sorted((site_packages / "torch" / "lib").glob("*.so*"))
    other_files = sorted(site_packages.glob("nvidia/**/*.so*"))
    present = {path.name for path in torch_files + other_files}
    objects = [read for path in torch_files if (read := read_shared_object(path))]
    others = [read for path in other_files if (read := read_shared_object(path))]

    missing: dict[str, dict[str, set[str]]] = {
        name: defaultdict(set)
        for read in objects
        for name in read.needed
        if name not in present and name != DRIVER_LIBRARY and not name.startswith(SYSTEM_LIBRARIES)
    }
    for read in objects:
        for library, versions in read.versioned.items():
            for version, symbols in versions.items():
                if library in missing:
                    missing[library][version] |= symbols

    provided = set().union(*(read.defined for read in objects + others))
    unversioned = set().union(*(read.undefined for read in objects)) - provided
    unversioned -= _found_on_this_machine(unversioned, objects)
    plain = [name for name, versions in missing.items() if not versions]
    if plain and unversioned:
        missing[min(plain)][""] = unversioned
    return missing


def _found_on_this_machine(symbols: set[str], objects: list[SharedObject]) -> set[str]:
    """Returns the symbols that the interpreter (its C API) or a system library defines.

    A stand-in for one of these would be found before the real one, and crash whoever calls it.
    """
    system = {name for read in objects for name in read.needed if name.startswith(SYSTEM_LIBRARIES)}
    loaded = [ctypes.CDLL(None), *(ctypes.CDLL(name) for name in sorted(system))]
    return {symbol for symbol in symbols if any(hasattr(library, symbol) for library in loaded)}


def build_stub(library: Path, versions: dict[str, set[str]], compiler: str) -> None:
    """Compiles one stand-in, atomically: the file appears complete or not at all."""
    functions = sorted(set().union(*versions.values())) if versions else []
    source = "".join(f"long {name}(void) {{ return {NO_DEVICE}; }}\n" for name in functions)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        scratch = Path(folder)
        (scratch / "stub.c").write_text(source)
        output = scratch / library.name
        command = [compiler, "-shared", "-fPIC", "-w", "-fno-builtin", "-O0", "-s"]
        command += ["-o", str(output), str(scratch / "stub.c"), f"-Wl,-soname,{library.name}"]
        named = {version: symbols for version, symbols in versions.items() if version}
        if named:
            script = "".join(
                f"{version} {{ global: {' '.join(f'{name};' for name in sorted(symbols))} }};\n"
                for version, symbols in sorted(named.items())
            )
            (scratch / "stub.map").write_text(script)
            command.append(f"-Wl,--version-script,{scratch / 'stub.map'}")
        subprocess.run(command, check=True)
        output.replace(library)


def install(site_packages: Path) -> dict[str, int]:
    """Builds every missing library beside torch's own; returns library → number of symbols."""
    compiler = os.environ.get("CC", "cc")
    missing = missing_libraries(site_packages)
    for name, versions in missing.items():
        build_stub(site_packages / "torch" / "lib" / name, versions, compiler)
    return {
        name: sum(len(symbols) for symbols in versions.values())
        for name, versions in sorted(missing.items())
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} SITE_PACKAGES")
    for library_name, symbol_count in install(Path(sys.argv[1])).items():
        print(f"{library_name}: {symbol_count} symbols")
