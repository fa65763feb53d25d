"""Attention in float64 numpy, and the tolerances that every backend is held to.

For `python -m libmla check` and the tests; nothing on the path of a call comes here.
"""

from __future__ import annotations

import numpy as np

TOLERANCE_NORM = 4e-3
TOLERANCE_COSINE = 5e-6


def _softmax_rows(q, keys, scale, num_visible):
    """For each token and KV head with keys: token, heads, keys, exp(S - row max), row max."""
    s_q, h_q, _ = q.shape
    n, h_kv, _ = keys.shape
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
            yield token, rows, k, np.exp(logits - peak[:, None]), peak


def _sink_factor(sink, lse):
    with np.errstate(over="ignore", invalid="ignore"):
        factor = 1 / (1 + np.exp(np.asarray(sink, np.float64)[:, None] - lse))
    return np.where(np.isinf(lse), 1.0, factor).T[:, :, None]


def attend(q, keys, scale, num_visible=None, sink=None):
    """One request. q [s_q, h_q, d]; keys [n, h_kv, d]; num_visible [s_q]: keys that a token sees.

    Returns out [s_q, h_q, 512], lse [h_q, s_q] and the row maximum [h_q, s_q].
    """
    q, keys = np.asarray(q, np.float64), np.asarray(keys, np.float64)
    s_q, h_q, _ = q.shape
    out = np.zeros((s_q, h_q, 512))
    lse = np.full((h_q, s_q), np.inf)
    row_max = np.full((h_q, s_q), -np.inf)
    for token, rows, k, weights, peak in _softmax_rows(q, keys, scale, num_visible):
        total = weights.sum(1)
        out[token, rows] = weights @ k[:, :512] / total[:, None]
        lse[rows, token] = peak + np.log(total)
        row_max[rows, token] = peak
    if sink is not None:
        out *= _sink_factor(sink, lse)
    return out, lse, row_max


def rounding_bound(q, keys, scale, num_visible=None, unit=2.0**-8):
    """What a softmax numerator rounded to 16 bits may change in out; [s_q, h_q, 512].

    GPU kernels multiply P, as bf16 or fp16, by V. A relative error of each weight of at most `unit`
    (2^-8, fp16 2^-11) moves an output by at most unit * sum(P |V|), and, since these errors are
    independent, hardly ever by more than 2.5 unit * sqrt(sum(P^2 V^2)), six standard deviations.
    """
    q, keys = np.asarray(q, np.float64), np.asarray(keys, np.float64)
    bound = np.zeros((*q.shape[:2], 512))
    for token, rows, k, weights, _ in _softmax_rows(q, keys, scale, num_visible):
        weights /= weights.sum(1)[:, None]
        values = np.abs(k[:, :512])
        bound[token, rows] = unit * np.minimum(weights @ values,
                                               2.5 * np.sqrt(weights**2 @ values**2))
    return bound


def bf16_bits(values):
    """bfloat16 bits, as uint16, of numbers: rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_values(bits):
    """The float32 numbers that bfloat16 bits stand for."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def check_out(got, want, what="out", bound=None):
    """Raises AssertionError where out is off the reference; returns the relative error.

    `bound`, a function without arguments, gives what each element may be off beyond the tolerance:
    rounding_bound(). It is called only where that matters.
    """
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    assert np.isfinite(got).all(), f"{what}: not finite"
    error = np.abs(got - want)
    excess = error - (8e-4 + 2.01 / 128 * np.abs(want))
    worst = excess.max(initial=0.0)
    if worst > 0 and bound is not None:
        worst = (excess - bound()).max(initial=0.0)
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
