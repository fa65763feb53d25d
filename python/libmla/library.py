"""Finds libmla, loads it, and turns its statuses into exceptions."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from pathlib import Path

from . import abi


def _candidates():
    """Paths to try, best first: an explicit choice, the copy inside the package, the system's."""
    chosen = os.environ.get("MLA_LIBRARY")
    if chosen:
        yield chosen  # and nothing else: a wrong choice should fail, not be replaced silently
        return
    bundled = Path(__file__).with_name("libmla.so")
    if bundled.exists():
        yield str(bundled)
        return
    yield "libmla.so.0"
    found = ctypes.util.find_library("mla")
    if found:
        yield found


def _load():
    failures = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            failures.append(str(error))
            continue
        for name, (restype, argtypes) in abi.PROTOTYPES.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise ImportError(f"{path} is not libmla: it has no {name}()") from None
            function.restype, function.argtypes = restype, argtypes
        version = library.mla_version()
        # Structs grow only at their end and carry their size, so a newer minor version serves too.
        if version // 10000 != abi.VERSION[0] or version // 100 % 100 < abi.VERSION[1]:
            raise ImportError(
                f"{path} is libmla {version_text(version)}: this package needs "
                f"{abi.VERSION[0]}.{abi.VERSION[1]} or a later one of the same major version"
            )
        return library, path
    raise ImportError(
        "libmla.so was not found; install the wheel, or set MLA_LIBRARY to the library's path "
        "(" + "; ".join(failures) + ")"
    )


def version_text(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


lib, lib_path = _load()
__version__ = version_text(lib.mla_version())

_EXCEPTIONS = {
    abi.ERR_INVALID_ARGUMENT: ValueError,
    abi.ERR_UNSUPPORTED: NotImplementedError,
    abi.ERR_BUFFER_TOO_SMALL: ValueError,
    abi.ERR_PLAN_MISMATCH: ValueError,
    abi.ERR_OUT_OF_MEMORY: MemoryError,
    abi.ERR_DEVICE: RuntimeError,
}


def check(status: int) -> None:
    """Raises the exception of a status, with the text of mla_last_error()."""
    if status != abi.OK:
        text = lib.mla_last_error().decode(errors="replace")
        raise _EXCEPTIONS.get(status, RuntimeError)(text)
