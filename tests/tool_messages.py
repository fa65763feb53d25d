"""The tool's answers to wrong use and to files that are missing, truncated or lie."""
import os
import resource
import shutil
import stat
import struct
import subprocess
import sys

from tool_runner import Tensor, Tool, file_bytes, read_file

OK, FAILED, BAD_INPUT = 0, 1, 2
HEADS, PAGE = 2, 4


def dense():
    """Two requests of 5 and 2 tokens in three pages of 4."""
    return {
        "q": Tensor("BF16", [2, 1, HEADS, 576]),
        "kv_cache": Tensor("BF16", [3, PAGE, 1, 576]),
        "block_table": Tensor("I32", [2, 2], [2, 0, 1, -1]),
        "seqlens": Tensor("I32", [2], [5, 2]),
    }


def sparse():
    return {
        "q": Tensor("BF16", [2, 1, HEADS, 576]),
        "kv_cache": Tensor("U8", [3, PAGE, 656]),
        "indices": Tensor("I32", [2, 1, 3], [0, -1, 5, 99, 1, 2]),
        "topk_length": Tensor("I64", [2], [3, 2]),
        "attn_sink": Tensor("F32", [HEADS]),
    }


def prefill():
    return {
        "q": Tensor("F16", [3, HEADS, 576]),
        "kv": Tensor("F16", [7, 1, 576]),
        "indices": Tensor("I64", [3, 1, 2], [0, 6, 1, -1, 2, 3]),
    }


def decode_file(tool, content, *options):
    """Runs decode on bytes or tensors; also whether an output file appeared."""
    if isinstance(content, dict):
        content = file_bytes(content)
    path, out = tool.write("in.safetensors", content), tool.path("out.safetensors")
    if os.path.exists(out):
        os.remove(out)
    status, stdout, stderr = tool.run("decode", path, "-o", out, *options)
    return status, stdout, stderr, os.path.exists(out)


def refused(tool, name, content, *texts, options=(), want=BAD_INPUT):
    status, _, stderr, written = decode_file(tool, content, *options)
    tool.check(name, status == want, "status %d instead of %d: %s" % (status, want, stderr))
    tool.check(name, not written, "an output file appeared")
    for text in texts:
        tool.check(name, text in stderr, "'%s' is not in '%s'" % (text, stderr.strip()))


def accepted(tool, name, tensors, *options):
    status, _, stderr, written = decode_file(tool, tensors, *options)
    tool.check(name, status == OK and written, "status %d: %s" % (status, stderr))
    return read_file(tool.path("out.safetensors")) if written else {}


def good_files(tool):
    out = accepted(tool, "dense", dense())
    tool.check("dense out", out["out"].shape == [2, 1, HEADS, 512] and out["out"].dtype == "BF16")
    tool.check("dense lse", out["lse"].shape == [2, 1, HEADS] and out["lse"].dtype == "F32")
    # All zero: the logits are 0, so lse is the logarithm of the length.
    lse = struct.unpack("<4f", out["lse"].data)
    tool.check("lse", abs(lse[0] - 1.6094379) < 1e-5 and abs(lse[2] - 0.6931472) < 1e-5, str(lse))
    accepted(tool, "sparse", sparse())
    out = accepted(tool, "prefill", prefill())
    tool.check("prefill outputs", sorted(out) == ["lse", "max_logits", "out"], str(sorted(out)))
    tool.check("prefill out", out["out"].shape == [3, HEADS, 512] and out["out"].dtype == "F16")
    status, stdout, stderr = tool.run("decode", tool.write("v", file_bytes(dense())), "-o",
                                      tool.path("w"), "--verify", "--isa", "reference,portable")
    tool.check("verify", status == OK and "compared" in stdout, stdout + stderr)
    spare = dense()
    spare["seqlen"] = Tensor("I32", [2])
    _, _, stderr, _ = decode_file(tool, spare)
    tool.check("unused tensor", "'seqlen' is not used" in stderr, stderr)
    spare = dense()
    spare["\x1b[31mred\n"] = Tensor("U8", [1])
    _, _, stderr, _ = decode_file(tool, spare)
    tool.check("control characters", "'?[31mred?' is not used" in stderr, stderr)


