"""`mla decode` on files made from PyTorch tensors, compared with PyTorch in double precision."""
import os
import subprocess
import sys

import torch

from tool_runner import Tensor, Tool, file_bytes, read_file

try:
    import safetensors.torch
except ImportError:
    safetensors = None

DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.int32: "I32",
          torch.int64: "I64", torch.uint8: "U8"}
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
INFINITY = float("inf")


def to_bytes(tensor):
    flat = tensor.contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def from_file(tensor):
    flat = torch.frombuffer(bytearray(tensor.data), dtype=TORCH_DTYPES[tensor.dtype])
    return flat.reshape(tensor.shape)


def decode(tool, tensors, *options):
    """Writes the file (with the safetensors package where it is), runs the tool, reads it back."""
    path, out = tool.path("in.safetensors"), tool.path("out.safetensors")
    if safetensors is not None:
        safetensors.torch.save_file({n: t.contiguous() for n, t in tensors.items()}, path)
    else:
        tool.write("in.safetensors", file_bytes(
            {n: Tensor(DTYPES[t.dtype], t.shape, to_bytes(t)) for n, t in tensors.items()}))
    status, stdout, stderr = tool.run("decode", path, "-o", out, *options)
    tool.check("exit status", status == 0, stdout + stderr)
    if status != 0:
        tool.finish()
    if safetensors is not None:
        return safetensors.torch.load_file(out)
    return {name: from_file(tensor) for name, tensor in read_file(out).items()}


def attend(q, keys, scale=None, sink=None):
    """q [rows, d], keys [n, d], both double: out [rows, 512], lse and largest logit [rows]."""
    if keys.shape[0] == 0:
        empty = torch.full((q.shape[0],), -INFINITY, dtype=torch.double)
        return torch.zeros(q.shape[0], 512, dtype=torch.double), empty, empty
    logits = q @ keys.T * (q.shape[1] ** -0.5 if scale is None else scale)
    lse = torch.logsumexp(logits, 1)
    out = torch.softmax(logits, 1) @ keys[:, :512]
    if sink is not None:
        out = out / (1 + torch.exp(sink - lse))[:, None]
    return out, lse, logits.max(1).values


def compare(tool, name, got, out, lse, max_logits=None):
    """The manual's tolerances."""
    tool.check(name + " shapes", got["out"].shape == out.shape and got["lse"].shape == lse.shape,
               "%s %s" % (got["out"].shape, got["lse"].shape))
    delta = (got["out"].double() - out).abs()
    worst = (delta / (8e-4 + 2.01 / 128 * out.abs())).max().item()
    norm = (delta.norm() / out.norm()).item()
    cosine = 1 - 2 * (got["out"].double() * out).sum().item() / (
        got["out"].double().norm().item() ** 2 + out.norm().item() ** 2)
    tool.check(name + " out", worst <= 1 and norm <= 4e-3 and cosine <= 5e-6,
               "worst element %.3g of the tolerance, norm %.3g, cosine %.3g" % (worst, norm, cosine))
    for what, value in (("lse", lse), ("max_logits", max_logits)):
        if value is None:
            continue
        seen = got[what].double()
        finite = torch.isfinite(value)
        same = bool((seen[~finite] == value[~finite]).all())
        error = ((seen - value)[finite].abs() / (1e-6 + 8.01 / 65536 * value[finite].abs()))
        error = error.max().item() if error.numel() else 0
        tool.check("%s %s" % (name, what), same and error <= 1, "%.3g of the tolerance" % error)
    print("%-44s out %.3f, norm %.2e" % (name, worst, norm))


