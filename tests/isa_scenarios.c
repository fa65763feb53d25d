#include "isa_scenarios.h"

#include "naive_attention.h"
#include "plain_numbers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_ISAS = 6, MAX_NAME = 128 };

typedef struct scenario_on_isa {
    const isa_scenario *scenario;
    mla_isa isa;
    char name[MAX_NAME];
} scenario_on_isa;

/* Reference answers of the running scenario. All ISAs of a scenario run one after another on the
 * same cases, so each answer is computed once. */
typedef struct known_answer {
    uint64_t case_hash;
    attention_result result;
    struct known_answer *next;
} known_answer;

static const isa_scenario *known_scenario;
static known_answer *known_answers;
static mla_isa running_isa;
static int64_t num_served, num_refused;

static void forget_answers(void)
{
    while (known_answers != NULL) {
        known_answer *next = known_answers->next;
        free(known_answers->result.out);
        free(known_answers->result.lse);
        free(known_answers->result.max_logits);
        free(known_answers);
        known_answers = next;
    }
}

mla_ctx *open_cpu_ctx(uint32_t isa_mask, int32_t num_threads)
{
    mla_ctx_params params = {.struct_size = sizeof params,
                             .backend = MLA_BACKEND_CPU,
                             .num_threads = num_threads,
                             .isa_mask = isa_mask};
    mla_ctx *ctx;
    if (mla_ctx_create(&params, &ctx) != MLA_OK) {
        fail_msg("mla_ctx_create: %s", mla_last_error());
    }
    return ctx;
}

uint32_t scenario_isa(void)
{
    return (uint32_t)running_isa;
}

static void run_scenario_on_isa(void **state)
{
    const scenario_on_isa *test = *state;
    guarded_discard(0);
    if (known_scenario != test->scenario) {
        forget_answers();
        known_scenario = test->scenario;
    }
    mla_ctx_params params = {
        .struct_size = sizeof params, .backend = MLA_BACKEND_CPU, .isa_mask = (uint32_t)test->isa};
    mla_ctx *ctx;
    mla_status status = mla_ctx_create(&params, &ctx);
    if (status == MLA_ERR_UNSUPPORTED) {
        print_message("             %s\n", mla_last_error());
        skip();
    }
    assert_int_equal(status, MLA_OK);
    running_isa = test->isa;
    num_served = num_refused = 0;
    test->scenario->run(ctx);
    mla_ctx_destroy(ctx);
    guarded_release(0);
    if (num_served == 0 && num_refused > 0) {
        print_message("             %s\n", mla_last_error());
        skip();
    }
}

bool isa_serves(const mla_ctx *ctx, const mla_problem *problem)
{
    mla_status status = mla_supports(ctx, problem);
    if (status == MLA_ERR_UNSUPPORTED) {
        num_refused++;
        return false;
    }
    if (status != MLA_OK) {
        fail_msg("mla_supports: %s", mla_last_error());
    }
    num_served++;
    return true;
}

/* FNV-1a over enough of what a case reads to tell the cases of a scenario apart. */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *byte = data;
    for (size_t i = 0; data != NULL && i < bytes; i++) {
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    }
    return hash;
}

/* The first row of the pool that a request reads, and some of the others. */
static uint64_t hash_keys(uint64_t hash, const attention_case *c, int64_t req)
{
    const mla_problem *p = &c->problem;
    bool dense = p->op == MLA_OP_DENSE_DECODE;
    int64_t count = dense ? c->seqlens[req] : p->topk;
    for (int64_t i = 0; i < count; i += 1 + count / 16) {
        int64_t slot = dense ? dense_slot(c, req, i) : c->indices[i];
        if (slot >= 0 && slot < c->tensors.kv.num_pages * p->page_size) {
            case_row row = attention_case_row(c, &c->tensors.kv, p->page_size, slot, 0);
            hash = hash_bytes(hash, row.data, 584);
        }
    }
    return hash;
}

static uint64_t hash_case(const attention_case *c)
{
    const mla_problem *p = &c->problem;
    size_t lengths = (size_t)(p->op == MLA_OP_SPARSE_PREFILL ? p->s_q : p->batch);
    uint64_t hash = hash_bytes(0xcbf29ce484222325u, p, sizeof *p);
    hash = hash_bytes(hash, c->q, (size_t)p->d_qk * 2);
    hash = hash_bytes(hash, c->seqlens, lengths * 4);
    hash = hash_bytes(hash, c->tensors.topk_length, lengths * 4);
    hash = hash_bytes(hash, c->tensors.extra_topk_length, lengths * 4);
    hash = hash_bytes(hash, c->indices, (size_t)p->topk * 4);
    hash = hash_bytes(hash, c->tensors.attn_sink, (size_t)p->h_q * 4);
    for (int64_t req = 0; req < p->batch && req < 16; req++) {
        hash = hash_keys(hash, c, req);
    }
    return hash;
}

