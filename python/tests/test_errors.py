"""Wrong arguments raise ValueError, TypeError or NotImplementedError naming them; none crashes."""

import libmla
import numpy as np
import pytest


def arguments():
    return dict(
        q=np.zeros((2, 3, 8, 576), np.float16),
        k_cache=np.zeros((4, 16, 1, 576), np.float16),
        block_table=np.zeros((2, 4), np.int32),
        cache_seqlens=np.array([20, 10], np.int32),
        head_dim_v=512,
        tile_scheduler_metadata=libmla.get_mla_metadata()[0],
    )


def test_the_arguments_themselves_are_right():
    libmla.flash_mla_with_kvcache(**arguments())


def read_only(array):
    array.flags.writeable = False
    return array


def expanded(array):
    return np.lib.stride_tricks.as_strided(array, array.shape, (0,) * (array.ndim - 1) + (2,))


WRONG = [
    ("q", np.zeros((2, 8, 576), np.float16), ValueError, "q: expected shape"),
    ("q", np.zeros((2, 3, 8, 576), np.float32), TypeError, "q: dtype must be bfloat16 or float16"),
    ("q", np.zeros((2, 3, 8, 100), np.float16), ValueError, "k_cache: rows have 576"),
    ("q", np.zeros((2, 3, 8, 1152), np.float16)[..., ::2], ValueError, "q: the last dimension"),
    ("q", expanded(np.zeros((2, 3, 8, 576), np.float16)), ValueError, "q: is expanded"),
    ("q", np.zeros((2, 3, 8, 576), ">f2"), TypeError, "q: dtype must be of this machine's byte"),
    ("cache_seqlens", np.array([20, 10], ">i4"), TypeError, "cache_seqlens: dtype must be of this"),
    ("q", [1.0], TypeError, "q: expected"),
    ("q", None, TypeError, "q: expected"),
    ("k_cache", None, TypeError, "k_cache: is None"),
    ("k_cache", np.zeros((4, 16, 576), np.float16), ValueError, "k_cache: expected shape"),
    ("k_cache", np.zeros((4, 16, 1, 576), np.uint16), TypeError, "dtype must be that of q"),
    ("k_cache", np.zeros((4, 16, 1, 656), np.uint8), TypeError, "is_fp8_kvcache=True"),
    ("k_cache", np.zeros((4, 16, 3, 576), np.float16), ValueError, "h_kv = 3"),
    ("k_cache", "cache", TypeError, "k_cache: expected"),
    ("block_table", None, ValueError, "block_table: is None"),
    ("block_table", np.zeros((2, 4), np.int64), TypeError, "block_table: dtype must be int32"),
    ("block_table", np.zeros((3, 4), np.int32), ValueError, "block_table: expected shape"),
    ("block_table", np.full((2, 4), 77, np.int32), ValueError, r"block_table\[0\]\[0\] = 77"),
    ("block_table", np.zeros((2, 1), np.int32), ValueError, r"seqlens\[0\] = 20"),
    ("cache_seqlens", None, ValueError, "cache_seqlens: is None"),
    ("cache_seqlens", np.array([1, 2], np.int64), TypeError, "cache_seqlens: dtype must be int32"),
    ("cache_seqlens", np.array([1], np.int32), ValueError, "cache_seqlens: expected shape"),
    ("cache_seqlens", np.array([1, -2], np.int32), ValueError, r"seqlens\[1\] = -2"),
    ("head_dim_v", 256, ValueError, "head_dim_v = 256"),
    ("tile_scheduler_metadata", None, TypeError, "tile_scheduler_metadata: is None"),
    ("tile_scheduler_metadata", 3, TypeError, "expected the result of get_mla_metadata"),
    ("tile_scheduler_metadata", np.zeros((9, 8), np.int32), ValueError, "holds no schedule"),
    ("tile_scheduler_metadata", np.zeros((2, 8), np.int32), ValueError, "needs"),
    ("tile_scheduler_metadata", np.zeros((9, 7), np.int32), ValueError, r"\[n, 8\]"),
    ("num_splits", np.zeros(3, np.int32), ValueError, "num_splits: must be left out"),
    ("softmax_scale", float("nan"), ValueError, "softmax_scale = nan"),
    ("softmax_scale", "big", TypeError, "softmax_scale: expected a number"),
    ("is_fp8_kvcache", True, TypeError, "k_cache: FP8 rows are"),
    ("attn_sink", np.zeros(8, np.float64), TypeError, "attn_sink: dtype"),
    ("attn_sink", np.zeros(7, np.float32), ValueError, "attn_sink: expected shape"),
    ("topk_length", np.zeros(2, np.int32), ValueError, "topk_length: is set, but indices is None"),
    ("extra_k_cache", np.zeros((4, 16, 1, 576), np.float16), ValueError, "extra_indices_in_kv"),
    ("out", np.zeros((2, 3, 8, 511), np.float16), ValueError, "out: expected shape"),
    ("out", np.broadcast_to(np.float16(0), (2, 3, 8, 512)), ValueError, "out: "),
    ("out", read_only(np.zeros((2, 3, 8, 512), np.float16)), ValueError, "out: cannot be written"),
    ("lse", read_only(np.zeros((2, 8, 3), np.float32)), ValueError, "lse: cannot be written"),
    ("lse", np.zeros((2, 3, 8), np.float32), ValueError, "lse: expected shape"),
    ("workspace", np.zeros(4, np.int32), ValueError, "workspace: expected"),
    ("workspace", b"1234", TypeError, "workspace: expected"),
]


