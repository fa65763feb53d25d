"""Tests run against the installed package, or against the source tree and a build beside it."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

# Before any OpenMP starts: torch's threads and libmla's are two pools, and on a machine with other
# work the one that waits by spinning keeps the other from its processors.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

ROOT = Path(__file__).resolve().parents[2]
HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore = [] if HAS_TORCH else [
    "test_dense.py", "test_sparse.py", "test_engines.py", "test_compile.py", "test_cuda.py",
    "test_docs.py", "test_processes.py", "test_torch_tensors.py"]

if importlib.util.find_spec("libmla") is None:
    sys.path.insert(0, str(ROOT / "python"))
    if "MLA_LIBRARY" not in os.environ:
        built = sorted(ROOT.glob("build*/src/libmla.so"), key=os.path.getmtime)
        if not built:
            raise pytest.UsageError("no libmla: install the package, or build into build/")
        os.environ["MLA_LIBRARY"] = str(built[-1])


def pytest_report_header(config):
    import libmla
    from libmla.library import lib_path

    lines = [f"libmla {libmla.__version__}: {lib_path}", f"cpu: {libmla.device_info()}"]
    if not HAS_TORCH:
        lines.append(f"torch is not installed: {len(collect_ignore)} files of tests left out")
    return lines


def pytest_terminal_summary(terminalreporter):
    if not HAS_TORCH:
        terminalreporter.write_line("left out, torch not installed: " + " ".join(collect_ignore))


def pytest_generate_tests(metafunc):
    """`device` runs a test on the CPU and, where torch sees one that libmla serves, on a GPU."""
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", _devices())


def _devices():
    import torch

    chosen = os.environ.get("MLA_TEST_DEVICES")
    if chosen:
        return chosen.split(",")
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
