"""Attention in float64 numpy, and the tolerances that every backend is held to.

For `python -m libmla check` and the tests; nothing on the path of a call comes here.
"""

from __future__ import annotations

import numpy as np

TOLERANCE_NORM = 4e-3
TOLERANCE_COSINE = 5e-6


def attend(q, keys, scale, num_visible=None, sink=None):
    """One request. q [s_q, h_q, d]; keys [n, h_kv, d]; num_visible [s_q]: keys that a token sees.

    Returns out [s_q, h_q, 512], lse [h_q, s_q] and the row maximum [h_q, s_q].
    """
    q, keys = np.asarray(q, np.float64), np.asarray(keys, np.float64)
    s_q, h_q, _ = q.shape
    n, h_kv, _ = keys.shape
    out = np.zeros((s_q, h_q, 512))
    lse = np.full((h_q, s_q), np.inf)
    row_max = np.full((h_q, s_q), -np.inf)
    group = h_q // h_kv
    for token in range(s_q):
        visible = n if num_visible is None else int(num_visible[token])
        if visible <= 0:
            continue
        for head in range(h_kv):
            rows = slice(head * group, (head + 1) * group)
            k = keys[:visible, head]
            logits = q[token, rows] @ k.T * scale
            peak = logits.max(1)
            weights = np.exp(logits - peak[:, None])
            total = weights.sum(1)
            out[token, rows] = weights @ k[:, :512] / total[:, None]
            lse[rows, token] = peak + np.log(total)
            row_max[rows, token] = peak
    if sink is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            factor = 1 / (1 + np.exp(np.asarray(sink, np.float64)[:, None] - lse))
        out *= np.where(np.isinf(lse), 1.0, factor).T[:, :, None]
    return out, lse, row_max


def bf16_bits(values):
    """bfloat16 bits, as uint16, of numbers: rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_values(bits):
    """The float32 numbers that bfloat16 bits stand for."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def check_out(got, want, what="out"):
    """Raises AssertionError where out is off the reference; returns the relative error."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    assert np.isfinite(got).all(), f"{what}: not finite"
    error = np.abs(got - want)
    worst = (error - (8e-4 + 2.01 / 128 * np.abs(want))).max(initial=0.0)
    assert worst <= 0, f"{what}: an element is {worst} beyond its tolerance"
    norm = np.linalg.norm(want)
    if norm == 0:
        assert not error.any(), f"{what}: must be exactly zero"
        return 0.0
    relative = np.linalg.norm(error) / norm
    assert relative <= TOLERANCE_NORM, f"{what}: relative error {relative}"
    cosine = 1 - 2 * (got * want).sum() / ((got * got).sum() + (want * want).sum())
    assert cosine <= TOLERANCE_COSINE, f"{what}: cosine difference {cosine}"
    return relative


def check_lse(got, want, what="lse"):
    """Raises AssertionError where lse is off the reference."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    empty = np.isinf(want)
    assert (got[empty] == want[empty]).all(), f"{what}: rows without keys"
    got, want = got[~empty], want[~empty]
    worst = (np.abs(got - want) - (1e-6 + 8.01 / 65536 * np.abs(want))).max(initial=0.0)
    assert worst <= 0, f"{what}: {worst} beyond its tolerance"
