/*
 * Scenarios that every instruction set has to pass. Each (scenario, ISA) pair is one cmocka test;
 * it is skipped where the machine lacks the ISA or the ISA serves none of the scenario's problems.
 */
#ifndef MLA_TESTS_ISA_SCENARIOS_H
#define MLA_TESTS_ISA_SCENARIOS_H

#include "attention_case.h"
#include "cmocka_c11.h"
#include "guarded_memory.h"

typedef struct isa_scenario {
    const char *name;
    void (*run)(mla_ctx *ctx);
} isa_scenario;

#define ISA_SCENARIO(function)                                                                     \
    {                                                                                              \
#function, function                                                                        \
    }

/* Runs all scenarios on all ISAs; the value for main() to return. */
int run_isa_scenarios(const char *group, const isa_scenario *scenarios, size_t count);

#define RUN_ISA_SCENARIOS(scenarios)                                                               \
    run_isa_scenarios(__FILE__, scenarios, sizeof(scenarios) / sizeof((scenarios)[0]))

/* A CPU context; num_threads 0 is the library's choice. Fails the test when there is none. */
mla_ctx *open_cpu_ctx(uint32_t isa_mask, int32_t num_threads);

/* The one bit of the running scenario, for contexts of its own. */
uint32_t scenario_isa(void);

/* Whether the scenario's ISA serves the problem. A refusal other than UNSUPPORTED fails the test. */
bool isa_serves(const mla_ctx *ctx, const mla_problem *problem);

/*
 * The answer to a case: on the reference ISA that of the naive implementation (the result is
 * checked against it), else that of the reference. Lives until the scenario ends.
 */
attention_result assert_case_right(const mla_ctx *ctx, const attention_case *c);

/* Makes the case, and when the ISA serves it, runs and checks it; then frees it. */
void check_case(const mla_ctx *ctx, const mla_problem *problem, const case_options *options);

/* check_case() on a dense problem whose lengths cycle through 0 ... most - 1; causal when s_q > 1. */
void check_cycling_lengths(const mla_ctx *ctx, int64_t batch, int64_t s_q, int64_t h_q,
                           int32_t most);

#endif
