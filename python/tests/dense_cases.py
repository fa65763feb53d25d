"""Dense decode batches with everything that must not matter filled with poison (torch)."""

import random
from dataclasses import dataclass, replace

import torch
from libmla.numpy_reference import attend, check_lse, check_out, rounding_bound

WILD_PAGE = 2147480000  # in entries of the block table that no length reaches


@dataclass(frozen=True)
class DenseCase:
    b: int
    s_q: int
    s_k: int
    h_q: int
    h_kv: int = 1
    causal: bool = True
    varlen: bool = True
    zero_lengths: bool = False
    page_size: int = 64
    dtype: torch.dtype = torch.bfloat16
    d: int = 576
    std: float = 1.0
    seed: int = 0

    @property
    def cost(self):
        """Logits of the call; making a cached value costs about as much as a logit."""
        return self.b * self.s_k * (self.s_q * self.h_q + self.h_kv * self.d)

    def __str__(self):
        marks = ("-causal" if self.causal else "") + ("-varlen" if self.varlen else "") + (
            "-zero" if self.zero_lengths else "")
        return (f"b{self.b}-sq{self.s_q}-sk{self.s_k}-hq{self.h_q}-hkv{self.h_kv}"
                f"-page{self.page_size}{marks}")


class DenseBatch:
    """The tensors of a case, on a device."""

    def __init__(self, case, device="cpu"):
        self.case = case
        torch.manual_seed(case.seed)
        rng = random.Random(case.seed)
        self.lengths = [self._length(rng, i) for i in range(case.b)]
        pages = [-(-length // case.page_size) for length in self.lengths]
        num_pages = sum(pages) + 3
        self.cache = self._random(device, num_pages, case.page_size, case.h_kv, case.d)
        order = list(range(num_pages))
        rng.shuffle(order)
        table = torch.full((case.b, max(pages) + 2), WILD_PAGE, dtype=torch.int32)
        self.cache[order[sum(pages):]] = float("nan")  # whole pages that nobody names
        for i, count in enumerate(pages):
            mine, order = order[:count], order[count:]
            table[i, :count] = torch.tensor(mine, dtype=torch.int32)
            used = self.lengths[i] % case.page_size
            if used:
                self.cache[mine[-1], used:] = float("nan")
        self.q = self._random(device, case.b, case.s_q, case.h_q, case.d)
        self.table = table.to(device)
        self.seqlens = torch.tensor(self.lengths, dtype=torch.int32, device=device)

    def _random(self, device, *shape):
        return torch.randn(shape, device=device).mul_(self.case.std).to(self.case.dtype)

    def _length(self, rng, idx):
        case = self.case
        if case.zero_lengths and (idx % 3 == 0 or case.b == 1):
            return 0
        return max(0, int(rng.gauss(case.s_k, case.s_k / 2))) if case.varlen else case.s_k

    def keys(self, idx):
        """The keys of one request, in order."""
        count = -(-self.lengths[idx] // self.case.page_size)
        pages = self.cache[self.table[idx, :count].long()].flatten(0, 1)
        return pages[: self.lengths[idx]]

    def row_args(self, idx, scale=None):
        """What attend() and rounding_bound() are given for one request."""
        case = self.case
        length = self.lengths[idx]
        visible = [length - case.s_q + 1 + t if case.causal else length for t in range(case.s_q)]
        scale = case.d**-0.5 if scale is None else scale
        return self.q[idx].double().cpu(), self.keys(idx).double().cpu(), scale, visible

    def bound(self, idx, scale=None):
        """For check_out(): GPU kernels round P, those of the CPU make up for it."""
        if self.q.device.type == "cpu":
            return None
        unit = 2.0**-11 if self.case.dtype == torch.float16 else 2.0**-8
        return lambda: rounding_bound(*self.row_args(idx, scale), unit=unit)

    def check(self, out, lse, budget=1e6, scale=None):
        """Compares requests, first and last included, until `budget` logits have been computed."""
        case = self.case
        assert out.shape == (case.b, case.s_q, case.h_q, 512) and out.dtype == case.dtype
        assert lse.shape == (case.b, case.h_q, case.s_q) and lse.dtype == torch.float32
        assert not torch.isnan(out).any() and not torch.isnan(lse).any()
        order = list(range(case.b))
        random.Random(1).shuffle(order)
        chosen = dict.fromkeys([0, case.b - 1] + order)
        for idx in chosen:
            budget -= self.lengths[idx] * case.s_q * case.h_q + 5e4
            if budget < 0 and idx not in (0, case.b - 1):
                break
            want_out, want_lse, _ = attend(*self.row_args(idx, scale))
            check_out(out[idx].double().cpu(), want_out, f"out[{idx}]", self.bound(idx, scale))
            check_lse(lse[idx].double().cpu(), want_lse, f"lse[{idx}]")


def grid():
    """FlashMLA's own dense grid, and what users need beyond it."""
    heads = [(1, 1), (3, 1), (3, 3), (9, 1), (9, 3), (63, 1), (63, 3), (64, 1), (64, 2), (64, 8),
             (126, 1), (126, 2), (126, 3), (128, 1), (128, 2), (128, 8)]
    cases = [
        DenseCase(b, s_q, s_k, h_q, h_kv, causal, varlen, zero_lengths)
        for b in (1, 2, 6, 64) for s_q in (1, 2, 4) for s_k in (20, 140, 4096)
        for h_q, h_kv in heads for causal in (False, True)
        for varlen, zero_lengths in ((False, False), (True, False), (True, True))
    ]
    return [replace(case, seed=i) for i, case in enumerate(cases)]


def sample(cases, budget):
    """As many cases as cost allows: all dimensions' values stay in, large ones become rarer."""
    rng = random.Random(2026)
    chosen = []
    for case in cases:
        # A call and its reference cost about as much as 1e6 logits before the first one.
        if rng.random() < budget / (case.cost + 1e6):
            chosen.append(case)
    return chosen
