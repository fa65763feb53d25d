/*
 * Generates tokens with a tiny DeepSeek-style model: two MLA layers with weight absorption over a
 * paged cache, three requests that arrive at different steps. decode_loop.py is the same program in
 * Python; both print the same tokens.
 *
 * Build: cc -std=c11 -O2 examples/decode_loop.c -lmla -lm
 */
#include <math.h>
#include <mla.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 2,
    HIDDEN = 128,
    HEADS = 8,
    NOPE = 32,    /* query and key values of a head without position */
    ROPE = 64,    /* and those with */
    LATENT = 512, /* what is cached in place of keys and values */
    ROW = LATENT + ROPE,
    V = 32, /* value size of a head */
    VOCAB = 64,
    REQUESTS = 3,
    STEPS = 40,
    PAGE = 16,
    POOL_PAGES = 8,
    MAX_PAGES = 3 /* of a request */
};

static const int arrival[REQUESTS] = {0, 7, 21}; /* step at which a request's prompt begins */
static const int prompt_len[REQUESTS] = {20, 5, 3};

typedef struct layer {
    float q_nope[HEADS][NOPE][HIDDEN], q_rope[HEADS][ROPE][HIDDEN];
    float latent[LATENT][HIDDEN], k_rope[ROPE][HIDDEN];
    float k_up[HEADS][NOPE][LATENT]; /* latent to key; absorbed into the query */
    float v_up[HEADS][V][LATENT];    /* latent to value; applied to the attention's result */
    float out[HIDDEN][HEADS * V];
    uint16_t cache[POOL_PAGES][PAGE][ROW];
} layer;

static layer layers[LAYERS];
static float embedding[VOCAB][HIDDEN], output_head[VOCAB][HIDDEN];

static void check(mla_status status)
{
    if (status != MLA_OK) {
        fprintf(stderr, "%s: %s\n", mla_status_name(status), mla_last_error());
        exit(1);
    }
}

/* Number `idx` of a random sequence, uniform in [-1, 1): splitmix64 of a counter. */
static double uniform(uint64_t sequence, uint64_t idx)
{
    uint64_t x = (sequence << 32) + idx + 1;
    x *= 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (double)(x >> 11) * 0x1p-52 - 1.0;
}

static void fill(float *weights, size_t count, int fan_in, uint64_t sequence)
{
    for (size_t i = 0; i < count; i++) {
        weights[i] = (float)(uniform(sequence, i) * sqrt(3.0 / fan_in));
    }
}

#define FILL(array, fan_in, sequence)                                                              \
    fill((float *)(array), sizeof(array) / sizeof(float), fan_in, sequence)

static void make_weights(void)
{
    FILL(embedding, 3, 0);
    FILL(output_head, HIDDEN, 900);
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &layers[i];
        uint64_t sequence = (uint64_t)(1 + 10 * i);
        FILL(l->q_nope, HIDDEN, sequence);
        FILL(l->q_rope, HIDDEN, sequence + 1);
        FILL(l->latent, HIDDEN, sequence + 2);
        FILL(l->k_rope, HIDDEN, sequence + 3);
        FILL(l->k_up, NOPE, sequence + 4);
        FILL(l->v_up, LATENT, sequence + 5);
        FILL(l->out, HEADS * V, sequence + 6);
    }
}

/* y = W x, W [rows][cols]. */
static void project(const float *w, const double *x, int rows, int cols, double *y)
{
    for (int i = 0; i < rows; i++) {
        y[i] = 0.0;
        for (int j = 0; j < cols; j++) {
            y[i] += w[i * cols + j] * x[j];
        }
    }
}

static void normalize(const double *x, int n, double *y)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    for (int i = 0; i < n; i++) {
        y[i] = x[i] / sqrt(sum / n + 1e-6);
    }
}

/* Rotates pairs (x[i], x[i + ROPE / 2]) by the position's angles. */
static void rotate(double *x, int position)
{
    for (int i = 0; i < ROPE / 2; i++) {
        double angle = position * pow(10000.0, -2.0 * i / ROPE);
        double a = x[i], b = x[i + ROPE / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + ROPE / 2] = a * sin(angle) + b * cos(angle);
    }
}

/* Round to nearest even; no NaN comes here. */
static void to_bf16(const double *x, int n, uint16_t *y)
{
    for (int i = 0; i < n; i++) {
        float value = (float)x[i];
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        y[i] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
}

static double from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Before attention: the cache row of a token and its absorbed queries. */
static void prepare(const layer *l, const double *x, int position, uint16_t *row,
                    uint16_t q[HEADS][ROW])
{
    double h[HIDDEN], raw[LATENT], full[ROW], nope[NOPE];
    normalize(x, HIDDEN, h);
    project((const float *)l->latent, h, LATENT, HIDDEN, raw);
    normalize(raw, LATENT, full);
    project((const float *)l->k_rope, h, ROPE, HIDDEN, full + LATENT);
    rotate(full + LATENT, position);
    to_bf16(full, ROW, row);
    for (int head = 0; head < HEADS; head++) {
        project((const float *)l->q_nope[head], h, NOPE, HIDDEN, nope);
        /* q . (k_up latent) = (k_up^T q) . latent: the query meets the latent row itself. */
        for (int j = 0; j < LATENT; j++) {
            full[j] = 0.0;
            for (int i = 0; i < NOPE; i++) {
                full[j] += l->k_up[head][i][j] * nope[i];
            }
        }
        project((const float *)l->q_rope[head], h, ROPE, HIDDEN, full + LATENT);
        rotate(full + LATENT, position);
        to_bf16(full, ROW, q[head]);
    }
}

/* After attention: from the mixed latents of all heads back to the residual stream. */
static void finish(const layer *l, const uint16_t attended[HEADS][LATENT], double *x)
{
    double latent[LATENT], values[HEADS * V], change[HIDDEN];
    for (int head = 0; head < HEADS; head++) {
        for (int i = 0; i < LATENT; i++) {
            latent[i] = from_bf16(attended[head][i]);
        }
        project((const float *)l->v_up[head], latent, V, LATENT, values + head * V);
    }
    project((const float *)l->out, values, HIDDEN, HEADS * V, change);
    for (int i = 0; i < HIDDEN; i++) {
        x[i] += change[i];
    }
}

static int best_token(const double *x)
{
    double h[HIDDEN], logits[VOCAB];
    int best = 0;
    normalize(x, HIDDEN, h);
    project((const float *)output_head, h, VOCAB, HIDDEN, logits);
    for (int i = 1; i < VOCAB; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

/* What the requests are doing; a request that is not here yet has length 0 and slot -1. */
static int tokens[REQUESTS][STEPS], pages_used;
static int32_t block_table[REQUESTS][MAX_PAGES], seqlens[REQUESTS];
static int64_t slots[REQUESTS];
static double x[REQUESTS][HIDDEN];

static void begin_step(int step)
{
    for (int r = 0; r < REQUESTS; r++) {
        int position = step - arrival[r];
        slots[r] = -1;
        if (position < 0) {
            continue;
        }
        if (position < prompt_len[r]) {
            double choice = uniform(1000, (uint64_t)(r * 100 + position)) + 1.0;
            tokens[r][position] = (int)(choice * 0.5 * VOCAB);
        }
        if (position % PAGE == 0) {
            block_table[r][position / PAGE] = pages_used++;
        }
        slots[r] = (int64_t)block_table[r][position / PAGE] * PAGE + position % PAGE;
        seqlens[r] = position + 1;
        for (int i = 0; i < HIDDEN; i++) {
            x[r][i] = embedding[tokens[r][position]][i];
        }
    }
}

static void run_layer(const mla_ctx *ctx, const mla_problem *problem, const mla_plan *plan,
                      void *workspace, size_t workspace_bytes, layer *l, int step)
{
    static uint16_t q[REQUESTS][HEADS][ROW], rows[REQUESTS][ROW], out[REQUESTS][HEADS][LATENT];
    for (int r = 0; r < REQUESTS; r++) {
        if (slots[r] >= 0) {
            prepare(l, x[r], step - arrival[r], rows[r], q[r]);
        }
    }
    mla_pack_args pack = {.struct_size = sizeof pack,
                          .dtype = problem->dtype,
                          .num_tokens = REQUESTS,
                          .h_kv = 1,
                          .d_qk = ROW,
                          .page_size = PAGE,
                          .num_pages = POOL_PAGES,
                          .rows = rows,
                          .cache = l->cache,
                          .slots = slots};
    mla_tensors tensors = {.struct_size = sizeof tensors,
                           .q = q,
                           .kv = {.data = l->cache, .num_pages = POOL_PAGES},
                           .block_table = block_table[0],
                           .max_pages = MAX_PAGES,
                           .seqlens = seqlens,
                           .out = out};
    check(mla_pack(ctx, &pack, NULL));
    check(mla_run(ctx, problem, &tensors, plan, workspace, workspace_bytes, NULL));
    for (int r = 0; r < REQUESTS; r++) {
        if (slots[r] >= 0) {
            finish(l, (const uint16_t(*)[LATENT])out[r], x[r]);
        }
    }
}

int main(void)
{
    mla_ctx_params params = {.struct_size = sizeof params, .backend = MLA_BACKEND_CPU};
    mla_problem problem = {.struct_size = sizeof problem,
                           .op = MLA_OP_DENSE_DECODE,
                           .dtype = MLA_DTYPE_BF16,
                           .batch = REQUESTS,
                           .s_q = 1,
                           .h_q = HEADS,
                           .h_kv = 1,
                           .d_qk = ROW,
                           .d_v = LATENT,
                           .page_size = PAGE,
                           .softmax_scale = 1.0 / sqrt(NOPE + ROPE),
                           .causal = true};
    mla_sizes sizes = {.struct_size = sizeof sizes};
    mla_ctx *ctx;
    check(mla_ctx_create(&params, &ctx));
    check(mla_get_sizes(ctx, &problem, &sizes));
    /* Both buffers are aligned to 16 bytes by malloc and serve every step and layer. */
    void *workspace = malloc(sizes.workspace_bytes);
    mla_plan plan = {.struct_size = sizeof plan,
                     .buffer = malloc(sizes.plan_bytes),
                     .buffer_bytes = sizes.plan_bytes};
    mla_lengths lengths = {.struct_size = sizeof lengths, .seqlens = seqlens};

    make_weights();
    for (int step = 0; step < STEPS; step++) {
        begin_step(step);
        check(mla_plan_build(ctx, &problem, &lengths, &plan, NULL)); /* one plan for all layers */
        for (int i = 0; i < LAYERS; i++) {
            run_layer(ctx, &problem, &plan, workspace, sizes.workspace_bytes, &layers[i], step);
        }
        for (int r = 0; r < REQUESTS; r++) {
            int next = step - arrival[r] + 1;
            if (next >= prompt_len[r] && next < STEPS) {
                tokens[r][next] = best_token(x[r]);
            }
        }
    }
    for (int r = 0; r < REQUESTS; r++) {
        printf("request %d:", r);
        for (int position = prompt_len[r]; position <= STEPS - 1 - arrival[r]; position++) {
            printf(" %d", tokens[r][position]);
        }
        printf("  hidden %.2f %.2f %.2f\n", x[r][0], x[r][1], x[r][2]);
    }
    free(plan.buffer);
    free(workspace);
    mla_ctx_destroy(ctx);
    return 0;
}
