/* The tool `mla`: finds the command and hands over. */
#include "tool.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct command {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
} command;

static const command commands[] = {
    {"info", "what this machine offers: processor, instruction sets, GPUs, versions", cmd_info},
    {"demo", "a DeepSeek-V3 decode batch, several steps, checked and timed", cmd_demo},
    {"decode", "attention on the tensors of a safetensors file", cmd_decode},
    {"check", "every kernel of this machine against the reference", cmd_check},
    {"bench", "speed, as a share of what the machine can do", cmd_bench},
    {"plan", "how a batch is cut into parts, printed and drawn", cmd_plan},
    {"pack", "bf16 rows of a safetensors file into an FP8 cache", cmd_pack},
    {"unpack", "an FP8 cache of a safetensors file back into bf16 rows", cmd_unpack},
};

static void print_help(FILE *stream)
{
    fputs("mla - Multi-head Latent Attention kernels, from the command line\n"
          "\n"
          "MLA keeps one row of 576 values per token. All query heads read it as their key, and "
          "its\nfirst 512 values as their value:  out = softmax(q . K^T * scale) . V.  This tool "
          "runs libmla's\nkernels on a CPU or a GPU: on your tensors, on test data, and against "
          "the clock.\n"
          "\n"
          "Usage: mla COMMAND [OPTION...]\n"
          "\n",
          stream);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        fprintf(stream, "  mla %-8s %s\n", commands[i].name, commands[i].summary);
    }
    fputs("\n"
          "Words that all commands use: a batch of b requests has s_q query tokens each (1 when it "
          "decodes,\nmore for drafts), with h_q query heads over h_kv KV heads (1 in MLA). A row "
          "of the cache has d_qk\n576 (512 latent, 64 RoPE) or 512 values, in pages of --page "
          "tokens that a block table names. A dense\ncall reads all tokens of a request, a sparse "
          "one the topk tokens that indices name.\n"
          "\n"
          "Start with\n"
          "  mla demo                                     see it work, in less than a minute\n"
          "  mla check --quick                            is it right on this machine?\n"
          "  mla bench decode --plot roofline.svg         is it fast on this machine?\n"
          "  mla decode in.safetensors -o out.safetensors q, kv_cache, block_table, seqlens -> "
          "out, lse\n"
          "\n"
          "`mla COMMAND --help` explains a command. All commands take --backend auto|cpu|cuda, "
          "--device N,\n--threads N and --isa LIST. Exit status: 0 done, 1 failed, 2 wrong use or "
          "bad input.\n",
          stream);
}

static int run_command(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "-?") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return TOOL_OK;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        int version = mla_version();
        printf("mla %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
        return TOOL_OK;
    }
    if (!tool_take_environment()) {
        return TOOL_BAD_INPUT;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    tool_error("'%s' is not a command; `mla --help` lists them", argv[1]);
    return TOOL_BAD_INPUT;
}

int main(int argc, char **argv)
{
    (void)signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error like a full disk */
    int result = run_command(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        tool_error("cannot write to standard output: %s", strerror(errno));
        result = result == TOOL_OK ? TOOL_FAILED : result;
    }
    return result;
}
