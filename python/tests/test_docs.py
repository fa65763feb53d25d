"""The examples of docs/python.md and docs/engines.md run as they stand."""

import importlib
import re
import sys

import pytest
from conftest import ROOT


def blocks_of(name):
    page = ROOT / "docs" / name
    if not page.exists():
        pytest.skip("no docs beside the tests")
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
    return [compile(block, str(page), "exec") for block in blocks]


def test_python_guide():
    blocks, names = blocks_of("python.md"), {}
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    assert names["out"].shape == (4, 2, 128, 512) and names["lse"].shape == (4, 128, 2)


# What vLLM's modules look like to the substitution, its compiled extension missing.
INTERFACE = """
import vllm._flashmla_C
"""
OPERATIONS = """
from vllm.third_party.flashmla.flash_mla_interface import (
    FlashMLASchedMeta, flash_attn_varlen_func, flash_mla_sparse_fwd, flash_mla_with_kvcache,
    get_mla_metadata)


def is_flashmla_dense_supported():
    return False, "vllm._flashmla_C is not available"
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Writes modules of a package that is gone after the test."""
    packages = set()

    def write(name, text):
        folder = tmp_path
        for part in name.split(".")[:-1]:
            folder = folder / part
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / f"{name.split('.')[-1]}.py").write_text(text)
        packages.add(name.split(".")[0])

    monkeypatch.syspath_prepend(str(tmp_path))
    yield write
    for name in [name for name in sys.modules if name.split(".")[0] in packages]:
        del sys.modules[name]


@pytest.mark.parametrize("operations", ["vllm.v1.attention.ops.flashmla",
                                        "vllm.attention.ops.flashmla"])
def test_vllm_takes_libmla(operations, stand_in):
    import flash_mla

    stand_in("vllm.third_party.flashmla.flash_mla_interface", INTERFACE)
    stand_in(operations, OPERATIONS)
    names = {}
    exec(blocks_of("engines.md")[0], names)
    names["register"]()
    ops = importlib.import_module(operations)
    assert ops.flash_mla_with_kvcache is flash_mla.flash_mla_with_kvcache
    assert ops.get_mla_metadata is flash_mla.get_mla_metadata
    supported, reason = ops.is_flashmla_dense_supported()
    assert supported == (reason is None) and "_flashmla_C" not in str(reason)
    with pytest.raises(NotImplementedError, match="flash_attn_varlen_func"):
        ops.flash_attn_varlen_func()


def test_sglang_takes_libmla(stand_in):
    import flash_mla

    stand_in("sgl_kernel.flash_mla", "import sgl_kernel.flashmla_ops")
    exec(blocks_of("engines.md")[1], {})
    module = importlib.import_module("sgl_kernel.flash_mla")
    assert module.flash_mla_with_kvcache is flash_mla.flash_mla_with_kvcache