def broken_files(tool):
    whole = file_bytes(dense())
    header_bytes = 8 + struct.unpack("<Q", whole[:8])[0]
    status, _, stderr = tool.run("decode", tool.path("nowhere"), "-o", tool.path("o"))
    tool.check("missing file", status == BAD_INPUT and "nowhere" in stderr, stderr)
    status, _, stderr = tool.run("decode", tool.folder.name, "-o", tool.path("o"))
    tool.check("a folder", status == BAD_INPUT and "not a regular file" in stderr, stderr)
    for length in (0, 7, 8, 9, header_bytes - 1, header_bytes, len(whole) - 1):
        refused(tool, "cut at %d" % length, whole[:length], "in.safetensors")
    refused(tool, "too long", whole + b"x", "belong to no tensor")
    refused(tool, "huge header", b"\xff" * 7 + b"\x7f" + whole[8:], "header")
    refused(tool, "not JSON", whole[:8] + b"[" + whole[9:], "header")
    lying = dense()
    lying["kv_cache"].shape = [300, PAGE, 1, 576]
    refused(tool, "lies about its size", lying, "kv_cache", "takes")
    overflow = dense()
    overflow["kv_cache"].shape = [2**52, 2**52, 1, 576]
    refused(tool, "lies beyond 2^64", overflow, "kv_cache")
    overflow["kv_cache"] = Tensor("BF16", [0, 2**53, 2**53, 576])
    refused(tool, "empty, of huge pages", overflow, "KV heads")
    overflow["kv_cache"] = Tensor("BF16", [0, 2**53, 1, 576])
    overflow["seqlens"] = Tensor("I32", [2], [0, 0])
    refused(tool, "empty, of a huge page", overflow, "page_size")


def wrong_tensors(tool):
    def spoiled(base, name, tensor, *texts, options=()):
        tensors = base()
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
        refused(tool, "%s %s" % (base.__name__, name), tensors, name, *texts, options=options)

    for name in dense():
        spoiled(dense, name, None, "missing")
    spoiled(dense, "q", Tensor("F32", [2, 1, HEADS, 576]), "F32", "expected BF16 or F16")
    spoiled(dense, "q", Tensor("BF16", [2, HEADS, 576]), "expected")
    spoiled(dense, "q", Tensor("BF16", [2, 1, HEADS, 575]), "575", "576 or 512")
    spoiled(dense, "q", Tensor("BF16", [0, 1, HEADS, 576]), "expected")
    spoiled(dense, "kv_cache", Tensor("F16", [3, PAGE, 1, 576]), "dtype of q")
    spoiled(dense, "kv_cache", Tensor("BF16", [3, PAGE, 1, 512]), "576 values")
    spoiled(dense, "kv_cache", Tensor("BF16", [3, PAGE, 3, 576]), "divides")
    spoiled(dense, "kv_cache", Tensor("BF16", [3, 0, 1, 576]), "expected")
    spoiled(dense, "kv_cache", Tensor("U8", [3, PAGE, 655]), "656 or 584")
    spoiled(dense, "kv_cache", Tensor("I32", [3, PAGE, 1, 576]), "expected")
    spoiled(dense, "kv_cache", Tensor("BF16", [11, 1, 576]), "multiple",
            options=("--page-size", "4"))
    spoiled(dense, "block_table", Tensor("I32", [1, 2], [0, 1]), "[2, any]")
    spoiled(dense, "block_table", Tensor("I32", [4], [0, 1, 2, 0]), "[2, any]")
    spoiled(dense, "block_table", Tensor("F32", [2, 2]), "I32 or I64")
    spoiled(dense, "block_table", Tensor("I32", [2, 2], [3, 0, 1, 0]), "[0, 0]", "3")
    spoiled(dense, "block_table", Tensor("I32", [2, 2], [2, -1, 1, 0]), "[0, 1]", "-1")
    spoiled(dense, "block_table", Tensor("I64", [2, 2], [2, 2**40, 1, 0]), "[0, 1]")
    spoiled(dense, "seqlens", Tensor("I32", [3], [1, 1, 1]), "[2]")
    spoiled(dense, "seqlens", Tensor("F32", [2]), "I32 or I64")
    spoiled(dense, "seqlens", Tensor("I32", [2], [5, -1]), "element 1", "-1")
    spoiled(dense, "seqlens", Tensor("I32", [2], [9, 1]), "element 0", "9")
    spoiled(dense, "seqlens", Tensor("I64", [2], [2**33, 1]), "element 0")
    spoiled(dense, "attn_sink", Tensor("F32", [HEADS + 1]), "F32 [2]")
    spoiled(sparse, "indices", Tensor("I32", [1, 1, 3]), "[2, 1, any]")
    spoiled(sparse, "indices", Tensor("I32", [2, 1, 0]), "at least one")
    spoiled(sparse, "indices", Tensor("U8", [2, 1, 3]), "I32 or I64")
    spoiled(sparse, "topk_length", Tensor("I32", [3]), "[2]")
    spoiled(sparse, "kv_cache", Tensor("U8", [3, PAGE, 584]), "576 values")
    spoiled(prefill, "kv", None)
    spoiled(prefill, "topk_length", Tensor("I32", [2]), "[3]")
    extra = sparse()
    extra["extra_indices"] = Tensor("I32", [2, 1, 1])
    refused(tool, "no extra pool", extra, "extra_kv_cache", "missing")
    extra["extra_kv_cache"] = Tensor("BF16", [3, PAGE, 1, 576])
    refused(tool, "extra pool of another format", extra, "extra_kv_cache", "format")
    refused(tool, "causal and sparse", sparse(), "--causal", options=("--causal",))
    prefill_messages(tool)
    page = ("--extra-page-size", "4")
    refused(tool, "an extra page, dense", dense(), "--extra-page-size", "sparse decode",
            options=page)
    refused(tool, "an extra page, prefill", prefill(), "--extra-page-size", "sparse decode",
            options=page)
    refused(tool, "an extra page without its pool", sparse(), "extra_kv_cache", "missing",
            options=page)


