"""What happens around calls in an engine: threads, forked workers, copies of the schedule."""

import copy
import os
import pickle
import subprocess
import sys
import threading

import flash_mla
import libmla
import pytest
import torch
from dense_cases import DenseBatch, DenseCase


def case(**changes):
    return DenseCase(**{**dict(b=4, s_q=2, s_k=300, h_q=16), **changes})


def call(batch, metadata, num_splits=None):
    return flash_mla.flash_mla_with_kvcache(
        batch.q, batch.cache, batch.table, batch.seqlens, 512, metadata, num_splits, causal=True)


@pytest.mark.parametrize("contract", ["newer", "older"])
def test_threads_share_a_schedule(contract, device):
    batch = DenseBatch(case(), device)
    arguments = (flash_mla.get_mla_metadata() if contract == "newer"
                 else flash_mla.get_mla_metadata(batch.seqlens, 32, 1))
    want, wrong = call(batch, *arguments), []

    def work():
        for _ in range(20):
            got = call(batch, *arguments)
            if not all(map(torch.equal, got, want)):
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy,
                                    lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_of_a_schedule_object(copied, device):
    batch = DenseBatch(case(), device)
    metadata, _ = flash_mla.get_mla_metadata()
    batch.check(*call(batch, metadata))
    other = copied(metadata)
    assert not other.have_initialized and other.tile_scheduler_metadata is None
    batch.check(*call(batch, other))
    assert other.tile_scheduler_metadata is not metadata.tile_scheduler_metadata
    # What an engine has set stays set: one partition is the batch-invariant mode.
    metadata.tile_scheduler_metadata = torch.zeros(1, 8, dtype=torch.int32, device=device)
    assert copied(metadata).tile_scheduler_metadata.shape == (1, 8)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_of_a_schedule_tensor(copied, device):
    batch = DenseBatch(case(), device)
    metadata, num_splits = flash_mla.get_mla_metadata(batch.seqlens, 32, 1)
    batch.check(*call(batch, copied(metadata), num_splits))


def test_a_plan_is_not_copied():
    batch = DenseBatch(case())
    plan = libmla.plan_decode(batch.q, batch.cache, batch.table, batch.seqlens)
    for function in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="plan_decode"):
            function(plan)


# The parent computes with two threads, then the child must neither hang nor be wrong, whoever made
# the schedule. In a process of its own, since a fork of this one would bring torch's threads along.
FORK = """
import os, sys, warnings
import numpy as np
import libmla

rng = np.random.default_rng(0)
q = rng.standard_normal((2, 1, 16, 576)).astype(np.float16)
cache = rng.standard_normal((8, 64, 1, 576)).astype(np.float16)
table = rng.integers(0, 8, (2, 400), dtype=np.int32)
seqlens = np.array([25000, 200], np.int32)
newer = libmla.get_mla_metadata()
older = libmla.get_mla_metadata(seqlens, 16, 1)

def call(metadata, num_splits):
    return libmla.flash_mla_with_kvcache(q, cache, table, seqlens, 512, metadata, num_splits)

want, _ = call(*newer)
call(*older)
assert libmla.device_info().num_threads == 2
child = os.fork()
if child == 0:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for schedule in (newer, older, libmla.get_mla_metadata(seqlens, 16, 1)):
            got, _ = call(*schedule)
            assert np.abs(got.astype(float) - want).max() < 2e-3, "wrong in the child"
    assert any("one thread" in str(warning.message) for warning in seen)
    assert libmla.device_info().num_threads == 1
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_computes_with_one_thread():
    from libmla.library import lib_path

    environment = dict(os.environ, OMP_NUM_THREADS="2", MLA_LIBRARY=lib_path,
                       PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-c", FORK], env=environment, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr
