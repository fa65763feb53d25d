/*
 * Work is cut three ways: the plan's parts, the KV heads, and tiles of query rows. One unit, a part
 * of one KV head for one tile of rows, is computed by one thread, which walks the part's requests.
 * A request that lies in the part as a whole is finished at once. Of a split request, every part
 * leaves a normalised partial result in the workspace; when all units are done, the partials of
 * each row are merged in the order of the parts. Which thread does what never changes a bit.
 */
#include "cpu_run.h"

#include "formats.h"
#include "kernels.h"
#include "plan_rule.h"
#include "reference.h"
#include "refine_rows.h"
#include "status.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <stdalign.h>
#include <string.h>

enum {
    /* Units a thread at most: enough that one slow thread does not hold up all, few enough that a
     * thread's partial results of 128 rows stay at 2 MiB. */
    UNITS_PER_THREAD = 4,
    /* The same where requests stay whole. More of them cost nothing, and lengths vary. */
    WHOLE_UNITS_PER_THREAD = 16,
    ALIGNMENT = 64
};

/*
 * In fifths of what a block of 64 keys takes. Packing a tile's queries and writing its results
 * takes 0.3 (AVX2) to 0.6 (AVX-512, 16 rows) of that. (Xeon, family 6 model 207, 16 to 128 rows,
 * November 2026: a call on one thread takes 48 us and 111 us a block at 128 rows, 11 us and 17 us a
 * block at 16.) Short requests are spread over all threads down to a block each: one block more is
 * always dearer than starting a part.
 */
static const mla_cost_model cost_model = {
    .request_cost = 2, .block_cost = 5, .min_piece_blocks = 1, .min_part_blocks = 1};

/* What a thread needs; its kernel's scratch follows. */
typedef struct thread_state {
    float out[MLA_CPU_TILE_ROWS][MLA_D_V]; /* of a request that is not split */
    double lse[MLA_CPU_TILE_ROWS];
    float row_max[MLA_CPU_TILE_ROWS];
    int64_t row_keys[MLA_CPU_TILE_ROWS];
    const uint16_t *q_rows[MLA_CPU_TILE_ROWS];
    alignas(ALIGNMENT) mla_few_keys few; /* of the rows that are being stored */
} thread_state;

_Static_assert(sizeof(thread_state) % ALIGNMENT == 0, "the scratch behind it stays aligned");

/* One call of mla_cpu_run(). */
typedef struct cpu_run {
    const mla_shape *shape;
    const mla_tensors *tensors;
    const mla_cpu_kernel *kernel;
    const mla_plan_part *parts;
    int64_t num_parts;
    int64_t row_tiles;
    /* Partial results, in the order of mla_plan_partial_idx(), KV head, row. NULL when the rule
     * keeps requests whole. */
    float *partial_out; /* [.., MLA_D_V] */
    double *partial_lse;
    float *partial_max;
    uint8_t *threads;
    size_t thread_bytes;
} cpu_run;

/* A unit's share of one request. */
typedef struct request_piece {
    int64_t req;
    int64_t begin_block;
    int64_t end_block;   /* INT64_MAX: to the end of the request */
    int64_t partial_idx; /* -1: the request is not split */
} request_piece;

/* Query rows of one KV head. */
typedef struct row_tile {
    int64_t kv_head;
    int64_t begin;
    int32_t count;
} row_tile;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* ---- Sizes ---- */

static int64_t units_per_part(const mla_shape *shape)
{
    return ceil_div(shape->rows, MLA_CPU_TILE_ROWS) * shape->problem.h_kv;
}

/*
 * Into how many parts few requests are cut, each of `units` units. Every part costs a start and a
 * merge, so more parts must pay: by at least a twentieth of the time that the busiest thread takes.
 */
static int64_t even_parts(int64_t threads, int64_t units)
{
    int64_t best = 1;
    double best_time = (double)ceil_div(units, threads);
    for (int64_t parts = 2; parts * units <= threads * UNITS_PER_THREAD; parts++) {
        double time = (double)ceil_div(parts * units, threads) / (double)parts;
        if (time < 0.95 * best_time) {
            best = parts;
            best_time = time;
        }
    }
    return best;
}

mla_cut_rule mla_cpu_cut_rule(const mla_ctx *ctx, const mla_shape *shape)
{
    mla_cut_rule rule = {.num_reqs = shape->num_reqs,
                         .whole_requests = shape->problem.batch_invariant,
                         .cost = cost_model};
    if (shape->problem.num_parts > 0) {
        rule.max_parts = shape->problem.num_parts;
        rule.exact_parts = true;
        return rule;
    }
    int64_t threads = ctx->info.num_threads, units = units_per_part(shape);
    /* Of many requests, few lie on a cut: more parts cost little. */
    bool many = shape->num_reqs >= threads * 2 * UNITS_PER_THREAD;
    int64_t parts = many ? threads * UNITS_PER_THREAD / units : even_parts(threads, units);
    if (threads == 1 || parts <= 1) {
        rule.whole_requests = true; /* the row tiles alone keep the threads busy */
    }
    if (rule.whole_requests) {
        parts = threads * WHOLE_UNITS_PER_THREAD / units;
        parts = parts < shape->num_reqs ? parts : shape->num_reqs;
    }
    rule.max_parts = parts < 1 ? 1 : (int32_t)parts;
    return rule;
}

static int64_t count_partial_rows(const mla_shape *shape, const mla_cut_rule *rule)
{
    if (rule->whole_requests || rule->max_parts == 1) {
        return 0;
    }
    return 2 * (int64_t)rule->max_parts * (shape->problem.h_kv * shape->rows);
}

static const mla_cpu_kernel *kernel_for(const mla_ctx *ctx, const mla_shape *shape)
{
    const mla_cpu_kernel *kernel = mla_cpu_kernel_choose(
        ctx->info.isa_allowed, shape->problem.kv_format, shape->problem.dtype);
    assert(kernel != NULL);
    return kernel;
}

