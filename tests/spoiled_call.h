/*
 * Calls that are valid but for one spoiled argument: how a field is spoiled, a valid call of each
 * operation, and what must hold after a refusal.
 */
#ifndef MLA_TESTS_SPOILED_CALL_H
#define MLA_TESTS_SPOILED_CALL_H

#include "attention_case.h"
#include "cmocka_c11.h"
#include "guarded_memory.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* How a field is spoiled. */
typedef enum spoil_kind {
    SET,     /* to the value */
    ADD,     /* the value is added, e.g. 1 to a pointer */
    POINT_TO /* a pointer that should be NULL gets a valid address */
} spoil_kind;

typedef struct spoiled_field {
    size_t offset, bytes;
    spoil_kind kind;
    int64_t value;
    mla_status status;
    const char *text; /* what the message must contain */
} spoiled_field;

#define FIELD(type, field) offsetof(type, field), sizeof(((type *)0)->field)
#define INVALID            MLA_ERR_INVALID_ARGUMENT
#define UNSUPPORTED        MLA_ERR_UNSUPPORTED

/* The context of all tests, opened by main(). */
extern mla_ctx *ctx;

/* A valid address, for pointers that should be NULL. */
extern int32_t somewhere[64];

/* Spoils one field of a struct that begins with its struct_size. */
void spoil(void *arguments, const spoiled_field *field);

/* Fails the test unless the status is `want` and the message of the last error contains `text`. */
void assert_refused(mla_status got, mla_status want, const char *text);

/* A case with its plan, outputs and workspace, all in guarded memory. */
typedef struct valid_call {
    attention_case c;
    mla_plan plan;
    mla_tensors tensors;
    void *workspace;
    size_t workspace_bytes;
    size_t rows;
} valid_call;

void dense_call(valid_call *call);

/* Sparse decode over 656-byte rows with a second pool. */
void sparse_call(valid_call *call);

void prefill_call(valid_call *call);

/* mla_run() on the call's workspace. */
mla_status run_call(const valid_call *call, const mla_problem *problem, const mla_tensors *tensors,
                    const mla_plan *plan);

/* Fails the test when a byte of out or lse was written. */
void assert_outputs_untouched(const valid_call *call);

/* The call was valid but for what was spoiled. */
void assert_call_runs(const valid_call *call);

#endif