def prefill_messages(tool):
    """What --prefill is missing is said in the words of prefill."""
    one = ("--prefill",)
    accepted(tool, "--prefill", prefill(), "--prefill")
    refused(tool, "--prefill of a batch", dense(), "'q'", "[s_q, h_q, 576 or 512]", "one prompt",
            options=one)
    tensors = prefill()
    del tensors["indices"]
    refused(tool, "--prefill without indices", tensors, "'indices' is missing", "sparse prefill",
            "[s_q, h_kv, topk]", options=one)
    refused(tool, "a prompt without indices", tensors, "'q'", "with indices")
    tensors = prefill()
    del tensors["kv"]
    refused(tool, "--prefill without kv", tensors, "'kv' is missing", "[s_kv, h_kv, 576 or 512]",
            options=one)
    tensors = prefill()
    tensors["kv_cache"] = Tensor("F16", [2, PAGE, 1, 576])
    del tensors["kv"]
    refused(tool, "--prefill with pages", tensors, "'kv_cache'", "without pages", options=one)
    refused(tool, "--prefill with a page size", prefill(), "--page-size",
            options=("--prefill", "--page-size", "4"))


def wrong_use(tool):
    uses = [
        (["frobnicate"], "frobnicate"), (["decode"], "say what to read"),
        (["decode", "a"], "say what to"), (["decode", "a", "b", "-o", "c"], "'b'"),
        (["decode", "a", "-o", "b", "--scale", "x"], "--scale"),
        (["decode", "a", "-o", "b", "--page-size", "0"], "--page-size"),
        (["decode", "a", "-o", "b", "--parts", "70000"], "--parts"),
        (["decode", "a", "-o", "b", "--isa", "sse9"], "sse9"),
        (["decode", "--nonsense"], "nonsense"), (["info", "--threads", "-1"], "--threads"),
        (["info", "--backend", "tpu"], "tpu"), (["pack"], "say what to read"),
        (["pack", "a", "-o", "b", "--format", "fp7"], "fp7"),
        (["bench", "--op", "dense", "--topk", "64"], "--topk"),
        (["bench", "--op", "dense", "--pool", "64"], "--pool"),
        (["bench", "--topk", "64", "--causal"], "--causal goes with dense"),
        (["bench", "--topk", "64", "--sk", "100"], "--sk goes with dense"),
        (["bench", "--op", "prefill", "--page", "16"], "--page goes with decode"),
        (["bench", "--hkv", "3"], "--hkv 3 does not divide --hq 128"),
        (["bench", "--format", "fp8_584", "--dqk", "576"], "leave --dqk out"),
        (["bench", "--format", "fp8_656", "--hkv", "2"], "--hkv 1"),
    ]
    for arguments, text in uses:
        status, stdout, stderr = tool.run(*arguments)
        tool.check(" ".join(arguments), status == BAD_INPUT and text in stderr and not stdout,
                   "status %d: %s%s" % (status, stdout, stderr))
    isa_names(tool)
    outputs_are_checked_first(tool)
    for arguments in ([], ["--help"], ["decode", "--help"], ["--version"], ["info"]):
        status, stdout, stderr = tool.run(*arguments)
        tool.check("mla " + " ".join(arguments), status == OK and len(stdout) > 5 and not stderr,
                   "status %d: %s" % (status, stderr))
    status, stdout, stderr = tool.run("plan", "--hq", "256", "--seqlens", "9,50000,1,1,1,1",
                                      "--threads", "2")
    tool.check("idle parts", status == OK and "idle: there are tiles" in stdout, stdout + stderr)
    path = tool.write("in.safetensors", file_bytes(dense()))
    status, _, stderr = tool.run("decode", path, "-o", tool.path("no/such/folder/out"))
    tool.check("output folder missing", status == FAILED and "no/such/folder" in stderr, stderr)
    status, _, stderr = tool.run("decode", path, "-o", tool.folder.name)
    tool.check("output is a folder", status == FAILED, "status %d: %s" % (status, stderr))
    os.mkfifo(tool.path("pipe"))
    status, _, stderr = tool.run("decode", path, "-o", tool.path("pipe"))
    tool.check("output is a pipe", status == FAILED and "not a regular file" in stderr and
               stat.S_ISFIFO(os.stat(tool.path("pipe")).st_mode), stderr)
    tool.write("target", b"old")
    os.symlink("target", tool.path("link"))
    status, _, stderr = tool.run("decode", path, "-o", tool.path("link"))
    tool.check("output is a link", status == OK and os.path.islink(tool.path("link")) and
               "out" in read_file(tool.path("target")), stderr)
    os.symlink("nowhere", tool.path("dangling"))
    status, _, stderr = tool.run("decode", path, "-o", tool.path("dangling"))
    tool.check("output is a link to nothing", status == FAILED and "not a regular file" in stderr and
               os.path.islink(tool.path("dangling")), stderr)
    os.symlink("in.safetensors", tool.path("alias"))
    for name in ("in.safetensors", "alias"):
        status, _, stderr = tool.run("decode", path, "-o", tool.path(name))
        tool.check("output is the input", status == BAD_INPUT and "is the input" in stderr and
                   "q" in read_file(path), "status %d: %s" % (status, stderr))
    if os.path.exists("/dev/full"):
        for arguments in (["info"], ["--version"], ["plan", "--seqlens", "100,200"]):
            with open("/dev/full", "w", encoding="ascii") as full:
                done = subprocess.run([tool.binary, *arguments], stdout=full,
                                      stderr=subprocess.PIPE, text=True, timeout=300)
            tool.check("full disk: mla " + arguments[0], done.returncode == FAILED and
                       "standard output" in done.stderr, done.stderr)
        full_outputs(tool)
    left = [name for name in os.listdir(tool.folder.name) if "tmp" in name.lower()]
    tool.check("nothing left behind", not left, str(left))