def dense_case(tool, name, dtype, seqlens, s_q, h_q, h_kv, page, causal=False, scale=None,
               int_dtype=torch.int32, options=()):
    batch, d = len(seqlens), 576
    needed = [(length + page - 1) // page for length in seqlens]
    q = torch.randn(batch, s_q, h_q, d).to(dtype)
    cache = torch.full((sum(needed) + 3, page, h_kv, d), float("nan")).to(dtype)
    pages = torch.randperm(cache.shape[0])[:sum(needed)].split(needed)
    table = torch.full((batch, max(needed) + 2), -1, dtype=int_dtype)
    out = torch.zeros(batch, s_q, h_q, 512, dtype=torch.double)
    lse = torch.zeros(batch, s_q, h_q, dtype=torch.double)
    for i, length in enumerate(seqlens):
        table[i, :needed[i]] = pages[i].to(int_dtype)
        keys = torch.randn(length, h_kv, d).to(dtype)
        for token in range(length):
            cache[pages[i][token // page], token % page] = keys[token]
        for t in range(s_q):
            seen = max(0, length - s_q + t + 1) if causal else length
            for head in range(h_kv):
                rows = slice(head * h_q // h_kv, (head + 1) * h_q // h_kv)
                out[i, t, rows], lse[i, t, rows], _ = attend(
                    q[i, t, rows].double(), keys[:seen, head].double(), scale)
    got = decode(tool, {"q": q, "kv_cache": cache, "block_table": table,
                        "seqlens": torch.tensor(seqlens, dtype=int_dtype)},
                 *options, *(["--causal"] if causal else []),
                 *(["--scale", str(scale)] if scale is not None else []))
    if "--lse-empty-positive" in options:
        lse[lse == -INFINITY] = INFINITY
    compare(tool, name, got, out, lse)


def e4m3_values():
    """All 256 codes by the definition of the format."""
    values = torch.zeros(256, dtype=torch.double)
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        value = mantissa * 2.0 ** -9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
        values[code] = float("nan") if code & 127 == 127 else -value if code & 128 else value
    return values


def fp8_pool(row_bytes, pages, page):
    """Random rows of 656 or 584 bytes as the file has them, and their values [slots, d]."""
    slots, latent = pages * page, 512 if row_bytes == 656 else 448
    codes = (torch.randint(0, 65, (slots, latent)) + 128 * torch.randint(0, 2, (slots, latent)))
    codes = codes.to(torch.uint8)
    rope = torch.randn(slots, 64).to(torch.bfloat16)
    rope_bytes = rope.view(torch.uint8).reshape(slots, 128)
    if row_bytes == 656:
        scales = torch.rand(slots, 4) * 1.7 + 0.01
        scale_bytes = scales.view(torch.uint8).reshape(slots, 16)
        pool = torch.cat([codes, scale_bytes, rope_bytes], 1).reshape(pages, page, 656)
        factors = scales.double().repeat_interleave(128, 1)
    else:
        exponents = torch.randint(125, 129, (slots, 8)).to(torch.uint8)
        data = torch.cat([codes, rope_bytes], 1).reshape(pages, page * 576)
        pool = torch.cat([data, exponents.reshape(pages, page * 8)], 1).reshape(pages, page, 584)
        factors = (2.0 ** (exponents[:, :7].double() - 127)).repeat_interleave(64, 1)
    values = e4m3_values()[codes.long()] * factors
    return pool.contiguous(), torch.cat([values, rope.double()], 1)


def sparse_case(tool, name, row_bytes, with_extra):
    batch, s_q, h_q, topk, page = 3, 2, 64, 300, 64
    pool, values = fp8_pool(row_bytes, 12, page)
    extra_pool, extra_values = fp8_pool(row_bytes, 9, 32)
    q = torch.randn(batch, s_q, h_q, values.shape[1]).to(torch.bfloat16)
    indices = torch.randint(-200, 12 * page + 50, (batch, s_q, topk), dtype=torch.int32)
    extra_indices = torch.randint(-9, 9 * 32, (batch, s_q, 65), dtype=torch.int32)
    lengths = torch.tensor([topk, 129, 0], dtype=torch.int32)
    sink = torch.randn(h_q)
    tensors = {"q": q, "kv_cache": pool, "indices": indices, "topk_length": lengths,
               "attn_sink": sink}
    if with_extra:
        tensors.update(extra_kv_cache=extra_pool, extra_indices=extra_indices)
    out = torch.zeros(batch, s_q, h_q, 512, dtype=torch.double)
    lse = torch.zeros(batch, s_q, h_q, dtype=torch.double)
    for i in range(batch):
        for t in range(s_q):
            chosen = indices[i, t, :lengths[i]].long()
            keys = values[chosen[(chosen >= 0) & (chosen < values.shape[0])]]
            if with_extra:
                chosen = extra_indices[i, t].long()
                keys = torch.cat([keys, extra_values[chosen[chosen >= 0]]])
            out[i, t], lse[i, t], _ = attend(q[i, t].double(), keys, sink=sink.double())
    compare(tool, name, decode(tool, tensors), out, lse)


def prefill_case(tool, name, dtype, d):
    s_q, h_q, s_kv, topk = 40, 32, 200, 100
    q, kv = torch.randn(s_q, h_q, d).to(dtype), torch.randn(s_kv, 1, d).to(dtype)
    indices = torch.randint(-20, s_kv, (s_q, 1, topk), dtype=torch.int64)
    lengths = torch.randint(0, topk + 1, (s_q,), dtype=torch.int32)
    lengths[0] = 0
    results = []
    for t in range(s_q):
        chosen = indices[t, 0, :lengths[t]]
        results.append(attend(q[t].double(), kv[chosen[chosen >= 0], 0].double()))
    out, lse, max_logits = (torch.stack(values) for values in zip(*results))
    got = decode(tool, {"q": q, "kv": kv, "indices": indices, "topk_length": lengths})
    compare(tool, name, got, out, lse, max_logits)


def pack_case(tool, name, row_format, d):
    """bf16 rows, packed, unpacked: within half a step of e4m3, RoPE values to the bit."""
    rows = (torch.randn(130, 1, d) * torch.logspace(-3, 3, 130)[:, None, None]).to(torch.bfloat16)
    source = tool.write("rows", file_bytes({"kv": Tensor("BF16", rows.shape, to_bytes(rows))}))
    status, _, stderr = tool.run("pack", source, "-o", tool.path("cache"), "--format", row_format)
    tool.check(name + " pack", status == 0, stderr)
    status, _, stderr = tool.run("unpack", tool.path("cache"), "-o", tool.path("back"),
                                 "--tokens", "130")
    tool.check(name + " unpack", status == 0, stderr)
    if status == 0:
        back = from_file(read_file(tool.path("back"))["kv"]).reshape(rows.shape)
        latent = d - 64
        same = bool((back[..., latent:] == rows[..., latent:]).all())
        group_max = rows[..., :latent].abs().double().amax(-1, keepdim=True)
        allowed = rows[..., :latent].double().abs() / 16 + group_max * 2.0 ** -16 + 1e-7
        error = (back.double() - rows.double())[..., :latent].abs()
        tool.check(name, same and bool((error <= allowed).all()),
                   "%.3g of what is allowed" % (error / allowed).max().item())


def example_case(tool):
    """examples/make_decode_input.py makes a file that decode takes."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples",
                          "make_decode_input.py")
    path = tool.path("example.safetensors")
    done = subprocess.run([sys.executable, script, path], capture_output=True, text=True,
                          timeout=300)
    tool.check("the example", done.returncode == 0, done.stdout + done.stderr)
    status, stdout, stderr = tool.run("decode", path, "-o", tool.path("out"), "--verify")
    tool.check("decode of the example", status == 0 and "4 requests" in stdout, stdout + stderr)


def main():
    torch.manual_seed(1)
    tool = Tool(sys.argv[1])
    print("PyTorch %s, safetensors %s" % (
        torch.__version__, safetensors.__version__ if safetensors else "by hand"))
    bf16, f16 = torch.bfloat16, torch.float16
    dense_case(tool, "4 requests, page 64, 128 heads, bf16", bf16, [1000, 64, 1, 333], 1, 128, 1,
               64)
    dense_case(tool, "4 requests, page 64, 128 heads, fp16", f16, [1000, 64, 1, 333], 1, 128, 1,
               64)
    dense_case(tool, "causal, 3 tokens, 2 KV heads, I64", f16, [130, 2, 65], 3, 16, 2, 16, True,
               int_dtype=torch.int64)
    dense_case(tool, "scale 0.2, an empty request", bf16, [70, 0, 5], 1, 16, 1, 64, scale=0.2,
               options=("--parts", "3", "--lse-empty-positive"))
    for row_bytes in (656, 584):
        sparse_case(tool, "sparse, rows of %d bytes, sink" % row_bytes, row_bytes, False)
        sparse_case(tool, "sparse, rows of %d bytes, two pools" % row_bytes, row_bytes, True)
    prefill_case(tool, "sparse prefill, bf16, d_qk 576", bf16, 576)
    prefill_case(tool, "sparse prefill, fp16, d_qk 512", f16, 512)
    pack_case(tool, "rows of 656 bytes", "fp8_656", 576)
    pack_case(tool, "rows of 584 bytes", "fp8_584", 512)
    example_case(tool)
    tool.finish()


main()
