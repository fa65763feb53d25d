/* Decodes one token of one request with 128 heads over a cache of two pages. Build: see README.md. */
#include <mla.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    enum { HEADS = 128, TOKENS = 100, PAGE = 64, PAGES = 2 };
    static uint16_t q[HEADS * 576], cache[PAGES * PAGE * 576], out[HEADS * 512];
    static float lse[HEADS];
    const int32_t block_table[PAGES] = {1, 0}, seqlens[1] = {TOKENS};
    for (int i = 0; i < PAGES * PAGE * 576; i++) {
        cache[i] = 0x3f80; /* 1.0 in bf16; q is zero, so out is the mean of V: 1.0 */
    }

    mla_ctx *ctx;
    mla_problem problem = {.struct_size = sizeof problem, .op = MLA_OP_DENSE_DECODE,
                           .dtype = MLA_DTYPE_BF16, .batch = 1, .s_q = 1, .h_q = HEADS,
                           .h_kv = 1, .d_qk = 576, .d_v = 512, .page_size = PAGE};
    mla_sizes sizes = {.struct_size = sizeof sizes};
    mla_ctx_params params = {.struct_size = sizeof params, .backend = MLA_BACKEND_CPU};
    if (mla_ctx_create(&params, &ctx) != MLA_OK || mla_get_sizes(ctx, &problem, &sizes) != MLA_OK) {
        fprintf(stderr, "%s\n", mla_last_error());
        return 1;
    }
    mla_plan plan = {.struct_size = sizeof plan, .buffer = malloc(sizes.plan_bytes),
                     .buffer_bytes = sizes.plan_bytes};
    void *workspace = malloc(sizes.workspace_bytes);
    mla_lengths lengths = {.struct_size = sizeof lengths, .seqlens = seqlens};
    mla_tensors tensors = {.struct_size = sizeof tensors, .q = q,
                           .kv = {.data = cache, .num_pages = PAGES}, .block_table = block_table,
                           .max_pages = PAGES, .seqlens = seqlens, .out = out, .lse = lse};
    if (mla_plan_build(ctx, &problem, &lengths, &plan, NULL) != MLA_OK ||
        mla_run(ctx, &problem, &tensors, &plan, workspace, sizes.workspace_bytes, NULL) != MLA_OK) {
        fprintf(stderr, "%s\n", mla_last_error());
        return 1;
    }
    printf("out[0] = 0x%04x (0x3f80 is 1.0), lse[0] = %.4f (ln 100 = 4.6052)\n", out[0], lse[0]);
    free(plan.buffer);
    free(workspace);
    mla_ctx_destroy(ctx);
    return 0;
}
