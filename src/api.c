/*
 * The compute entry points: each checks its arguments against the manual, then hands over to the
 * backend.
 */
#include "arg_struct.h"
#include "backend.h"
#include "plan.h"
#include "status.h"
#include "tensors.h"

#include <string.h>

enum { BUFFER_ALIGNMENT = 16 };

static mla_status check_ctx(const mla_ctx *ctx)
{
    return ctx != NULL ? MLA_OK : mla_fail(MLA_ERR_INVALID_ARGUMENT, "ctx = NULL");
}

static mla_status init_supported_shape(const mla_ctx *ctx, const mla_problem *problem,
                                       mla_shape *shape)
{
    mla_status status = check_ctx(ctx);
    if (status != MLA_OK || (status = mla_shape_init(problem, shape)) != MLA_OK) {
        return status;
    }
    return ctx->ops->supports(ctx, shape);
}

mla_status mla_supports(const mla_ctx *ctx, const mla_problem *problem)
{
    mla_shape shape;
    return init_supported_shape(ctx, problem, &shape);
}

mla_status mla_get_sizes(const mla_ctx *ctx, const mla_problem *problem, mla_sizes *sizes)
{
    mla_shape shape;
    mla_sizes needed = {.struct_size = sizeof needed};
    mla_status status = init_supported_shape(ctx, problem, &shape);
    if (status != MLA_OK || (status = ctx->ops->get_sizes(ctx, &shape, &needed)) != MLA_OK) {
        return status;
    }
    return mla_arg_struct_write(sizes, &needed, sizeof needed, "sizes");
}

static mla_status check_buffer(const void *buffer, size_t bytes, size_t needed, const char *name)
{
    if (needed == 0) {
        return MLA_OK;
    }
    if (buffer == NULL) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s = NULL: needs %zu bytes", name, needed);
    }
    if ((uintptr_t)buffer % BUFFER_ALIGNMENT != 0) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s = %p: must be aligned to %d bytes", name,
                        buffer, BUFFER_ALIGNMENT);
    }
    if (bytes < needed) {
        return mla_fail(MLA_ERR_BUFFER_TOO_SMALL, "%s has %zu bytes: needs %zu", name, bytes,
                        needed);
    }
    return MLA_OK;
}

static mla_status read_plan(const mla_ctx *ctx, const mla_shape *shape, const mla_plan *plan,
                            mla_plan *read)
{
    mla_sizes needed = {.struct_size = sizeof needed};
    mla_status status = mla_arg_struct_read(plan, sizeof *read, read, "plan");
    if (status != MLA_OK || (status = ctx->ops->get_sizes(ctx, shape, &needed)) != MLA_OK) {
        return status;
    }
    return check_buffer(read->buffer, read->buffer_bytes, needed.plan_bytes, "plan->buffer");
}

static mla_status write_plan(const mla_ctx *ctx, const mla_shape *shape, mla_plan *read,
                             mla_plan *plan)
{
    read->problem = shape->problem;
    read->context_id = ctx->shape_id;
    return mla_arg_struct_write(plan, read, sizeof *read, "plan");
}

static mla_status check_plan_lengths(const mla_shape *shape, const mla_lengths *lengths)
{
    if (shape->sparse ? lengths->seqlens != NULL : lengths->seqlens == NULL) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "lengths.seqlens %s",
                        shape->sparse ? "is set: must be NULL in sparse operations"
                                      : "= NULL: dense decode needs it");
    }
    if (!shape->sparse && lengths->topk_length != NULL) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                        "lengths.topk_length is set: must be NULL in dense decode");
    }
    if (shape->problem.extra_topk == 0 && lengths->extra_topk_length != NULL) {
        return mla_fail(
            MLA_ERR_INVALID_ARGUMENT,
            "lengths.extra_topk_length is set: must be NULL in a problem without extra_topk");
    }
    const struct {
        const char *name;
        const int32_t *lengths;
    } arrays[] = {{"seqlens", lengths->seqlens},
                  {"topk_length", lengths->topk_length},
                  {"extra_topk_length", lengths->extra_topk_length}};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        if ((uintptr_t)arrays[i].lengths % sizeof(int32_t) != 0) {
            return mla_fail(MLA_ERR_INVALID_ARGUMENT, "lengths.%s = %p: must be aligned to 4 bytes",
                            arrays[i].name, (const void *)arrays[i].lengths);
        }
    }
    return MLA_OK;
}

mla_status mla_plan_build(const mla_ctx *ctx, const mla_problem *problem,
                          const mla_lengths *lengths, mla_plan *plan, void *stream)
{
    mla_shape shape;
    mla_lengths given;
    mla_plan read;
    mla_status status = init_supported_shape(ctx, problem, &shape);
    if (status != MLA_OK ||
        (status = mla_arg_struct_read(lengths, sizeof given, &given, "lengths")) != MLA_OK ||
        (status = read_plan(ctx, &shape, plan, &read)) != MLA_OK) {
        return status;
    }
    if ((status = check_plan_lengths(&shape, &given)) != MLA_OK) {
        return status;
    }
    status = ctx->ops->plan_build(ctx, &shape, &given, read.buffer, stream);
    return status != MLA_OK ? status : write_plan(ctx, &shape, &read, plan);
}

mla_status mla_plan_attach(const mla_ctx *ctx, const mla_problem *problem, mla_plan *plan)
{
    mla_shape shape;
    mla_plan read;
    mla_status status = init_supported_shape(ctx, problem, &shape);
    if (status != MLA_OK || (status = read_plan(ctx, &shape, plan, &read)) != MLA_OK) {
        return status;
    }
    return write_plan(ctx, &shape, &read, plan);
}