static void *copy_memory(const void *data, size_t bytes)
{
    void *copy = malloc(bytes);
    assert_non_null(copy);
    return memcpy(copy, data, bytes);
}

static const attention_result *remember_answer(const mla_problem *p, uint64_t case_hash,
                                               const attention_result *result)
{
    size_t rows = (size_t)(p->batch * p->s_q * p->h_q);
    known_answer *answer = calloc(1, sizeof *answer);
    assert_non_null(answer);
    answer->case_hash = case_hash;
    answer->result.out = copy_memory(result->out, rows * 512 * 2);
    answer->result.lse = copy_memory(result->lse, rows * sizeof(float));
    if (result->max_logits != NULL) {
        answer->result.max_logits = copy_memory(result->max_logits, rows * sizeof(float));
    }
    answer->next = known_answers;
    known_answers = answer;
    return &answer->result;
}

/* The reference's answer, computed at the first request for it. */
static const attention_result *reference_answer(const attention_case *c)
{
    uint64_t case_hash = hash_case(c);
    for (known_answer *answer = known_answers; answer != NULL; answer = answer->next) {
        if (answer->case_hash == case_hash) {
            return &answer->result;
        }
    }
    size_t mark = guarded_mark();
    mla_ctx *reference = open_cpu_ctx(MLA_ISA_REFERENCE, 0);
    attention_result result = attention_case_run(reference, c);
    const attention_result *kept = remember_answer(&c->problem, case_hash, &result);
    mla_ctx_destroy(reference);
    guarded_release(mark);
    return kept;
}

attention_result assert_case_right(const mla_ctx *ctx, const attention_case *c)
{
    attention_result result = attention_case_run(ctx, c);
    if (running_isa == MLA_ISA_REFERENCE) {
        exact_result exact = naive_attention(c);
        assert_rounded_from(&c->problem, &result, &exact);
        exact_result_free(&exact);
        remember_answer(&c->problem, hash_case(c), &result);
    } else {
        assert_results_close(&c->problem, &result, reference_answer(c));
    }
    return result;
}

void check_case(const mla_ctx *ctx, const mla_problem *problem, const case_options *options)
{
    if (!isa_serves(ctx, problem)) {
        return;
    }
    size_t mark = guarded_mark();
    attention_case c;
    attention_case_make(&c, problem, options);
    assert_case_right(ctx, &c);
    guarded_release(mark);
}

void check_cycling_lengths(const mla_ctx *ctx, int64_t batch, int64_t s_q, int64_t h_q,
                           int32_t most)
{
    int32_t *seqlens = calloc((size_t)batch, sizeof *seqlens);
    assert_non_null(seqlens);
    for (int64_t i = 0; i < batch; i++) {
        seqlens[i] = (int32_t)(i % most);
    }
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, batch, s_q, h_q, 2);
    problem.causal = s_q > 1;
    check_case(ctx, &problem, &(case_options){.seed = (uint64_t)batch, .seqlens = seqlens});
    free(seqlens);
}

int run_isa_scenarios(const char *group, const isa_scenario *scenarios, size_t count)
{
    plain_numbers_init();
    size_t num_tests = count * NUM_ISAS;
    struct CMUnitTest *tests = calloc(num_tests, sizeof *tests);
    scenario_on_isa *states = calloc(num_tests, sizeof *states);
    if (tests == NULL || states == NULL) {
        return 1;
    }
    for (size_t i = 0; i < num_tests; i++) {
        scenario_on_isa *state = &states[i];
        state->scenario = &scenarios[i / NUM_ISAS];
        state->isa = (mla_isa)(1u << i % NUM_ISAS);
        snprintf(state->name, sizeof state->name, "%s [%s]", state->scenario->name,
                 mla_isa_name(state->isa));
        tests[i].name = state->name;
        tests[i].test_func = run_scenario_on_isa;
        tests[i].initial_state = state;
    }
    const char *slash = strrchr(group, '/');
    int failed = _cmocka_run_group_tests(slash != NULL ? slash + 1 : group, tests, num_tests, NULL,
                                         NULL);
    forget_answers();
    guarded_discard(0);
    free(tests);
    free(states);
    return failed;
}