@pytest.mark.parametrize("name,value,error,text", WRONG,
                         ids=[f"{i}-{row[0]}" for i, row in enumerate(WRONG)])
def test_decode(name, value, error, text):
    with pytest.raises(error, match=text):
        libmla.flash_mla_with_kvcache(**{**arguments(), name: value})


def sparse_arguments():
    given = arguments()
    given.update(indices=np.zeros((2, 3, 5), np.int32), block_table=None, cache_seqlens=None)
    return given


@pytest.mark.parametrize("changes,error,text", [
    (dict(causal=True), ValueError, "causal"),
    (dict(indices=np.zeros((2, 3, 0), np.int32)), ValueError, "indices: topk"),
    (dict(extra_k_cache=np.zeros((1, 4, 1, 576), np.float16),
          extra_indices_in_kvcache=np.zeros((2, 3, 0), np.int32)), ValueError,
     "extra_indices_in_kvcache: topk"),
    (dict(indices=np.zeros((2, 3, 5), np.int64)), TypeError, "indices: dtype"),
    (dict(indices=np.zeros((2, 5), np.int32)), ValueError, "indices: expected shape"),
    (dict(topk_length=np.zeros(3, np.int32)), ValueError, "topk_length: expected shape"),
    (dict(extra_topk_length=np.zeros(2, np.int32)), ValueError, "extra_topk_length: is set"),
    (dict(extra_k_cache=np.zeros((1, 4, 1, 656), np.uint8),
          extra_indices_in_kvcache=np.zeros((2, 3, 1), np.int32)), TypeError, "extra_k_cache"),
    (dict(is_fp8_kvcache=True, k_cache=np.zeros((4, 16, 1, 600), np.uint8)), ValueError, "656 or"),
    (dict(is_fp8_kvcache=True, k_cache=np.zeros((4, 16, 1, 700), np.uint8)[..., :584]), ValueError,
     "584 bytes are 700"),
])
def test_sparse_decode(changes, error, text):
    with pytest.raises(error, match=text):
        libmla.flash_mla_with_kvcache(**{**sparse_arguments(), **changes})


def test_schedule_of_another_batch():
    given = arguments()
    given["tile_scheduler_metadata"], given["num_splits"] = libmla.get_mla_metadata(
        np.ones(5, np.int32), 24, 1)
    with pytest.raises(ValueError, match="was made for 5 requests"):
        libmla.flash_mla_with_kvcache(**given)


