#include <mla.h>
#include <stdio.h>
#include <stdlib.h>

static uint16_t q[128 * 576], cache[2 * 64 * 576], out[128 * 512]; /* bf16 */

static void check(mla_status status)
{
    if (status != MLA_OK) {
        fprintf(stderr, "%s: %s\n", mla_status_name(status), mla_last_error());
        exit(1);
    }
}

int main(void)
{
    for (size_t i = 0; i < sizeof cache / sizeof cache[0]; i++) {
        cache[i] = 0x3f80; /* 1.0; with q = 0, out is the mean of V, 1.0, and lse = ln 100 */
    }
    float lse[128];
    int32_t block_table[] = {1, 0}, seqlens[] = {100}; /* 100 tokens, in page 1 and then page 0 */
    mla_problem problem = {sizeof problem, .op = MLA_OP_DENSE_DECODE, .dtype = MLA_DTYPE_BF16,
                           .batch = 1, .s_q = 1, .h_q = 128, .h_kv = 1, .d_qk = 576, .d_v = 512,
                           .page_size = 64};
    mla_lengths lengths = {sizeof lengths, .seqlens = seqlens};
    mla_tensors tensors = {sizeof tensors, .q = q, .kv = {.data = cache, .num_pages = 2},
                           .block_table = block_table, .max_pages = 2, .seqlens = seqlens,
                           .out = out, .lse = lse};
    mla_ctx_params params = {sizeof params, .backend = MLA_BACKEND_CPU};
    mla_sizes sizes = {.struct_size = sizeof sizes};
    mla_ctx *ctx;
    check(mla_ctx_create(&params, &ctx));
    check(mla_get_sizes(ctx, &problem, &sizes));
    mla_plan plan = {.struct_size = sizeof plan, .buffer = malloc(sizes.plan_bytes),
                     .buffer_bytes = sizes.plan_bytes};
    void *workspace = malloc(sizes.workspace_bytes);
    check(mla_plan_build(ctx, &problem, &lengths, &plan, NULL)); /* once per step */
    check(mla_run(ctx, &problem, &tensors, &plan, workspace, sizes.workspace_bytes, NULL));
    printf("out[0] = 0x%04x, lse[0] = %.4f\n", out[0], lse[0]); /* 0x3f80, 4.6052 */
    free(plan.buffer), free(workspace), mla_ctx_destroy(ctx);
    return 0;
}