static size_t thread_bytes(const mla_cpu_kernel *kernel)
{
    return sizeof(thread_state) + (kernel->scratch_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void mla_cpu_sizes(const mla_ctx *ctx, const mla_shape *shape, mla_sizes *sizes)
{
    mla_cut_rule rule = mla_cpu_cut_rule(ctx, shape);
    sizes->plan_bytes = mla_plan_bytes(rule.max_parts);
    size_t partial_bytes;
    size_t row_bytes = (MLA_D_V + 1) * sizeof(float) + sizeof(double);
    if (__builtin_mul_overflow((size_t)count_partial_rows(shape, &rule), row_bytes,
                               &partial_bytes) ||
        partial_bytes > SIZE_MAX / 2) {
        sizes->workspace_bytes = SIZE_MAX; /* more than there can be */
        return;
    }
    sizes->workspace_bytes = partial_bytes + ALIGNMENT +
                             (size_t)ctx->info.num_threads * thread_bytes(kernel_for(ctx, shape));
}

/* ---- Rows and keys of a unit ---- */

/* Tiles are as even as can be: none is a remainder that pays for a whole one's keys. */
static row_tile unit_rows(const cpu_run *run, int64_t unit)
{
    int64_t tile = unit % run->row_tiles;
    int64_t even = run->shape->rows / run->row_tiles, rest = run->shape->rows % run->row_tiles;
    row_tile rows = {.kv_head = unit / run->row_tiles % run->shape->problem.h_kv,
                     .begin = tile * even + (tile < rest ? tile : rest),
                     .count = (int32_t)(even + (tile < rest ? 1 : 0))};
    assert(rows.count >= 1 && rows.count <= MLA_CPU_TILE_ROWS);
    return rows;
}

static mla_key_pool key_pool(const mla_shape *shape, const mla_pool *pool, int64_t page_size,
                             int64_t kv_head)
{
    bool native = shape->problem.kv_format == MLA_KV_NATIVE;
    const uint8_t *base = pool->data;
    if (native && pool->num_pages > 0) {
        base += kv_head * pool->stride[2];
    }
    return (mla_key_pool){.base = base,
                          .page_stride = pool->stride[0],
                          .token_stride = pool->stride[1],
                          .page_size = page_size,
                          .num_slots = pool->num_pages * page_size};
}

static mla_key_rows request_keys(const cpu_run *run, int64_t req, int64_t kv_head)
{
    const mla_problem *p = &run->shape->problem;
    const mla_tensors *t = run->tensors;
    mla_key_rows keys = {.kv_format = p->kv_format, .dtype = p->dtype, .d_qk = p->d_qk};
    keys.pool[0] = key_pool(run->shape, &t->kv, p->page_size, kv_head);
    if (!run->shape->sparse) {
        keys.block_table = t->max_pages > 0 ? t->block_table + req * t->block_table_stride : NULL;
        keys.num_keys[0] = mla_cut_length(t->seqlens, req, t->max_pages * p->page_size);
        return keys;
    }
    int64_t batch_idx = req / p->s_q, token_idx = req % p->s_q;
    int64_t length_idx = p->op == MLA_OP_SPARSE_DECODE ? batch_idx : token_idx;
    keys.num_keys[0] = mla_cut_length(t->topk_length, length_idx, p->topk);
    keys.indices[0] = t->indices + batch_idx * t->indices_stride[0] +
                      token_idx * t->indices_stride[1] + kv_head * t->indices_stride[2];
    if (p->extra_topk > 0) {
        keys.pool[1] = key_pool(run->shape, &t->extra_kv, p->extra_page_size, kv_head);
        keys.num_keys[1] = mla_cut_length(t->extra_topk_length, length_idx, p->extra_topk);
        keys.indices[1] = t->extra_indices + batch_idx * t->extra_indices_stride[0] +
                          token_idx * t->extra_indices_stride[1] +
                          kv_head * t->extra_indices_stride[2];
    }
    return keys;
}

/* ---- Results ---- */

/* The factor that an attention sink scales a row's out by. */
static float sink_factor(const cpu_run *run, int64_t head, double lse)
{
    if (run->tensors->attn_sink == NULL || lse == -INFINITY) {
        return 1.0f;
    }
    return (float)(1.0 / (1.0 + exp(run->tensors->attn_sink[head] - lse)));
}

/* Writes final results of row `i` of a tile to the caller's tensors. fill_rows() and
 * mla_few_keys_find() have seen the tile. */
static void store_row(const cpu_run *run, thread_state *thread, int64_t req, const row_tile *rows,
                      int32_t i, const float *out, mla_row_sums sums)
{
    const mla_problem *p = &run->shape->problem;
    const mla_tensors *t = run->tensors;
    mla_row_pos pos = mla_shape_row(run->shape, req, rows->kv_head, rows->begin + i);
    if (mla_row_is_coarse(&thread->few, thread->q_rows[i], thread->row_keys[i], sums)) {
        mla_reference_row(run->shape, t, pos);
        return;
    }
    double lse = sums.lse;
    run->kernel->narrow(p->dtype, out, sink_factor(run, pos.head_idx, lse),
                        (uint16_t *)t->out + pos.batch_idx * t->out_stride[0] +
                            pos.token_idx * t->out_stride[1] + pos.head_idx * t->out_stride[2]);
    if (t->lse != NULL) {
        t->lse[pos.batch_idx * t->lse_stride[0] + pos.token_idx * t->lse_stride[1] +
               pos.head_idx * t->lse_stride[2]] = lse == -INFINITY && p->lse_empty_pos_inf
                                                      ? INFINITY
                                                      : (float)lse;
    }
    if (t->max_logits != NULL) {
        t->max_logits[pos.token_idx * p->h_q + pos.head_idx] = sums.row_max;
    }
}

/* ---- Units ---- */

/* Where a tile's queries lie, and how many entries of the request's list they see. */
static void fill_rows(const cpu_run *run, int64_t req, const row_tile *rows,
                      const mla_key_rows *keys, thread_state *thread)
{
    const mla_problem *p = &run->shape->problem;
    const mla_tensors *t = run->tensors;
    int64_t num_keys = keys->num_keys[0] + keys->num_keys[1];
    for (int32_t i = 0; i < rows->count; i++) {
        mla_row_pos pos = mla_shape_row(run->shape, req, rows->kv_head, rows->begin + i);
        thread->q_rows[i] = (const uint16_t *)t->q + pos.batch_idx * t->q_stride[0] +
                            pos.token_idx * t->q_stride[1] + pos.head_idx * t->q_stride[2];
        thread->row_keys[i] = p->causal ? num_keys - (p->s_q - 1 - pos.token_idx) : num_keys;
    }
}

static void attend_piece(const cpu_run *run, const request_piece *piece, const row_tile *rows,
                         thread_state *thread)
{
    mla_key_rows keys = request_keys(run, piece->req, rows->kv_head);
    int64_t num_keys = keys.num_keys[0] + keys.num_keys[1];
    int64_t last_block = ceil_div(num_keys, MLA_BLOCK_TOKENS);
    mla_cpu_job job = {
        .keys = &keys,
        .key_end = piece->end_block < last_block ? piece->end_block * MLA_BLOCK_TOKENS : num_keys,
        .rows = rows->count,
        .q_rows = thread->q_rows,
        .scale = run->shape->scale,
        .scratch = thread + 1,
        .out = thread->out[0],
        .out_stride = MLA_D_V,
        .lse = thread->lse,
        .row_max = thread->row_max};
    if (piece->partial_idx >= 0) {
        int64_t first = (piece->partial_idx * run->shape->problem.h_kv + rows->kv_head) *
                            run->shape->rows +
                        rows->begin;
        job.out = run->partial_out + first * MLA_D_V;
        job.lse = run->partial_lse + first;
        job.row_max = run->partial_max + first;
    }
    if (piece->begin_block < last_block) {
        job.key_begin = piece->begin_block * MLA_BLOCK_TOKENS;
    } else {
        job.key_begin = num_keys; /* lengths have shrunk since the plan, or there are none */
    }

    fill_rows(run, piece->req, rows, &keys, thread);
    if (run->shape->problem.causal && run->shape->problem.s_q > 1) {
        job.row_keys = thread->row_keys;
    }
    if (job.key_begin < job.key_end) {
        run->kernel->attend(&job);
    } else {
        memset(job.out, 0, (size_t)rows->count * MLA_D_V * sizeof *job.out);
        for (int32_t i = 0; i < rows->count; i++) {
            job.lse[i] = job.row_max[i] = -INFINITY;
        }
    }
    if (piece->partial_idx < 0) {
        mla_few_keys_find(&job, run->kernel, run->tensors->max_logits != NULL, &thread->few);
        for (int32_t i = 0; i < rows->count; i++) {
            store_row(run, thread, piece->req, rows, i, thread->out[i],
                      (mla_row_sums){thread->lse[i], thread->row_max[i]});
        }
    }
}

/* Part `part_idx` for one tile of rows. Its numbers are clamped here, whoever wrote them. */
static void run_unit(const cpu_run *run, int64_t part_idx, const row_tile *rows,
                     thread_state *thread)
{
    const mla_plan_part *part = &run->parts[part_idx];
    int64_t req = part->begin_req > 0 ? part->begin_req : 0;
    for (; req < run->shape->num_reqs && req <= part->end_req; req++) {
        bool ends_inside = req == part->end_req;
        if (ends_inside && part->end_block <= 0) {
            break;
        }
        request_piece piece = {
            .req = req, .end_block = ends_inside ? part->end_block : INT64_MAX, .partial_idx = -1};
        if (req == part->begin_req && part->begin_block > 0) {
            piece.begin_block = part->begin_block;
        }
        if (run->partial_out != NULL && (ends_inside || piece.begin_block > 0)) {
            piece.partial_idx = mla_plan_partial_idx(part_idx, (int32_t)piece.begin_block);
        }
        attend_piece(run, &piece, rows, thread);
    }
}

/* ---- Merge ---- */

static void merge_row(const cpu_run *run, thread_state *thread, int64_t part_idx,
                      int64_t num_splits, const row_tile *rows, int32_t i_row)
{
    /* The first piece is partial 1 of its part, the others are partial 0 of the parts behind. */
    int64_t stride = run->shape->problem.h_kv * run->shape->rows;
    int64_t in_partial = rows->kv_head * run->shape->rows + rows->begin + i_row;
    int64_t first = mla_plan_partial_idx(part_idx, 0);
    double max = -INFINITY, sum = 0.0;
    float row_max = -INFINITY;
    for (int64_t i = 0; i < num_splits; i++) {
        int64_t at = (i == 0 ? first : mla_plan_partial_idx(part_idx + i, 1)) * stride + in_partial;
        double lse = run->partial_lse[at];
        max = lse > max || isnan(lse) ? lse : max; /* a NaN stays the maximum: the result */
        row_max = run->partial_max[at] > row_max ? run->partial_max[at] : row_max;
    }
    float out[MLA_D_V] = {0};
    for (int64_t i = 0; i < num_splits; i++) {
        int64_t at = (i == 0 ? first : mla_plan_partial_idx(part_idx + i, 1)) * stride + in_partial;
        if (run->partial_lse[at] == -INFINITY) {
            continue;
        }
        double weight = exp(run->partial_lse[at] - max);
        sum += weight;
        const float *partial = run->partial_out + at * MLA_D_V;
        for (int c = 0; c < MLA_D_V; c++) {
            out[c] += (float)weight * partial[c];
        }
    }
    if (max != -INFINITY) {
        float factor = (float)(1.0 / sum);
        for (int c = 0; c < MLA_D_V; c++) {
            out[c] *= factor;
        }
        max += log(sum);
    }
    store_row(run, thread, run->parts[part_idx].end_req, rows, i_row, out,
              (mla_row_sums){max, row_max});
}

/* Merges, for one tile of rows, the request whose first piece ends part `part_idx`, if any. */
static void merge_unit(const cpu_run *run, int64_t part_idx, const row_tile *rows,
                       thread_state *thread)
{
    const mla_plan_part *part = &run->parts[part_idx];
    int64_t num_splits = part->num_splits;
    if (num_splits <= 0 || part->end_req < 0 || part->end_req >= run->shape->num_reqs) {
        return;
    }
    int64_t most = run->num_parts - part_idx;
    num_splits = num_splits < most ? num_splits : most;
    mla_key_rows keys = request_keys(run, part->end_req, rows->kv_head);
    fill_rows(run, part->end_req, rows, &keys, thread);
    mla_cpu_job job = {.keys = &keys,
                       .rows = rows->count,
                       .q_rows = thread->q_rows,
                       .row_keys = run->shape->sparse ? NULL : thread->row_keys,
                       .scale = run->shape->scale};
    mla_few_keys_find(&job, run->kernel, run->tensors->max_logits != NULL, &thread->few);
    for (int32_t i = 0; i < rows->count; i++) {
        merge_row(run, thread, part_idx, num_splits, rows, i);
    }
}

/* ---- Entry ---- */

static cpu_run start_run(const mla_ctx *ctx, const mla_shape *shape, const mla_tensors *tensors,
                         const void *plan_buffer, void *workspace)
{
    mla_cut_rule rule = mla_cpu_cut_rule(ctx, shape);
    const mla_plan_header *header = plan_buffer;
    cpu_run run = {.shape = shape,
                   .tensors = tensors,
                   .kernel = kernel_for(ctx, shape),
                   .parts = (const mla_plan_part *)(header + 1),
                   .num_parts = header->num_parts,
                   .row_tiles = ceil_div(shape->rows, MLA_CPU_TILE_ROWS)};
    run.num_parts = run.num_parts < rule.max_parts ? run.num_parts : rule.max_parts;
    run.thread_bytes = thread_bytes(run.kernel);
    run.threads = (uint8_t *)(((uintptr_t)workspace + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    int64_t partial_rows = count_partial_rows(shape, &rule);
    if (partial_rows > 0) {
        run.partial_out = (float *)(run.threads + (size_t)ctx->info.num_threads * run.thread_bytes);
        run.partial_lse = (double *)(run.partial_out + partial_rows * MLA_D_V);
        run.partial_max = (float *)(run.partial_lse + partial_rows);
    }
    return run;
}

mla_status mla_cpu_run(const mla_ctx *ctx, const mla_shape *shape, const mla_tensors *tensors,
                       const void *plan_buffer, void *workspace)
{
    const cpu_run run = start_run(ctx, shape, tensors, plan_buffer, workspace);
    const mla_plan_header *header = plan_buffer;
    if (header->magic != MLA_PLAN_MAGIC || header->num_reqs != shape->num_reqs ||
        run.num_parts < 1) {
        return mla_fail(MLA_ERR_PLAN_MISMATCH, "plan->buffer holds no plan of this problem");
    }
    if (run.num_parts < header->num_parts ||
        (header->num_split_reqs > 0 && run.partial_out == NULL)) {
        return mla_fail(
            MLA_ERR_PLAN_MISMATCH,
            "plan->buffer holds %d parts that split %lld requests, which a context of %d threads "
            "does not build: build it with this context",
            header->num_parts, (long long)header->num_split_reqs, ctx->info.num_threads);
    }
    int64_t part_units = units_per_part(shape);
    int64_t num_units = run.num_parts * part_units;
#pragma omp parallel num_threads(ctx->info.num_threads)
    {
        thread_state *thread = (thread_state *)(run.threads +
                                                (size_t)omp_get_thread_num() * run.thread_bytes);
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < num_units; unit++) {
            row_tile rows = unit_rows(&run, unit);
            run_unit(&run, unit / part_units, &rows, thread);
        }
        if (run.partial_out != NULL) {
#pragma omp for schedule(dynamic)
            for (int64_t unit = 0; unit < num_units; unit++) {
                row_tile rows = unit_rows(&run, unit);
                merge_unit(&run, unit / part_units, &rows, thread);
            }
        }
    }
    return MLA_OK;
}
