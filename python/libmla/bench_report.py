"""`bench`: dense decode over sequence lengths, timed in turn with PyTorch's own attention."""

from __future__ import annotations

import errno
import os
import statistics
import time
from dataclasses import dataclass

import libmla

from .self_check import show_progress

D_QK, D_V = 576, 512


@dataclass
class Timing:
    """One sequence length of one implementation."""

    name: str
    s_k: int
    seconds: float
    flops: float
    bytes: float

    @property
    def tflops(self):
        return self.flops / self.seconds / 1e12

    @property
    def gbytes(self):
        return self.bytes / self.seconds / 1e9


class _Shape:
    def __init__(self, options, device):
        self.b = options.batch or (128 if device == "cuda" else 1)
        self.h_q, self.s_q, self.page_size = options.heads, options.tokens, options.page_size
        self.seqlens = options.seqlens or [
            n for n in (512, 1024, 2048, 4096, 8192, 16384, 32768) if device == "cuda" or n <= 8192]

    def flops(self, s_k):
        return 2.0 * self.b * self.s_q * self.h_q * s_k * (D_QK + D_V)

    def bytes(self, s_k):
        """Every cache row once, q and out once."""
        return 2.0 * self.b * (s_k * D_QK + self.s_q * self.h_q * (D_QK + D_V))


def _ours(torch, shape, q, keys):
    """decode() with a plan over a shuffled paged copy of keys [b, s_k, 576]."""
    b, s_k, _ = keys.shape
    pages = -(-s_k // shape.page_size)
    order = torch.randperm(b * pages, device=q.device)
    cache = torch.zeros(b * pages, shape.page_size, 1, D_QK, dtype=q.dtype, device=q.device)
    padded = torch.nn.functional.pad(keys, (0, 0, 0, pages * shape.page_size - s_k))
    cache[order] = padded.reshape(b * pages, shape.page_size, 1, D_QK)
    table = order.to(torch.int32).view(b, pages)
    seqlens = torch.full((b,), s_k, dtype=torch.int32, device=q.device)
    plan = libmla.plan_decode(q, cache, table, seqlens)
    return lambda: libmla.decode(q, cache, table, seqlens, plan=plan)[0]


def _sdpa(torch, shape, q, keys):
    """Tokens and heads as rows of one head, which is how this call is quickest for shared keys."""
    rows = q.reshape(shape.b, 1, shape.s_q * shape.h_q, D_QK)
    k = keys.unsqueeze(1)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(rows, k, k[..., :D_V]).view(shape.b, shape.s_q, shape.h_q, D_V)


def _matmul(torch, shape, q, keys):
    rows = q.reshape(shape.b, shape.s_q * shape.h_q, D_QK)
    transposed, values = keys.transpose(1, 2), keys[..., :D_V]

    def call():
        weights = torch.softmax((rows @ transposed).float() * D_QK**-0.5, -1).to(q.dtype)
        return (weights @ values).view(shape.b, shape.s_q, shape.h_q, D_V)

    return call


def _host_seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _gpu_seconds(torch, calls_between=10):
    """A clock for GPU calls: events around several, so that launches overlap as in an engine."""

    def clock(call):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls_between):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / calls_between

    return clock


def _time_in_turn(calls, seconds, clock):
    """Median seconds of each call; rounds go on in turn until the time is up, at least 5."""
    for call in calls:
        clock(call)
    times = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while len(times[0]) < 5 or time.perf_counter() < end:
        for call, mine in zip(calls, times):
            mine.append(clock(call))
    return [statistics.median(mine) for mine in times]


