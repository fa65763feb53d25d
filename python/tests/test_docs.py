"""The examples of docs/python.md run as they stand."""

import re

import pytest
from conftest import ROOT


def test_python_guide():
    page = ROOT / "docs" / "python.md"
    if not page.exists():
        pytest.skip("no docs beside the tests")
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
    assert len(blocks) == 2
    names = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    assert names["out"].shape == (4, 2, 128, 512) and names["lse"].shape == (4, 128, 2)