mla_status mla_plan_get_part(const mla_plan *plan, int64_t part_idx, mla_plan_part *part,
                             int64_t *num_parts)
{
    mla_plan read;
    mla_plan_header header;
    mla_status status = mla_arg_struct_read(plan, sizeof read, &read, "plan");
    if (status != MLA_OK) {
        return status;
    }
    if (read.buffer == NULL || read.buffer_bytes < sizeof header) {
        return mla_fail(MLA_ERR_PLAN_MISMATCH, "plan->buffer holds no plan");
    }
    memcpy(&header, read.buffer, sizeof header);
    if (header.magic != MLA_PLAN_MAGIC || header.num_parts < 1 ||
        header.num_parts > header.max_parts ||
        read.buffer_bytes < mla_plan_bytes(header.max_parts)) {
        return mla_fail(MLA_ERR_PLAN_MISMATCH, "plan->buffer holds no plan");
    }
    if (part_idx < 0 || part_idx >= header.num_parts) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "part_idx = %lld: the plan has %d parts",
                        (long long)part_idx, header.num_parts);
    }
    if (part != NULL) {
        /* A copy on the host may lie anywhere. */
        memcpy(part, (const char *)read.buffer + sizeof header + (size_t)part_idx * sizeof *part,
               sizeof *part);
    }
    if (num_parts != NULL) {
        *num_parts = header.num_parts;
    }
    return MLA_OK;
}

/* Refuses a plan that was built for another problem, naming the first difference. */
static mla_status match_plan(const mla_ctx *ctx, const mla_shape *shape, const mla_plan *plan)
{
    const mla_problem *was = &plan->problem, *is = &shape->problem;
    if (was->struct_size == 0 || plan->context_id == 0) {
        return mla_fail(MLA_ERR_PLAN_MISMATCH, "plan was not built: call mla_plan_build() first");
    }
    if (plan->context_id != ctx->shape_id) {
        return mla_fail(MLA_ERR_PLAN_MISMATCH, "plan was built on another kind of context");
    }
    const struct {
        const char *name;
        int64_t was, is;
    } fields[] = {
        {"op", was->op, is->op},
        {"dtype", was->dtype, is->dtype},
        {"kv_format", was->kv_format, is->kv_format},
        {"batch", was->batch, is->batch},
        {"s_q", was->s_q, is->s_q},
        {"h_q", was->h_q, is->h_q},
        {"h_kv", was->h_kv, is->h_kv},
        {"d_qk", was->d_qk, is->d_qk},
        {"d_v", was->d_v, is->d_v},
        {"page_size", was->page_size, is->page_size},
        {"topk", was->topk, is->topk},
        {"extra_page_size", was->extra_page_size, is->extra_page_size},
        {"extra_topk", was->extra_topk, is->extra_topk},
        {"num_parts", was->num_parts, is->num_parts},
        {"causal", was->causal, is->causal},
        {"batch_invariant", was->batch_invariant, is->batch_invariant},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].was != fields[i].is) {
            return mla_fail(MLA_ERR_PLAN_MISMATCH,
                            "plan was built for %s = %lld, the problem has %lld", fields[i].name,
                            (long long)fields[i].was, (long long)fields[i].is);
        }
    }
    return MLA_OK;
}

mla_status mla_run(const mla_ctx *ctx, const mla_problem *problem, const mla_tensors *tensors,
                   const mla_plan *plan, void *workspace, size_t workspace_bytes, void *stream)
{
    mla_shape shape;
    mla_tensors resolved;
    mla_plan read;
    mla_sizes needed = {.struct_size = sizeof needed};
    mla_status status = init_supported_shape(ctx, problem, &shape);
    if (status != MLA_OK ||
        (status = mla_arg_struct_read(plan, sizeof read, &read, "plan")) != MLA_OK ||
        (status = match_plan(ctx, &shape, &read)) != MLA_OK ||
        (status = ctx->ops->get_sizes(ctx, &shape, &needed)) != MLA_OK ||
        (status = check_buffer(read.buffer, read.buffer_bytes, needed.plan_bytes,
                               "plan->buffer")) != MLA_OK ||
        (status = check_buffer(workspace, workspace_bytes, needed.workspace_bytes, "workspace")) !=
            MLA_OK ||
        (status = mla_tensors_resolve(&shape, tensors, &resolved)) != MLA_OK) {
        return status;
    }
    return ctx->ops->run(ctx, &shape, &resolved, read.buffer, workspace, stream);
}

mla_status mla_merge(const mla_ctx *ctx, const mla_merge_args *args, void *stream)
{
    mla_merge_args resolved;
    mla_status status = check_ctx(ctx);
    if (status != MLA_OK || (status = mla_merge_args_resolve(args, &resolved)) != MLA_OK) {
        return status;
    }
    return ctx->ops->merge(ctx, &resolved, stream);
}

mla_status mla_pack(const mla_ctx *ctx, const mla_pack_args *args, void *stream)
{
    mla_pack_args resolved;
    mla_status status = check_ctx(ctx);
    if (status != MLA_OK || (status = mla_pack_args_resolve(args, &resolved)) != MLA_OK) {
        return status;
    }
    return resolved.num_tokens == 0 ? MLA_OK : ctx->ops->pack(ctx, &resolved, stream);
}

mla_status mla_unpack(const mla_ctx *ctx, const mla_pack_args *args, void *stream)
{
    mla_pack_args resolved;
    mla_status status = check_ctx(ctx);
    if (status != MLA_OK || (status = mla_pack_args_resolve(args, &resolved)) != MLA_OK) {
        return status;
    }
    return resolved.num_tokens == 0 ? MLA_OK : ctx->ops->unpack(ctx, &resolved, stream);
}
