/* The schedule: requests laid end to end and cut into parts. Pure functions of lengths and counts.
 */
#ifndef MLA_SRC_PLAN_H
#define MLA_SRC_PLAN_H

#include "mla.h"
#include "shape.h"

#include <assert.h>

/* Functions that device code compiles too. */
#ifdef __CUDACC__
#define MLA_HOST_DEVICE __host__ __device__
#else
#define MLA_HOST_DEVICE
#endif

/*
 * What a request and a block cost on a device, in arbitrary equal units. One table per backend
 * holds the values, with the date and machine of the measurement.
 */
typedef struct mla_cost_model {
    int32_t request_cost;     /* fixed cost of starting a request: prologue, epilogue */
    int32_t block_cost;       /* cost of MLA_BLOCK_TOKENS tokens */
    int32_t min_piece_blocks; /* a cut closer than this to an end of a request moves to that end */
    int32_t
        min_part_blocks; /* fewer parts are used rather than parts smaller than this on average */
    int32_t few_parts;   /* but up to this many parts may have a single block; may be 0 */
} mla_cost_model;

typedef struct mla_cut_rule {
    int64_t num_reqs;
    int32_t max_parts;
    bool whole_requests; /* cut between requests only */
    bool exact_parts;    /* the caller fixed the number of parts: min_part_blocks does not apply */
    bool even_parts;     /* fewer parts are used where that spares ragged ends */
    mla_cost_model cost;
} mla_cut_rule;

/* First bytes of a plan buffer; mla_plan_part[max_parts] follow. The device kernel writes the same
 * bytes. */
typedef struct mla_plan_header {
    uint32_t magic;
    int32_t num_parts; /* parts in use; the other records are idle */
    int32_t max_parts; /* records in the buffer */
    int32_t zero;
    int64_t num_reqs;
    int64_t total_blocks;
    int64_t num_split_reqs; /* requests that lie in several parts */
    int64_t reserved[3];
} mla_plan_header;

#define MLA_PLAN_MAGIC 0x504c414du /* "MALP" */

/* What the host and the device compile separately, and read from one buffer. */
static_assert(sizeof(mla_plan_header) == 64 && offsetof(mla_plan_header, num_reqs) == 16,
              "the header of a plan buffer");
static_assert(sizeof(mla_plan_part) == 32, "a record of a plan buffer");

/*
 * Bytes of a plan with room for max_parts. Of dense problems, those with equal bytes are cut
 * alike: the cuts depend on the lengths, batch_invariant, num_parts and max_parts only. The
 * Python package rests on it.
 */
static inline size_t mla_plan_bytes(int32_t max_parts)
{
    return sizeof(mla_plan_header) + (size_t)max_parts * sizeof(mla_plan_part);
}

/* Keys of plan request `req`, clamped to what the shape allows. */
int64_t mla_plan_req_tokens(const mla_shape *shape, const mla_lengths *lengths, int64_t req);

/* Writes a whole plan buffer: the host's and the specification of the device's. Lengths are host
 * memory. */
void mla_plan_cut(const mla_shape *shape, const mla_lengths *lengths, const mla_cut_rule *rule,
                  void *buffer);

/*
 * Partial results are indexed by part. A split request's first piece (its block 0) is partial 1 of
 * its part, every later piece is partial 0 of its part, so that a part needs two at most.
 */
MLA_HOST_DEVICE static inline int64_t mla_plan_partial_idx(int64_t part_idx,
                                                           int32_t piece_begin_block)
{
    return part_idx * 2 + (piece_begin_block == 0 ? 1 : 0);
}

#endif
