"""python -m flash_mla bench | check"""

from __future__ import annotations

import argparse
import sys


def _count(text: str) -> int:
    """A number of things, as argparse wants it converted."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def _add_device(command) -> None:
    command.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto",
                         help="where it runs; auto, the default: CUDA when torch sees a GPU that "
                              "libmla serves, else the CPU")
    command.add_argument("--index", type=int, default=0, metavar="I",
                         help="which GPU (default 0)")


def _add_check(commands) -> None:
    check = commands.add_parser(
        "check", help="is it right here? Every operation against float64 attention in numpy",
        description="Runs every operation on small batches and compares it with float64 attention "
                    "in numpy: a few seconds. Unused rows of the cache hold NaN and unused "
                    "entries of the block table wild numbers, which must not show. numpy is "
                    "all it needs on the CPU; on a GPU torch or CuPy makes the arrays.",
        epilog="A line for each case: ok with its relative error (16-bit results allow 4e-3), "
               "absent with the reason where this device does not offer the operation, or FAILED. "
               "Exit status: 0 all right, 1 something FAILED, 2 wrong use or no such device.")
    _add_device(check)


def _add_bench(commands, program: str) -> None:
    bench = commands.add_parser(
        "bench", help="is it fast here? Dense decode beside PyTorch's own attention",
        description="Times dense decode over a range of sequence lengths beside PyTorch's "
                    "attention over the same keys, laid out contiguously for it: "
                    "scaled_dot_product_attention, and two matrix products around a softmax. All "
                    "are timed in turn, so that what disturbs the machine disturbs all. Needs "
                    "torch.",
        epilog="The columns: median time of a call, 2 * heads * tokens * length * (576 + 512) FLOP "
               "a request over it, bytes of cache, queries and output over it, and how many times "
               "as long PyTorch takes. Exit status: 0 done, 1 failed (results differ, no memory), "
               f"2 wrong use. Example: python -m {program} bench --heads 16 --seqlens 1024 8192 "
               "--plot bench.png. The tool `mla bench` measures more: limits of the machine, "
               "sparse operations, other formats.")
    _add_device(bench)
    bench.add_argument("--batch", type=_count, default=None, metavar="N",
                       help="requests (default 1 on the CPU, 128 on CUDA)")
    bench.add_argument("--heads", type=_count, default=128, metavar="N",
                       help="query heads; DeepSeek V3 has 128, over tensor parallelism (default "
                            "128)")
    bench.add_argument("--tokens", type=_count, default=1, metavar="N",
                       help="query tokens of a request: 1 to decode, more to verify drafts "
                            "(default 1)")
    bench.add_argument("--seqlens", type=_count, nargs="+", default=None, metavar="N",
                       help="tokens in the cache of every request (default 512, 1024 ... 8192, on "
                            "CUDA up to 32768)")
    bench.add_argument("--page-size", type=_count, default=64, metavar="N",
                       help="tokens of a page; CUDA takes 8, 16, 32 and multiples of 64 (default "
                            "64)")
    bench.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16",
                       help="of queries, cache and output (default bfloat16)")
    bench.add_argument("--seconds", type=float, default=1.0, metavar="X",
                       help="time to spend on a sequence length (default 1.0)")
    bench.add_argument("--plot", metavar="FILE",
                       help="draw TFLOP/s and GB/s over the length as .png, .svg or .pdf (needs "
                            "matplotlib)")
    bench.add_argument("--csv", metavar="FILE", help="write the table")


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description="Multi-head Latent Attention kernels on this machine: are they right, are they "
                    "fast? The calls themselves are explained by help(libmla) and docs/python.md.",
        epilog=f"python -m {program} COMMAND --help explains a command.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{check,bench}")
    _add_check(commands)
    _add_bench(commands, program)
    return parser


def _choose_device(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    try:
        import torch

        import libmla

        if torch.cuda.is_available():
            libmla.device_info("cuda")
            return "cuda"
    except (ImportError, NotImplementedError):
        pass
    return "cpu"


def main(program: str = "libmla", arguments=None) -> int:
    options = _parser(program).parse_args(arguments)
    device = _choose_device(options.device)
    try:
        if options.command == "check":
            from .self_check import run_checks

            return 1 if run_checks(device, options.index) else 0
        from .bench_report import run_bench

        return run_bench(options, device)
    except (ImportError, OSError, ValueError, NotImplementedError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
