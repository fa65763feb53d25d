"""The wheel: its tag, its size, and that it works in an empty environment.

Needs a C compiler, CMake and a package index (for scikit-build-core and numpy): about a minute.
"""

import os
import subprocess
import sys
import venv

import pytest
from conftest import ROOT

if os.environ.get("MLA_TEST_WHEEL") != "1":
    pytest.skip("set MLA_TEST_WHEEL=1 to build and install the wheel", allow_module_level=True)

USE = """
import numpy as np, libmla, flash_mla
from libmla.library import lib_path
assert "site-packages" in lib_path, lib_path
q = np.zeros((1, 1, 16, 576), np.float16)
cache = np.ones((2, 64, 1, 576), np.float16)
table, seqlens = np.array([[1, 0]], np.int32), np.array([100], np.int32)
metadata, _ = flash_mla.get_mla_metadata()
out, lse = flash_mla.flash_mla_with_kvcache(q, cache, table, seqlens, 512, metadata)
assert (out == 1).all() and np.allclose(lse, np.log(100)), (out, lse)
print("libmla", libmla.__version__, "works")
"""


def test_wheel_in_an_empty_environment(tmp_path):
    clean = {name: value for name, value in os.environ.items()
             if name not in ("MLA_LIBRARY", "PYTHONPATH")}
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps",
                    "--wheel-dir", tmp_path, ROOT], check=True, env=clean)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name and "linux" in wheel.name
    assert wheel.stat().st_size < 5_000_000
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True, env=clean)
    done = subprocess.run([python, "-c", USE], check=True, env=clean, cwd=tmp_path,
                          capture_output=True, text=True)
    assert "works" in done.stdout