def isa_names(tool):
    """Who asks for an instruction set that is not there learns which are."""
    plan = ("plan", "--seqlens", "100", "--backend", "cpu")
    for environment in ({}, {"MLA_CPU_ISA": "sse9"}):
        arguments = plan if environment else (*plan, "--isa", "sse9")
        status, _, stderr = tool.run(*arguments, env={**os.environ, **environment})
        tool.check("unknown ISA", status == BAD_INPUT and "sse9" in stderr and
                   "reference, portable, avx2, avx512, avx512_bf16, amx_bf16" in stderr, stderr)
    status, stdout, _ = tool.run("info")
    absent = [line.split()[0] for line in stdout.splitlines() if "not on this machine" in line]
    if absent:
        for arguments in (plan, ("info",)):
            status, _, stderr = tool.run(*arguments, "--isa", absent[0])
            tool.check("absent ISA, " + arguments[0], status == FAILED and
                       "this machine has reference, portable" in stderr and
                       absent[0] not in stderr.partition("this machine has")[2], stderr)


def outputs_are_checked_first(tool):
    """What cannot be written or drawn is said before the work, of which stdout would tell."""
    bench = ("bench", "--sk", "64", "--hq", "1", "--reps", "1", "--no-blas")
    path = tool.write("in.safetensors", file_bytes(dense()))
    nowhere, folder = tool.path("no/such/folder/out.svg"), tool.folder.name
    uses = [(*bench, "--csv"), (*bench, "--json"), ("demo", "--save"), ("decode", path, "-o"),
            ("pack", path, "-o"), ("unpack", path, "-o")]
    drawn = [(*bench, "--plot"), ("demo", "-o"), ("plan", "--seqlens", "100,200", "--svg")]
    if shutil.which("gnuplot"):
        uses += drawn
    for arguments in uses:
        for wrong in (nowhere, folder, path + "/out.svg"):
            status, stdout, stderr = tool.run(*arguments, wrong)
            tool.check("%s %s %s" % (arguments[0], arguments[-1], wrong), status == FAILED and
                       not stdout and wrong in stderr, "status %d: %s%s" % (status, stdout, stderr))
    # What is renamed into its place must be a regular file; a link to one that is not there is none.
    os.symlink(tool.path("not-there"), tool.path("link-to-nothing"))
    for arguments in (("demo", "--save"), ("decode", path, "-o"), ("pack", path, "-o")):
        for wrong in ("/dev/null", tool.path("link-to-nothing")):
            status, stdout, stderr = tool.run(*arguments, wrong)
            tool.check("%s %s %s" % (arguments[0], arguments[-1], wrong), status == FAILED and
                       not stdout and "not a regular file" in stderr, stdout + stderr)
    # Without gnuplot: a folder with nothing but a shell stands for a machine that has none.
    os.mkdir(tool.path("bin"))
    os.symlink(shutil.which("sh"), tool.path("bin/sh"))
    bare = {**os.environ, "PATH": tool.path("bin")}
    for arguments in drawn:
        status, stdout, stderr = tool.run(*arguments, tool.path("x.svg"), env=bare)
        tool.check("no gnuplot: %s" % arguments[0], status == FAILED and not stdout and
                   "gnuplot-nox" in stderr, "status %d: %s%s" % (status, stdout, stderr))
    left = [name for name in ("x.svg", "no") if os.path.exists(tool.path(name))]
    tool.check("nothing was created", not left, str(left))


