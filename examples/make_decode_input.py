#!/usr/bin/env python3
"""Writes an input file for `mla decode` from PyTorch tensors.

    python3 make_decode_input.py in.safetensors
    mla decode in.safetensors -o out.safetensors --verify

Four requests of DeepSeek-V3's shape: 128 query heads over one row of 512 latent and 64 RoPE values
per token, in pages of 64 tokens that lie in any order. With the safetensors package the file is one
call of save_file(); without it the format takes ten lines.
"""
import json
import struct
import sys

import torch

HEADS, D_QK, PAGE = 128, 576, 64
SEQLENS = [37, 640, 1, 1300]


def make_tensors():
    pages_of = [(length + PAGE - 1) // PAGE for length in SEQLENS]
    order = torch.randperm(sum(pages_of)).to(torch.int32)
    # Entries past a request's last page are never looked at; nor are rows past its last token.
    block_table = torch.full((len(SEQLENS), max(pages_of)), -1, dtype=torch.int32)
    for row, pages in zip(block_table, pages_of):
        row[:pages], order = order[:pages], order[pages:]
    return {
        "q": torch.randn(len(SEQLENS), 1, HEADS, D_QK).to(torch.bfloat16),
        "kv_cache": torch.randn(sum(pages_of), PAGE, 1, D_QK).to(torch.bfloat16),
        "block_table": block_table,
        "seqlens": torch.tensor(SEQLENS, dtype=torch.int32),
    }


def write_by_hand(tensors, path):
    """8 bytes of header length, the header in JSON, the tensors' bytes one after the other."""
    names = {torch.bfloat16: "BF16", torch.int32: "I32"}
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_decode_input.py FILE.safetensors")
    torch.manual_seed(1)
    tensors = make_tensors()
    try:
        from safetensors.torch import save_file
    except ImportError:
        save_file = write_by_hand
    save_file(tensors, sys.argv[1])
    print("wrote %s: requests of %s tokens" % (sys.argv[1], ", ".join(map(str, SEQLENS))))


if __name__ == "__main__":
    main()
