"""Generates tokens with a tiny DeepSeek-style model: two MLA layers with weight absorption over a
paged cache, three requests that arrive at different steps. decode_loop.c is the same program in C;
both print the same tokens.

    python examples/decode_loop.py             numpy on the CPU
    python examples/decode_loop.py --check     and compare with attention that absorbs nothing
"""

import argparse

import libmla
import numpy as np

LAYERS, HIDDEN, HEADS, VOCAB = 2, 128, 8, 64
NOPE, ROPE = 32, 64  # query and key values of a head without and with position
LATENT = 512  # what is cached in place of keys and values
V = 32  # value size of a head
STEPS, PAGE, POOL_PAGES, MAX_PAGES = 40, 16, 8, 3
ARRIVAL, PROMPT_LEN = (0, 7, 21), (20, 5, 3)  # per request: its first step, its prompt's length
SCALE = (NOPE + ROPE) ** -0.5


def uniform(sequence, count, first=0):
    """Numbers of a random sequence, uniform in [-1, 1): splitmix64 of a counter."""
    x = np.arange(first + 1, first + count + 1, dtype=np.uint64) + np.uint64(sequence << 32)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def weights(shape, fan_in, sequence):
    values = uniform(sequence, int(np.prod(shape))) * np.sqrt(3.0 / fan_in)
    return values.astype(np.float32).astype(np.float64).reshape(shape)


class Layer:
    def __init__(self, idx):
        sequence = 1 + 10 * idx
        self.q_nope = weights((HEADS, NOPE, HIDDEN), HIDDEN, sequence)
        self.q_rope = weights((HEADS, ROPE, HIDDEN), HIDDEN, sequence + 1)
        self.latent = weights((LATENT, HIDDEN), HIDDEN, sequence + 2)
        self.k_rope = weights((ROPE, HIDDEN), HIDDEN, sequence + 3)
        self.k_up = weights((HEADS, NOPE, LATENT), NOPE, sequence + 4)  # latent to key
        self.v_up = weights((HEADS, V, LATENT), LATENT, sequence + 5)  # latent to value
        self.out = weights((HIDDEN, HEADS * V), HEADS * V, sequence + 6)
        self.cache = np.zeros((POOL_PAGES, PAGE, 1, LATENT + ROPE), np.uint16)  # bfloat16 bits


def normalize(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def rotate(x, position):
    """Rotates pairs (x[i], x[i + ROPE / 2]) of the last dimension by the position's angles."""
    angle = position * 10000.0 ** (-2.0 * np.arange(ROPE // 2) / ROPE)
    a, b = x[..., : ROPE // 2], x[..., ROPE // 2 :]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def prepare(layer, x, position):
    """Before attention: the cache row of a token and its absorbed queries."""
    h = normalize(x)
    row = np.concatenate([normalize(layer.latent @ h), rotate(layer.k_rope @ h, position)])
    # q . (k_up latent) = (k_up^T q) . latent: the query meets the latent row itself.
    absorbed = np.einsum("hnl,hn->hl", layer.k_up, layer.q_nope @ h)
    q = np.concatenate([absorbed, rotate(layer.q_rope @ h, position)], -1)
    return to_bf16(row), to_bf16(q)


def finish(layer, attended, x):
    """After attention: from the mixed latents of all heads back to the residual stream."""
    values = np.einsum("hvl,hl->hv", layer.v_up, from_bf16(attended))
    return x + layer.out @ values.reshape(-1)


def attend_unabsorbed(layer, x, position, rows):
    """The textbook way: keys and values of every head are made from the latent rows. [heads, V]"""
    h = normalize(x)
    latents, k_rope = rows[:, :LATENT], rows[:, LATENT:]
    keys = np.einsum("hnl,tl->htn", layer.k_up, latents)
    logits = np.einsum("htn,hn->ht", keys, layer.q_nope @ h)
    logits = (logits + rotate(layer.q_rope @ h, position) @ k_rope.T) * SCALE
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("ht,hvl,tl->hv", p, layer.v_up, latents)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true",
                        help="compare every step with attention that absorbs nothing")
    check = parser.parse_args().check

    requests = range(len(ARRIVAL))
    layers = [Layer(i) for i in range(LAYERS)]
    embedding = weights((VOCAB, HIDDEN), 3, 0)
    output_head = weights((VOCAB, HIDDEN), HIDDEN, 900)
    tokens = [[int((uniform(1000, 1, r * 100 + i)[0] + 1.0) * 0.5 * VOCAB)
               for i in range(PROMPT_LEN[r])] for r in requests]
    block_table = np.zeros((len(requests), MAX_PAGES), np.int32)
    seqlens = np.zeros(len(requests), np.int32)
    q = np.zeros((len(requests), 1, HEADS, LATENT + ROPE), np.uint16)
    rows = np.zeros((len(requests), 1, LATENT + ROPE), np.uint16)
    x = np.zeros((len(requests), HIDDEN))
    plan = libmla.plan_decode(q, layers[0].cache, block_table, seqlens, causal=True)
    pages_used, worst = 0, 0.0

    for step in range(STEPS):
        slots = np.full(len(requests), -1, np.int64)  # not here yet: length 0, nothing is written
        here = [r for r in requests if step >= ARRIVAL[r]]
        for r in here:
            position = step - ARRIVAL[r]
            if position % PAGE == 0:
                block_table[r, position // PAGE] = pages_used
                pages_used += 1
            slots[r] = block_table[r, position // PAGE] * PAGE + position % PAGE
            seqlens[r] = position + 1
            x[r] = embedding[tokens[r][position]]
        plan.update(seqlens)  # one plan for all layers
        for layer in layers:
            for r in here:
                rows[r, 0], q[r, 0] = prepare(layer, x[r], step - ARRIVAL[r])
            libmla.pack_kv(rows, layer.cache, slots)
            out, _ = libmla.decode(q, layer.cache, block_table, seqlens, plan=plan, causal=True,
                                   softmax_scale=SCALE)
            for r in here:
                if check:
                    cached = from_bf16(layer.cache[block_table[r]].reshape(-1, LATENT + ROPE))
                    want = attend_unabsorbed(layer, x[r], step - ARRIVAL[r], cached[: seqlens[r]])
                    got = np.einsum("hvl,hl->hv", layer.v_up, from_bf16(out[r, 0]))
                    worst = max(worst, np.linalg.norm(got - want) / np.linalg.norm(want))
                x[r] = finish(layer, out[r, 0], x[r])
        for r in here:
            if step - ARRIVAL[r] + 1 >= PROMPT_LEN[r]:
                tokens[r].append(int(np.argmax(output_head @ normalize(x[r]))))

    for r in requests:
        generated = " ".join(map(str, tokens[r][PROMPT_LEN[r] : STEPS - ARRIVAL[r]]))
        print(f"request {r}: {generated}  hidden {x[r][0]:.2f} {x[r][1]:.2f} {x[r][2]:.2f}")
    if check:
        print(f"largest relative difference to attention without absorption: {worst:.1e}")
        if worst > 1e-2:
            raise SystemExit("that is too much for bf16")


if __name__ == "__main__":
    main()