def fp8_rows_with_fp16_queries(tool):
    status, stdout, stderr = tool.run("bench", "--format", "fp8_656", "--dtype", "f16", "--sk",
                                      "70", "--hq", "2", "--reps", "1", "--no-blas")
    tool.check("bench of FP8 rows and fp16 queries", status == OK and "fp8_656" in stdout,
               "status %d: %s%s" % (status, stdout, stderr))


def full_outputs(tool):
    """Files on a full disk: a device that has no room, and a limit that is too low."""
    bench = ("bench", "--sk", "64", "--hq", "1", "--reps", "1", "--no-blas")
    uses = [(*bench, "--csv"), (*bench, "--json")]
    if shutil.which("gnuplot"):
        uses += [(*bench, "--plot"), ("plan", "--seqlens", "100,200", "--svg")]
    for arguments in uses:
        status, _, stderr = tool.run(*arguments, "/dev/full")
        tool.check("full: %s" % arguments[-1], status == FAILED and "/dev/full" in stderr,
                   "status %d: %s" % (status, stderr))
    outputs = [("decode", tool.write("in.safetensors", file_bytes(dense())), "-o")]
    outputs += uses[3:]

    def no_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    for arguments in outputs:
        out = tool.path("large")
        # SIGXFSZ stays ignored, as Python has it: writes beyond the limit fail.
        status, _, stderr = tool.run(*arguments, out, preexec_fn=no_room, restore_signals=False)
        tool.check("no room: %s" % arguments[0], status == FAILED and out in stderr,
                   "status %d: %s" % (status, stderr))


def demo_saves_an_input(tool):
    """The route from nothing to an input file and its answer."""
    saved = tool.path("demo.safetensors")
    status, stdout, stderr = tool.run("demo", "--save", saved, "-o", tool.path("demo.svg"))
    if shutil.which("gnuplot") is None and "gnuplot" in stderr:
        status = OK
    tool.check("demo --save", status == OK and os.path.exists(saved), stdout + stderr)
    status, stdout, stderr = tool.run("decode", saved, "-o", tool.path("o"), "--verify")
    tool.check("decode of it", status == OK and "12 requests" in stdout, stdout + stderr)


def main():
    tool = Tool(sys.argv[1])
    good_files(tool)
    broken_files(tool)
    wrong_tensors(tool)
    wrong_use(tool)
    fp8_rows_with_fp16_queries(tool)
    demo_saves_an_input(tool)
    tool.finish()


main()