def _measure(torch, shape, device, dtype, seconds):
    clock = _gpu_seconds(torch) if device.type == "cuda" else _host_seconds
    makers = (("libmla", _ours), ("PyTorch SDPA", _sdpa), ("PyTorch matmul", _matmul))
    timings = []
    for i, s_k in enumerate(shape.seqlens):
        show_progress(f"{i + 1}/{len(shape.seqlens)}: s_k {s_k} ...")
        torch.manual_seed(0)
        q = torch.randn(shape.b, shape.s_q, shape.h_q, D_QK, device=device).to(dtype)
        keys = torch.randn(shape.b, s_k, D_QK, device=device).to(dtype)
        calls = [make(torch, shape, q, keys) for _, make in makers]
        ours, theirs = calls[0]().float(), calls[2]().float()
        error = float((ours - theirs).norm() / theirs.norm())
        if not error < 2e-2:
            raise RuntimeError(f"s_k {s_k}: results differ by {error}; run the check command")
        for (name, _), median in zip(makers, _time_in_turn(calls, seconds, clock)):
            timings.append(Timing(name, s_k, median, shape.flops(s_k), shape.bytes(s_k)))
    show_progress("")
    return timings


def _print_table(timings):
    print(f"{'s_k':>7}  {'':16}{'us':>10}  {'TFLOP/s':>8}  {'GB/s':>7}  {'libmla is':>9}")
    ours = {t.s_k: t.seconds for t in timings if t.name == "libmla"}
    for t in timings:
        ratio = "" if t.name == "libmla" else f"{t.seconds / ours[t.s_k]:.2f} x"
        print(f"{t.s_k:7d}  {t.name:16}{t.seconds * 1e6:10.1f}  {t.tflops:8.3f}  {t.gbytes:7.1f}  "
              f"{ratio:>9}")


def _draw(timings, path, title):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharex=True)
    for name in dict.fromkeys(t.name for t in timings):
        mine = [t for t in timings if t.name == name]
        for axis, values in zip(axes, ([t.tflops for t in mine], [t.gbytes for t in mine])):
            axis.plot([t.s_k for t in mine], values, marker="o", label=name)
    for axis, label in zip(axes, ("TFLOP/s", "GB/s")):
        axis.set(xscale="log", xlabel="sequence length", ylabel=label)
        axis.set_xticks([t.s_k for t in mine], [str(t.s_k) for t in mine], rotation=45)
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _check_writable(path) -> None:
    """Before the minutes of work, not after; an old file stays until the new one is written."""
    if not path:
        return
    target = os.path.realpath(path)
    asked = target if os.path.exists(target) else os.path.dirname(target)
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not os.path.exists(asked):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if not os.access(asked, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def run_bench(options, device: str) -> int:
    """Measures, prints, and writes what was asked for."""
    try:
        import torch
    except ImportError:
        raise ImportError("bench compares with PyTorch: pip install torch") from None
    if options.plot:
        try:
            import matplotlib  # noqa: F401  before the minutes of work, not after
        except ImportError:
            raise ImportError("--plot draws with matplotlib: pip install matplotlib") from None
    for path in (options.plot, options.csv):
        _check_writable(path)
    shape = _Shape(options, device)
    info = libmla.device_info(device, options.index if device == "cuda" else 0)
    where = info.name
    if device == "cpu":
        where += f", {info.num_threads} threads, {info.isa_used}"
    title = (f"dense MLA decode, {options.dtype}: b {shape.b}, s_q {shape.s_q}, h_q {shape.h_q}, "
             f"page {shape.page_size}\n{where}")
    print(title)
    if device == "cpu" and torch.get_num_threads() != info.num_threads:
        torch.set_num_threads(info.num_threads)
    on = torch.device(device, options.index if device == "cuda" else None)
    timings = _measure(torch, shape, on, getattr(torch, options.dtype), options.seconds)
    _print_table(timings)
    if options.csv:
        with open(options.csv, "w", encoding="utf-8") as file:
            file.write("implementation,s_k,microseconds,tflops,gbytes_per_second\n")
            for t in timings:
                file.write(f"{t.name},{t.s_k},{t.seconds * 1e6:.2f},{t.tflops:.4f},"
                           f"{t.gbytes:.2f}\n")
    if options.plot:
        _draw(timings, options.plot, title)
        print(f"drawn: {options.plot}")
    return 0
