"""python -m flash_mla check and bench."""

import importlib.util
import os
import subprocess
import sys

import pytest


def run(*arguments, program="flash_mla"):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-m", program, *map(str, arguments)], text=True,
                          capture_output=True, env=environment, timeout=120)


def test_check():
    done = run("check", "--device", "cpu", program="libmla")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all right\n") and done.stdout.count(" ok ") == 15


def test_bench(tmp_path):
    if importlib.util.find_spec("torch") is None:
        done = run("bench", "--device", "cpu")
        assert done.returncode == 2 and "pip install torch" in done.stderr
        return
    plot = []
    if importlib.util.find_spec("matplotlib"):
        plot = ["--plot", tmp_path / "bench.png"]
    done = run("bench", "--device", "cpu", "--heads", 4, "--seqlens", 64, 100, "--seconds", 0.01,
               "--csv", tmp_path / "bench.csv", *plot)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "bench.csv").read_text().count("libmla,") == 2
    assert not plot or (tmp_path / "bench.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("option", ["--plot", "--csv"])
def test_outputs_are_checked_before_the_work(option, tmp_path):
    pytest.importorskip("torch")
    if option == "--plot":
        pytest.importorskip("matplotlib")
    for path in (tmp_path / "no" / "bench.png", tmp_path):
        done = run("bench", "--device", "cpu", "--seqlens", 64, option, path)
        assert done.returncode == 2 and str(path) in done.stderr and not done.stdout
        assert "Traceback" not in done.stderr


def test_help_teaches():
    for arguments in (["--help"], ["bench", "--help"], ["check", "--help"]):
        done = run(*arguments)
        assert done.returncode == 0
        words = " ".join(done.stdout.split())
        assert "python -m flash_mla" in words
        assert arguments[0] == "--help" or "Exit status: 0" in words
    assert "1 something FAILED" in " ".join(run("check", "--help").stdout.split())


@pytest.mark.parametrize("arguments,text", [
    ([], "usage:"), (["bench", "--heads", "x"], "--heads"),
    (["bench", "--device", "cpu", "--page-size", "0"], "not a number from 1"),
    (["check", "--device", "cuda", "--index", "99"], "flash_mla:")])
def test_wrong_use(arguments, text):
    done = run(*arguments)
    assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr
