/*
 * The bf16 kernels, job by job, against double precision: every format, odd counts of rows and
 * keys, causal limits, holes, NaN where nobody may look. AMX runs emulated (amx_emulation.c), and
 * for real where the processor has it. Plain C without a test framework, so that it runs anywhere.
 */
#include "cpu_features.h"
#include "formats.h"
#include "kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

extern const mla_cpu_kernel mla_amx_bf16_emulated_kernel;

enum { MAX_KEYS = 1100, D_V = MLA_D_V };

typedef enum list_kind {
    DENSE_LINEAR,
    DENSE_PAGED,
    DENSE_STRIDED,
    SPARSE,
    SPARSE_TWO_POOLS
} list_kind;

typedef enum visible_keys { ALL_KEYS, STAIRS, SOME_BLIND } visible_keys;

typedef enum poison_kind { CLEAN, NAN_PAST_END, NAN_AT_DIAGONAL, INF_AT_DIAGONAL } poison_kind;

typedef struct check_case {
    mla_kv_format kv_format;
    int64_t d_qk;
    int32_t rows;
    int64_t begin, end; /* of the list */
    list_kind list;
    visible_keys visibility;
    poison_kind poison;
    float q_std, kv_std;
    float scale;     /* 0: 1 / sqrt(d_qk) */
    float fp8_scale; /* 656-byte rows: what the writer's scales are multiplied by; 0: nothing */
} check_case;

/* ---- Data ---- */

static uint64_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static float random_normal(void)
{
    double u = (random_bits() + 1.0) / 4294967297.0;
    double v = random_bits() / 4294967296.0;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

static void random_row(int64_t count, float std, uint16_t *values)
{
    for (int64_t i = 0; i < count; i++) {
        values[i] = mla_f32_to_bf16(random_normal() * std);
    }
}

/* A pool of exactly the bytes that its slots take, so that a sanitizer sees any step beyond. */
typedef struct test_pool {
    uint8_t *bytes;
    mla_key_pool pool;
} test_pool;

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return memory;
}

static uint8_t *slot_data(const test_pool *pool, int64_t slot)
{
    return (uint8_t *)(uintptr_t)pool->pool.base +
           slot / pool->pool.page_size * pool->pool.page_stride +
           slot % pool->pool.page_size * pool->pool.token_stride;
}

static uint8_t *slot_scales(const test_pool *pool, mla_kv_format kv_format, int64_t slot)
{
    const mla_key_pool *p = &pool->pool;
    if (kv_format == MLA_KV_FP8_656) {
        return slot_data(pool, slot) + MLA_FP8_656_SCALES_AT;
    }
    if (kv_format == MLA_KV_FP8_584) {
        return (uint8_t *)(uintptr_t)p->base + slot / p->page_size * p->page_stride +
               p->page_size * MLA_FP8_584_DATA_BYTES +
               slot % p->page_size * MLA_FP8_584_SCALE_BYTES;
    }
    return NULL;
}

/* Multiplies the scales of a 656-byte row; a zero scale here and there. */
static void change_scales(float factor, int64_t slot, uint8_t *scales)
{
    for (int i = 0; i < MLA_FP8_656_LATENT / MLA_FP8_656_GROUP; i++) {
        float scale;
        memcpy(&scale, scales + 4 * i, sizeof scale);
        scale = (slot + i) % 7 == 0 ? 0.0f : scale * factor;
        memcpy(scales + 4 * i, &scale, sizeof scale);
    }
}

static test_pool make_pool(const check_case *c, int64_t num_slots, int64_t page_size)
{
    int64_t row_bytes = c->kv_format == MLA_KV_FP8_656   ? MLA_FP8_656_BYTES
                        : c->kv_format == MLA_KV_FP8_584 ? MLA_FP8_584_DATA_BYTES
                                                         : c->d_qk * 2;
    int64_t gap = c->list == DENSE_STRIDED && c->kv_format == MLA_KV_NATIVE ? 34 : 0;
    int64_t pages = (num_slots + page_size - 1) / page_size;
    test_pool pool = {.pool = {.token_stride = row_bytes + gap,
                               .page_size = page_size,
                               .num_slots = pages * page_size}};
    pool.pool.page_stride = page_size * pool.pool.token_stride;
    if (c->kv_format == MLA_KV_FP8_584) {
        pool.pool.page_stride = page_size * MLA_FP8_584_BYTES;
    }
    /* Off by the two bytes of an element: no alignment beyond that may be taken for granted. */
    size_t bytes = (size_t)(pages * pool.pool.page_stride) + 2;
    pool.bytes = allocate(bytes);
    memset(pool.bytes, 0xff, bytes);
    pool.pool.base = pool.bytes + 2;
    for (int64_t slot = 0; slot < pool.pool.num_slots; slot++) {
        uint16_t values[MLA_D_QK_MAX];
        random_row(c->d_qk, c->kv_std, values);
        uint8_t *scales = slot_scales(&pool, c->kv_format, slot);
        mla_row_encode(c->kv_format, c->d_qk, values, slot_data(&pool, slot), scales);
        if (c->fp8_scale != 0.0f) {
            change_scales(c->fp8_scale, slot, scales);
        }
    }
    return pool;
}

static void poison_slot(const test_pool *pool, const check_case *c, int64_t slot)
{
    uint8_t *data = slot_data(pool, slot);
    if (c->kv_format != MLA_KV_NATIVE) {
        data[37] = 0x7f;
        if (c->poison == INF_AT_DIAGONAL) { /* FP8 has no infinity: a scale that is NaN */
            memset(slot_scales(pool, c->kv_format, slot), 0xff, 4);
        }
        return;
    }
    uint16_t value = c->poison == INF_AT_DIAGONAL ? 0xff80 : 0x7fc1;
    memcpy(data + 2 * 37, &value, sizeof value);
    memcpy(data + 2 * 500, &value, sizeof value);
}

/* ---- Reference ---- */

typedef struct reference_row {
    double out[D_V], lse, max;
    bool tie; /* rounding S alone moves the weights by more than the tolerance of out */
} reference_row;

static void reference(const mla_cpu_job *job, int32_t row, const float (*keys)[MLA_D_QK_MAX],
                      int64_t num_keys, reference_row *result)
{
    const mla_key_rows *list = job->keys;
    double max = -INFINITY, sum = 0.0, weights[MAX_KEYS];
    memset(result, 0, sizeof *result);
    for (int64_t key = 0; key < num_keys; key++) {
        double logit = 0.0;
        for (int64_t d = 0; d < list->d_qk; d++) {
            logit += (double)mla_bf16_to_f32(job->q_rows[row][d]) * keys[key][d];
        }
        weights[key] = logit * job->scale;
        max = weights[key] > max ? weights[key] : max;
    }
    for (int64_t key = 0; key < num_keys; key++) {
        weights[key] = exp(weights[key] - max);
        sum += weights[key];
    }
    for (int64_t key = 0; key < num_keys; key++) {
        for (int d = 0; d < D_V; d++) {
            result->out[d] += weights[key] / sum * keys[key][d];
        }
    }
    /* At logits of 1e4 one rounding of float32 is 1e-3: keys closer than a few nats share the
     * weight in proportions that no FP32 sum determines. */
    result->tie = num_keys > 0 && fabs(max) > 1e3 && sum > 1.0 + 1e-6;
    result->max = max;
    result->lse = num_keys > 0 ? max + log(sum) : -INFINITY;
}

/* ---- Comparison ---- */

typedef struct errors {
    double out_rel;  /* ||delta|| / ||ref|| */
    double out_over; /* largest |delta| / (8e-4 + 2.01/128 |ref|) */
    double lse_over; /* largest |delta| / (1e-6 + 8.01/65536 |lse|) */
    double cosine;
    double max_over;
    int bad; /* rows with a non-finite or non-zero value where none may be */
} errors;

static void compare_row(const mla_cpu_job *job, int32_t row, const reference_row *ref, errors *e,
                        double *sums)
{
    if (ref->lse == -INFINITY) {
        e->bad += job->lse[row] != -INFINITY || job->row_max[row] != -INFINITY;
        for (int d = 0; d < D_V; d++) {
            e->bad += job->out[row * job->out_stride + d] != 0.0f;
        }
        return;
    }
    if (isnan(ref->lse)) {
        e->bad += !isnan(job->lse[row]);
        return;
    }
    for (int d = 0; d < D_V; d++) {
        double out = mla_bf16_to_f32(mla_f32_to_bf16(job->out[row * job->out_stride + d]));
        double delta = fabs(out - ref->out[d]);
        if (isnan(ref->out[d])) {
            e->bad += !isnan(out);
            continue;
        }
        if (isinf(ref->out[d])) {
            e->bad += isfinite(out);
            continue;
        }
        e->bad += !isfinite(out);
        if (!ref->tie) {
            e->out_over = fmax(e->out_over, delta / (8e-4 + 2.01 / 128 * fabs(ref->out[d])));
        }
        sums[0] += delta * delta;
        sums[1] += ref->out[d] * ref->out[d];
        sums[2] += out * ref->out[d];
        sums[3] += out * out;
    }
    double lse_delta = fabs(job->lse[row] - ref->lse);
    e->bad += !isfinite(job->lse[row]);
    e->lse_over = fmax(e->lse_over, lse_delta / (1e-6 + 8.01 / 65536 * fabs(ref->lse)));
    e->max_over = fmax(e->max_over,
                       fabs(job->row_max[row] - ref->max) / (1e-6 + 8.01 / 65536 * fabs(ref->max)));
}

static bool within(const errors *e)
{
    return e->bad == 0 && e->out_rel <= 4e-3 && e->out_over <= 1.0 && e->lse_over <= 1.0 &&
           e->cosine <= 5e-6 && e->max_over <= 1.0;
}

/* ---- Cases ---- */

typedef struct workload {
    mla_key_rows keys;
    mla_cpu_job job;
    test_pool pools[2];
    int32_t *table, *indices[2];
    uint16_t *q;
    const uint16_t *q_rows[MLA_CPU_TILE_ROWS];
    int64_t row_keys[MLA_CPU_TILE_ROWS];
    double lse[MLA_CPU_TILE_ROWS];
    float *out, row_max[MLA_CPU_TILE_ROWS];
    float (*decoded)[MLA_D_QK_MAX]; /* of the keys of the range, holes left out */
    int64_t num_decoded;
    int64_t diagonal_slot, poisoned_key; /* what poison_diagonal() spoils; key -1: nothing */
} workload;

static void decode_key(workload *w, const check_case *c, const test_pool *pool, int64_t slot)
{
    mla_row_decode(c->kv_format, MLA_DTYPE_BF16, c->d_qk, slot_data(pool, slot),
                   slot_scales(pool, c->kv_format, slot), w->decoded[w->num_decoded++]);
}

static void make_dense(workload *w, const check_case *c)
{
    int64_t page_size = c->list == DENSE_LINEAR ? MAX_KEYS : c->list == DENSE_PAGED ? 16 : 7;
    int64_t pages = (c->end + page_size - 1) / page_size;
    w->pools[0] = make_pool(c, pages * page_size, page_size);
    w->table = allocate((size_t)pages * sizeof *w->table);
    for (int64_t page = 0; page < pages; page++) {
        w->table[page] = (int32_t)((page * 5 + 3) % pages);
        if (pages % 5 == 0) {
            w->table[page] = (int32_t)(pages - 1 - page);
        }
    }
    w->keys.block_table = w->table;
    w->keys.num_keys[0] = c->end;
    for (int64_t key = 0; key < pages * page_size; key++) {
        int64_t slot = w->table[key / page_size] * page_size + key % page_size;
        bool past = key >= c->end && c->poison == NAN_PAST_END;
        bool diagonal = (c->poison == NAN_AT_DIAGONAL || c->poison == INF_AT_DIAGONAL) &&
                        key == c->end - 2;
        if (past) {
            poison_slot(&w->pools[0], c, slot);
        }
        if (diagonal) {
            w->diagonal_slot = slot;
            w->poisoned_key = key - c->begin;
        }
        if (key >= c->begin && key < c->end) {
            decode_key(w, c, &w->pools[0], slot);
        }
    }
}

static void make_sparse(workload *w, const check_case *c)
{
    int lists = c->list == SPARSE_TWO_POOLS ? 2 : 1;
    int64_t place = 0;
    for (int i = 0; i < lists; i++) {
        int64_t count = i == 0 && lists == 2 ? c->end / 3 : c->end - place;
        w->pools[i] = make_pool(c, 333, i == 0 ? 64 : 9);
        w->indices[i] = allocate((size_t)count * sizeof *w->indices[i] + 1);
        w->keys.indices[i] = w->indices[i];
        w->keys.num_keys[i] = count;
        for (int64_t k = 0; k < count; k++, place++) {
            int32_t slot = (int32_t)(random_bits() % (uint32_t)w->pools[i].pool.num_slots);
            uint32_t hole = random_bits() % 16;
            slot = hole == 0 ? -1 : hole == 1 ? INT32_MAX : slot;
            w->indices[i][k] = slot;
            if (hole > 1 && place >= c->begin) {
                decode_key(w, c, &w->pools[i], slot);
            }
        }
    }
}

static workload *make_workload(const check_case *c)
{
    workload *w = allocate(sizeof *w);
    memset(w, 0, sizeof *w);
    w->decoded = allocate(sizeof *w->decoded * MAX_KEYS);
    w->poisoned_key = -1;
    w->keys.kv_format = c->kv_format;
    w->keys.dtype = MLA_DTYPE_BF16;
    w->keys.d_qk = c->d_qk;
    if (c->list >= SPARSE) {
        make_sparse(w, c);
    } else {
        make_dense(w, c);
    }
    w->keys.pool[0] = w->pools[0].pool;
    w->keys.pool[1] = w->pools[1].pool;
    w->q = allocate((size_t)(c->rows * c->d_qk) * sizeof *w->q);
    random_row(c->rows * c->d_qk, c->q_std, w->q);
    for (int32_t row = 0; row < c->rows; row++) {
        w->q_rows[row] = w->q + row * c->d_qk;
        /* Whole list for the last row, less for those before; some rows may see nothing. */
        int64_t behind = c->visibility == STAIRS ? (c->rows - 1 - row) / 3
                                                 : (c->rows - 1 - row) * 9;
        w->row_keys[row] = c->end - behind;
        w->row_keys[row] = w->row_keys[row] < 0 ? 0 : w->row_keys[row];
    }
    w->out = aligned_alloc(64, (size_t)c->rows * (D_V + 16) * sizeof *w->out);
    w->job = (mla_cpu_job){.keys = &w->keys,
                           .key_begin = c->begin,
                           .key_end = c->end,
                           .rows = c->rows,
                           .q_rows = w->q_rows,
                           .row_keys = c->visibility == ALL_KEYS ? NULL : w->row_keys,
                           .scale = c->scale != 0.0f ? c->scale : 1.0f / sqrtf((float)c->d_qk),
                           .out = w->out,
                           .out_stride = D_V + 16,
                           .lse = w->lse,
                           .row_max = w->row_max};
    return w;
}

static void free_workload(workload *w)
{
    for (int i = 0; i < 2; i++) {
        free(w->pools[i].bytes);
        free(w->indices[i]);
    }
    free(w->table);
    free(w->q);
    free(w->out);
    free(w->decoded);
    free(w);
}

/* Spoils the key that some rows see and some do not. */
static void poison_diagonal(workload *w, const check_case *c)
{
    poison_slot(&w->pools[0], c, w->diagonal_slot);
    mla_row_decode(c->kv_format, MLA_DTYPE_BF16, c->d_qk, slot_data(&w->pools[0], w->diagonal_slot),
                   slot_scales(&w->pools[0], c->kv_format, w->diagonal_slot),
                   w->decoded[w->poisoned_key]);
}

/* Rows that do not see the poison have the bits that they had without it. */
static int count_changed_rows(const workload *w, const check_case *c, const float *clean)
{
    int changed = 0;
    for (int32_t row = 0; row < c->rows; row++) {
        const float *out = w->out + row * w->job.out_stride;
        if (w->row_keys[row] - c->begin <= w->poisoned_key) {
            changed += memcmp(out, clean + row * w->job.out_stride, D_V * sizeof *out) != 0;
        }
    }
    return changed;
}

/* Runs a job with scratch and output full of rubbish. */
static void attend(const mla_cpu_kernel *kernel, const check_case *c, workload *w, int rubbish)
{
    void *scratch = aligned_alloc(64, (kernel->scratch_bytes + 63) / 64 * 64);
    if (scratch == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    memset(scratch, rubbish, kernel->scratch_bytes);
    memset(w->out, 0xff, (size_t)c->rows * (D_V + 16) * sizeof *w->out);
    w->job.scratch = scratch;
    kernel->attend(&w->job);
    free(scratch);
}

static float *copy_out(const check_case *c, const workload *w)
{
    size_t bytes = (size_t)c->rows * (D_V + 16) * sizeof *w->out;
    float *out = allocate(bytes);
    memcpy(out, w->out, bytes);
    return out;
}

/* `clean` is the output before poison_diagonal(), or NULL. */
static bool run_kernel(const mla_cpu_kernel *kernel, const char *name, int number,
                       const check_case *c, workload *w, const reference_row *refs,
                       const float *clean)
{
    attend(kernel, c, w, 0xff);
    errors e = {0};
    double sums[4] = {0};
    for (int32_t row = 0; row < c->rows; row++) {
        compare_row(&w->job, row, &refs[row], &e, sums);
        for (int d = D_V; d < D_V + 16; d++) {
            e.bad += mla_f32_bits(w->out[row * w->job.out_stride + d]) != 0xffffffffu;
        }
    }
    e.out_rel = sums[1] > 0.0 ? sqrt(sums[0] / sums[1]) : 0.0;
    e.cosine = sums[1] > 0.0 ? 1.0 - 2.0 * sums[2] / (sums[1] + sums[3]) : 0.0;
    e.bad += clean != NULL ? count_changed_rows(w, c, clean) : 0;
    float *first_out = copy_out(c, w);
    attend(kernel, c, w, 0x7f);
    bool repeats = memcmp(first_out, w->out, (size_t)c->rows * (D_V + 16) * sizeof *first_out) == 0;
    free(first_out);
    bool ok = within(&e) && repeats;
    if (!ok || getenv("MLA_VERBOSE") != NULL) {
        printf(
            "%s case %d %s: format %d d_qk %d rows %d keys [%d, %d) list %d visibility %d poison "
            "%d std %g %g: out rel %.2e, elements %.3f, lse %.3f, max %.3f, cosine %.1e, bad "
            "%d%s\n",
            ok ? "ok  " : "FAIL", number, name, (int)c->kv_format, (int)c->d_qk, c->rows,
            (int)c->begin, (int)c->end, (int)c->list, (int)c->visibility, (int)c->poison, c->q_std,
            c->kv_std, e.out_rel, e.out_over, e.lse_over, e.max_over, e.cosine, e.bad,
            repeats ? "" : ", NOT REPEATABLE");
    }
    return ok;
}

typedef struct named_kernel {
    const mla_cpu_kernel *kernel;
    const char *name;
} named_kernel;

static const named_kernel kernels[] = {{&mla_avx512_bf16_kernel, "avx512_bf16"},
                                       {&mla_amx_bf16_emulated_kernel, "amx_bf16 emulated"},
                                       {&mla_amx_bf16_kernel, "amx_bf16"}};

static int check(const check_case *c, int number)
{
    enum { KERNELS = sizeof kernels / sizeof *kernels };
    workload *w = make_workload(c);
    float *clean[KERNELS] = {NULL};
    for (int i = 0; i < KERNELS && w->poisoned_key >= 0; i++) {
        if (kernels[i].kernel->available()) {
            attend(kernels[i].kernel, c, w, 0xff);
            clean[i] = copy_out(c, w);
        }
    }
    if (w->poisoned_key >= 0) {
        poison_diagonal(w, c);
    }
    reference_row *refs = allocate(sizeof *refs * (size_t)c->rows);
    for (int32_t row = 0; row < c->rows; row++) {
        int64_t seen = w->num_decoded;
        if (w->job.row_keys != NULL) {
            int64_t keys = w->job.row_keys[row] - c->begin;
            seen = keys < 0 ? 0 : keys < seen ? keys : seen;
        }
        reference(&w->job, row, (const float(*)[MLA_D_QK_MAX])w->decoded, seen, &refs[row]);
    }
    int failed = 0;
    for (int i = 0; i < KERNELS; i++) {
        if (kernels[i].kernel->available()) {
            failed += !run_kernel(kernels[i].kernel, kernels[i].name, number, c, w, refs, clean[i]);
        }
        free(clean[i]);
    }
    free(refs);
    free_workload(w);
    return failed;
}

static const mla_kv_format formats[] = {MLA_KV_NATIVE, MLA_KV_FP8_656, MLA_KV_FP8_584};

static check_case base_case(int format)
{
    return (check_case){.kv_format = formats[format],
                        .d_qk = formats[format] == MLA_KV_FP8_584 ? 512 : 576,
                        .rows = 16,
                        .end = 300,
                        .list = DENSE_PAGED,
                        .q_std = 1.0f,
                        .kv_std = 1.0f};
}

static int check_counts(int *number)
{
    static const int32_t rows[] = {1, 2, 3, 5, 16, 17, 33, 65, 127, 128};
    static const int64_t counts[] = {1, 2, 63, 64, 65, 127, 129, 400};
    int failed = 0;
    for (int format = 0; format < 3; format++) {
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            for (size_t k = r % 3; k < sizeof counts / sizeof *counts; k += 3) {
                check_case c = base_case(format);
                c.rows = rows[r];
                c.begin = (int64_t)(r % 3) * 37;
                c.end = c.begin + counts[k];
                c.list = (list_kind)((r + k) % 5);
                c.poison = NAN_PAST_END;
                failed += check(&c, (*number)++);
            }
        }
    }
    return failed;
}

static int check_magnitudes(int *number)
{
    static const float stds[] = {0.1f, 1.0f, 100.0f};
    int failed = 0;
    for (int format = 0; format < 4; format++) {
        for (size_t i = 0; i < sizeof stds / sizeof *stds; i++) {
            for (int keys = 0; keys < 3; keys++) {
                check_case c = base_case(format % 3);
                c.d_qk = format == 3 ? 512 : c.d_qk;
                c.kv_format = format == 3 ? MLA_KV_NATIVE : c.kv_format;
                c.rows = 20;
                c.end = keys == 0 ? 3 : keys == 1 ? 100 : 700;
                c.q_std = c.kv_std = stds[i];
                failed += check(&c, (*number)++);
                c.kv_std = c.kv_std > 1.0f ? 1.0f : c.kv_std;
                c.q_std = 10.0f;
                failed += check(&c, (*number)++);
                c.q_std = c.kv_std = stds[i];
                c.scale = -0.02f;
                failed += check(&c, (*number)++);
                c.scale = 1e-45f;
                failed += check(&c, (*number)++);
            }
        }
    }
    return failed;
}

static int check_visibility(int *number)
{
    int failed = 0;
    for (int format = 0; format < 3; format++) {
        for (int visibility = STAIRS; visibility <= SOME_BLIND; visibility++) {
            for (int poison_number = CLEAN; poison_number <= INF_AT_DIAGONAL; poison_number++) {
                for (int span = 0; span < 3; span++) {
                    check_case c = base_case(format);
                    c.visibility = (visible_keys)visibility;
                    c.poison = (poison_kind)poison_number;
                    c.rows = span == 0 ? 12 : 50;
                    c.begin = span == 2 ? 250 : 0;
                    c.end = span == 0 ? 40 : 260 + span;
                    failed += check(&c, (*number)++);
                }
            }
        }
    }
    return failed;
}

static int check_fp8_scales(int *number)
{
    static const float scales[] = {1.23f, 1.0f / 3.0f, 0x1p-3f, -0.5f, 7.7f, 7e-9f, 1e-33f};
    static const int64_t counts[] = {1, 40, 200, 700};
    int failed = 0;
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            check_case c = base_case(1);
            c.rows = 20;
            c.end = counts[k];
            c.list = k % 2 == 0 ? DENSE_PAGED : SPARSE;
            c.fp8_scale = scales[i];
            failed += check(&c, (*number)++);
        }
    }
    return failed;
}

/* The e4m3 code at a place of a row: all codes but NaN, or, as in most rows, normal numbers. */
static uint8_t code_at(int place, bool any)
{
    if (any) {
        return (place & 0x7f) == 0x7f ? 0x80 : (uint8_t)place;
    }
    return (uint8_t)(15 + place % 112 + place / 112 % 2 * 0x80);
}

/* All rows of a pool alike, with scales of 2^exponent. */
static void set_codes(const test_pool *pool, mla_kv_format kv_format, int exponent, bool any)
{
    int coded = kv_format == MLA_KV_FP8_656 ? MLA_FP8_656_LATENT : MLA_FP8_584_LATENT;
    float scale = ldexpf(1.0f, exponent);
    for (int64_t slot = 0; slot < pool->pool.num_slots; slot++) {
        uint8_t *data = slot_data(pool, slot), *scales = slot_scales(pool, kv_format, slot);
        for (int i = 0; i < coded; i++) {
            data[i] = code_at(i, any);
        }
        for (int i = 0; i < 4 && kv_format == MLA_KV_FP8_656; i++) {
            memcpy(scales + 4 * i, &scale, sizeof scale);
        }
        if (kv_format == MLA_KV_FP8_584) {
            memset(scales, exponent + 127, MLA_FP8_584_LATENT / MLA_FP8_584_GROUP);
        }
    }
}

/* The mean of 32 equal keys is the key, to the bit: every e4m3 number, times scales that keep it a
 * normal bf16 number. */
static int check_codes(int *number)
{
    int failed = 0;
    for (int i = 0; i < 2 * 2 * 67; i++, (*number)++) {
        int format = 1 + i % 2, exponent = i / 4 * 3 - 99;
        bool any = i / 2 % 2 != 0;
        check_case c = base_case(format);
        c.rows = 1;
        c.end = 32;
        c.list = DENSE_LINEAR;
        workload *w = make_workload(&c);
        memset(w->q, 0, (size_t)c.d_qk * sizeof *w->q);
        set_codes(&w->pools[0], c.kv_format, exponent, any);
        int coded = c.kv_format == MLA_KV_FP8_656 ? MLA_FP8_656_LATENT : MLA_FP8_584_LATENT;
        for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
            if (!kernels[k].kernel->available()) {
                continue;
            }
            attend(kernels[k].kernel, &c, w, 0xff);
            int wrong = 0;
            for (int d = 0; d < coded; d++) {
                float want = mla_e4m3_to_f32(code_at(d, any)) * ldexpf(1.0f, exponent);
                wrong += w->out[d] != want;
            }
            if (wrong != 0) {
                printf("FAIL case %d %s: format %d, scale 2^%d: %d codes are wrong\n", *number,
                       kernels[k].name, format, exponent, wrong);
                failed++;
            }
        }
        free_workload(w);
    }
    return failed;
}

int main(void)
{
    if (!mla_cpu_has_avx512_bf16()) {
        printf("skipped: no AVX512-BF16 here\n");
        return 77;
    }
    int number = 0;
    int failed = check_counts(&number);
    failed += check_magnitudes(&number);
    failed += check_visibility(&number);
    failed += check_fp8_scales(&number);
    failed += check_codes(&number);
    printf("%d cases, AMX %s: %d failures\n", number,
           mla_amx_bf16_kernel.available() ? "emulated and real" : "emulated", failed);
    return failed != 0;
}
