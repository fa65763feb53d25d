"""examples/decode_loop.py and examples/decode_loop.c generate the same tokens."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from libmla.library import lib_path

EXAMPLES = ROOT / "examples"


def _run(command):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, check=True, capture_output=True, text=True,
                          env=environment).stdout


def _results(text):
    """(tokens, hidden values) of each request."""
    lines = re.findall(r"request \d: ([\d ]+)  hidden (.*)", text)
    return [(tokens.split(), [float(value) for value in hidden.split()])
            for tokens, hidden in lines]


def test_python_and_c_agree(tmp_path):
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler or not EXAMPLES.exists():
        pytest.skip("no C compiler, or no examples beside the tests")
    library = Path(lib_path).resolve()
    # A link by the soname, which the program looks for, whatever the file at hand is called.
    (tmp_path / "libmla.so.0").symlink_to(library)
    program = tmp_path / "decode_loop"
    subprocess.run([compiler, "-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
                    f"-I{ROOT / 'include'}", EXAMPLES / "decode_loop.c", library,
                    f"-Wl,-rpath,{tmp_path}", "-lm", "-o", program], check=True)
    from_python = _results(_run([sys.executable, EXAMPLES / "decode_loop.py", "--check"]))
    from_c = _results(_run([program]))
    assert len(from_c) == 3
    assert [tokens for tokens, _ in from_python] == [tokens for tokens, _ in from_c]
    for (_, got), (_, want) in zip(from_python, from_c):
        assert got == pytest.approx(want, abs=0.011)
