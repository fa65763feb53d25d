/* The CPU driver: cuts a plan into jobs for the kernels, runs them on threads, merges what was
 * split. */
#ifndef MLA_CPU_RUN_H
#define MLA_CPU_RUN_H

#include "backend.h"
#include "plan.h"
#include "shape.h"

/* How this context cuts plans for this shape. Never depends on lengths. */
mla_cut_rule mla_cpu_cut_rule(const mla_ctx *ctx, const mla_shape *shape);

/* Bytes of plan and workspace. */
void mla_cpu_sizes(const mla_ctx *ctx, const mla_shape *shape, mla_sizes *sizes);

/*
 * mla_run() for shapes that one of the kernels allowed to `ctx` serves (mla_cpu_kernel_choose() is
 * not NULL). Lengths, pages and strides of `tensors` were checked and resolved; the plan buffer is
 * not trusted: whatever it holds, nothing is read or written out of bounds.
 */
mla_status mla_cpu_run(const mla_ctx *ctx, const mla_shape *shape, const mla_tensors *tensors,
                       const void *plan_buffer, void *workspace);

#endif
