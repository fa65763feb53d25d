"""python -m flash_mla bench | check"""

from __future__ import annotations

import argparse
import sys


def _count(text: str) -> int:
    """A number of things, as argparse wants it converted."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description="libmla on this machine: is it right, is it fast?")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check", help="compare every operation with float64 attention in numpy",
        description="Compares every operation with float64 attention in numpy, unused memory "
                    "poisoned. Exit status 1 when one is off.")
    bench = commands.add_parser(
        "bench", help="time dense decode beside PyTorch's own attention",
        description="Times dense decode over a range of sequence lengths beside PyTorch's "
                    "attention over the same keys, laid out contiguously for it. Both are timed in "
                    "turn, so that what disturbs the machine disturbs both.")
    for command in (check, bench):
        command.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto",
                             help="auto: CUDA when torch sees a GPU that libmla serves")
        command.add_argument("--index", type=int, default=0, help="CUDA device ordinal")
    bench.add_argument("--batch", type=_count, default=None, help="requests (CPU 1, CUDA 128)")
    bench.add_argument("--heads", type=_count, default=128, help="query heads (128)")
    bench.add_argument("--tokens", type=_count, default=1, help="query tokens of a request (1)")
    bench.add_argument("--seqlens", type=_count, nargs="+", default=None, metavar="N",
                       help="sequence lengths (512 ... 8192, on CUDA ... 32768)")
    bench.add_argument("--page-size", type=_count, default=64, help="tokens of a page (64)")
    bench.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
    bench.add_argument("--seconds", type=float, default=1.0, help="time a sequence length (1.0)")
    bench.add_argument("--plot", metavar="FILE", help="draw TFLOP/s and GB/s (needs matplotlib)")
    bench.add_argument("--csv", metavar="FILE", help="write the table")
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
    except ImportError as error:
        print(f"{program}: {error}", file=sys.stderr)
    except (ValueError, NotImplementedError, RuntimeError) as error:
        print(f"{program}: {error}", file=sys.stderr)
    return 2
