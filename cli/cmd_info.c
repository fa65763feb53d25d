/* `mla info`: what the machine offers and what the library makes of it. */
#include "tool.h"

#include <stdio.h>
#include <string.h>

static void print_isas(const mla_info *info)
{
    static const char *const notes[] = {"scalar C in double precision: the specification",
                                        "C without intrinsics",
                                        "AVX2, FMA, F16C",
                                        "AVX-512 F, BW, DQ, VL",
                                        "bf16 products, FP32 sums",
                                        "bf16 tiles, FP32 sums"};
    printf("  instruction sets\n");
    for (int bit = 0; bit < 6; bit++) {
        uint32_t isa = 1u << bit;
        const char *state = "not on this machine";
        if (isa == (uint32_t)info->isa_used) {
            state = "used for bf16";
        } else if ((isa & info->isa_allowed) != 0) {
            state = "allowed";
        } else if ((isa & info->isa_available) != 0) {
            state = "there, but masked out";
        }
        printf("    %-12s %-22s %s\n", mla_isa_name((mla_isa)isa), state, notes[bit]);
    }
    if (info->isa_used == MLA_ISA_AVX512 && (info->isa_allowed & MLA_ISA_AVX512_BF16) != 0) {
        printf("    avx512 goes before avx512_bf16 here: this processor issues bf16 products "
               "(vdpbf16ps) on\n    one port every other cycle, which makes half the speed of its "
               "FP32 multiply-adds.\n    --isa avx512_bf16 uses them all the same.\n");
    }
}

/* Which operations a context offers, by asking for one of each. */
static void print_operations(const mla_ctx *ctx)
{
    static const char *const ops[] = {"dense decode", "sparse decode", "sparse prefill"};
    printf("  kernels        %14s%10s%10s%10s%10s\n", "bf16", "f16", "bf16-512", "fp8_656",
           "fp8_584");
    for (int op = MLA_OP_DENSE_DECODE; op <= MLA_OP_SPARSE_PREFILL; op++) {
        printf("    %-16s", ops[op - 1]);
        for (int kind = 0; kind < 5; kind++) {
            bool dense = op == MLA_OP_DENSE_DECODE;
            mla_problem problem = {.struct_size = sizeof problem,
                                   .op = (mla_op)op,
                                   .dtype = kind == 1 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16,
                                   .kv_format = kind == 3   ? MLA_KV_FP8_656
                                                : kind == 4 ? MLA_KV_FP8_584
                                                            : MLA_KV_NATIVE,
                                   .batch = 1,
                                   .s_q = 1,
                                   .h_q = 128,
                                   .h_kv = 1,
                                   .d_qk = kind == 2 || kind == 4 ? 512 : 576,
                                   .d_v = 512,
                                   .page_size = op == MLA_OP_SPARSE_PREFILL ? 1 : 64,
                                   .topk = dense ? 0 : 2048};
            printf("%10s", mla_supports(ctx, &problem) == MLA_OK ? "yes" : "-");
        }
        printf("\n");
    }
}

static void print_context(const mla_ctx *ctx)
{
    mla_info info = {.struct_size = sizeof info};
    if (mla_ctx_get_info(ctx, &info) != MLA_OK) {
        return;
    }
    if (info.backend == MLA_BACKEND_CPU) {
        printf("CPU: %s\n  threads          %d\n", info.device_name, info.num_threads);
        print_isas(&info);
    } else {
        char memory[32];
        tool_format_bytes((double)info.memory_bytes, memory, sizeof memory);
        printf("GPU %d: %s\n  multiprocessors  %d\n  memory           %s\n"
               "  driver           %d.%d\n",
               info.device, info.device_name, info.num_sms, memory, info.driver_version / 1000,
               info.driver_version / 10 % 100);
    }
    print_operations(ctx);
}

static bool print_backend(const tool_options *options, mla_backend backend, int32_t device)
{
    uint32_t isa_mask = 0;
    if (backend == MLA_BACKEND_CPU && !tool_isa_mask(options, &isa_mask)) {
        return false;
    }
    mla_ctx_params params = {.struct_size = sizeof params,
                             .backend = backend,
                             .device = device,
                             .num_threads = options->num_threads,
                             .isa_mask = isa_mask};
    mla_ctx *ctx;
    mla_status status = mla_ctx_create(&params, &ctx);
    if (status != MLA_OK) {
        printf("%s %d: not usable: %s\n", backend == MLA_BACKEND_CPU ? "CPU" : "GPU", device,
               mla_last_error());
        if (isa_mask != 0) {
            tool_suggest_isas();
        }
        return false;
    }
    print_context(ctx);
    mla_ctx_destroy(ctx);
    return true;
}

static error_t parse_info(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = state->input;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

int cmd_info(int argc, char **argv)
{
    static const struct argp argp = {
        0,
        parse_info,
        "",
        "Prints the library's version, the processor with its instruction sets, the GPUs, and the "
        "kernels that each offers.\v"
        "Of the instruction sets `used for bf16` is the one that bf16 problems run on; --isa "
        "restricts the choice, and `allowed` ones serve what it cannot. Exit status: 0 usable, 1 "
        "not.",
        tool_options_child,
        0,
        0};
    tool_options options = {.device = 0};
    tool_parse(&argp, "mla info", argc, argv, &options);

    int version = mla_version();
    printf("libmla %d.%d.%d (header %d.%d.%d)\n\n", version / 10000, version / 100 % 100,
           version % 100, MLA_VERSION_MAJOR, MLA_VERSION_MINOR, MLA_VERSION_PATCH);
    bool ok = true;
    if (options.backend != MLA_BACKEND_CUDA) {
        ok = print_backend(&options, MLA_BACKEND_CPU, 0);
    }
    if (options.backend == MLA_BACKEND_CPU) {
        return ok ? TOOL_OK : TOOL_FAILED;
    }
    int32_t gpus = 0;
    if (mla_device_count(MLA_BACKEND_CUDA, &gpus) != MLA_OK) {
        printf("%sGPU: none: %s\n", ok ? "\n" : "", mla_last_error());
        return options.backend == MLA_BACKEND_CUDA || !ok ? TOOL_FAILED : TOOL_OK;
    }
    for (int32_t device = 0; device < gpus; device++) {
        printf("\n");
        print_backend(&options, MLA_BACKEND_CUDA, device);
    }
    return ok ? TOOL_OK : TOOL_FAILED;
}
