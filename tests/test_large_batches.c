/* Batches beyond what 16 bits count, and beyond what FlashMLA's planner takes. */
#include "isa_scenarios.h"

static void twelve_thousand_requests(mla_ctx *ctx)
{
    check_cycling_lengths(ctx, 12000, 1, 2, 4);
}

static void seventy_thousand_requests(mla_ctx *ctx)
{
    check_cycling_lengths(ctx, 70000, 1, 1, 3);
}

static void batch_times_query_tokens_past_65535(mla_ctx *ctx)
{
    check_cycling_lengths(ctx, 8193, 8, 1, 11);
}

int main(void)
{
    const isa_scenario scenarios[] = {
        ISA_SCENARIO(twelve_thousand_requests),
        ISA_SCENARIO(seventy_thousand_requests),
        ISA_SCENARIO(batch_times_query_tokens_past_65535),
    };
    return RUN_ISA_SCENARIOS(scenarios);
}