@pytest.mark.parametrize("call,error,text", [
    (lambda: libmla.get_mla_metadata(np.ones(2, np.int64), 8, 1), TypeError, "cache_seqlens"),
    (lambda: libmla.get_mla_metadata(np.ones(2, np.int32), 0, 1), ValueError, "h_q = 0"),
    (lambda: libmla.get_mla_metadata(np.ones(2, np.int32), 8.0, 1), TypeError,
     "num_q_tokens_per_head_k: expected a whole number"),
    (lambda: libmla.get_mla_metadata(np.ones(2, np.int32), 8, "1"), TypeError, "num_heads_k: "),
    (lambda: libmla.get_mla_metadata(np.ones(2, np.int32), 2**62, 4), ValueError, "beyond 32 bits"),
    (lambda: libmla.plan_decode(np.zeros((1, 1, 8, 576), np.float16),
                                np.zeros((4, 16, 1, 576), np.float16), np.zeros((1, 4), np.int32),
                                np.ones(1, np.int32), num_parts=2**32 + 5), ValueError,
     "num_parts: at most 65536"),
    (lambda: libmla.get_mla_metadata(np.ones(2, np.int32), 8, 1, topk=4), ValueError,
     "num_heads_q"),
    (lambda: libmla.merge([], []), ValueError, "outs, lses"),
    (lambda: libmla.merge([np.zeros((1, 1, 2, 512), np.float32)], [np.zeros((1, 1, 2), "f4")]),
     ValueError, r"lses\[0\]: expected shape"),
    (lambda: libmla.merge([np.ones((1, 1, 2, 512), "f4")], [np.zeros((1, 2, 1), "f4")],
                          out=read_only(np.zeros((1, 1, 2, 512), "f4"))), ValueError,
     "out: cannot be written"),
    (lambda: libmla.merge([np.ones((1, 1, 2, 512), "f4")], [np.zeros((1, 2, 1), "f4")],
                          lse=read_only(np.zeros((1, 2, 1), "f4"))), ValueError,
     "lse: cannot be written"),
    (lambda: libmla.unpack_kv(np.ones((1, 4, 1, 576), np.float16),
                              out=read_only(np.zeros((4, 1, 576), np.float16))), ValueError,
     "out: cannot be written"),
    (lambda: libmla.pack_kv(np.ones((4, 576), np.float16),
                            read_only(np.zeros((1, 4, 1, 576), np.float16))), ValueError,
     "cache: cannot be written"),
    (lambda: libmla.fp8_cache(-1, 64, 656, np.zeros(1)), ValueError, "num_blocks = -1"),
    (lambda: libmla.fp8_cache(1, 0, 656, np.zeros(1)), ValueError, "page_size = 0"),
    (lambda: libmla.fp8_cache(1, 64, 600, np.zeros(1)), ValueError, "row_bytes"),
    (lambda: libmla.pack_kv(np.zeros((3, 576), np.float16), np.zeros((1, 2, 1, 576), np.float16)),
     ValueError, "slots"),
    (lambda: libmla.pack_kv(np.zeros((1, 576), np.float16), np.zeros((1, 2, 1, 656), np.uint8)),
     ValueError, "dtype"),
    (lambda: libmla.pack_kv(np.zeros((1, 576), np.float16), np.zeros((1, 2, 1, 576), np.float16),
                            np.zeros(1, np.int32)), TypeError, "slots: dtype"),
    (lambda: libmla.device_info("tpu"), NotImplementedError, "tpu"),
    (lambda: libmla.device_info("cuda", -1), (ValueError, NotImplementedError), "."),
])
def test_other_calls(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_mixed_frameworks():
    torch = pytest.importorskip("torch")
    given = arguments()
    with pytest.raises(TypeError, match="k_cache: is a Tensor"):
        libmla.flash_mla_with_kvcache(**{**given, "k_cache": torch.zeros(4, 16, 1, 576)})
    given["q"] = torch.zeros(2, 3, 8, 576, dtype=torch.float16)
    with pytest.raises(TypeError, match="k_cache: is a ndarray"):
        libmla.flash_mla_with_kvcache(**given)


def test_plan_refuses_what_it_was_not_made_for():
    given = arguments()
    plan = libmla.plan_decode(given["q"], given["k_cache"], given["block_table"],
                              given["cache_seqlens"])
    with pytest.raises(ValueError, match="cache_seqlens: expected shape"):
        plan.update(np.ones(3, np.int32))
    with pytest.raises(ValueError, match="cache_seqlens: is None"):
        plan.update()
    for wrong in (3, libmla.get_mla_metadata()[0], plan.table):
        with pytest.raises(TypeError, match="plan: expected a Plan"):
            libmla.decode(given["q"], given["k_cache"], given["block_table"],
                          given["cache_seqlens"], plan=wrong)
    with pytest.raises(ValueError, match="plan was built for causal"):
        libmla.decode(given["q"], given["k_cache"], given["block_table"], given["cache_seqlens"],
                      plan=plan, causal=True)
