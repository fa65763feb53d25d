/* `mla check`: the pieces that its files share. */
#ifndef MLA_CLI_CHECK_H
#define MLA_CLI_CHECK_H

#include "compare.h"
#include "engine.h"

/* Lengths of the requests of a batch_spec, as fields of its initialiser. */
#define LENGTHS(...)                                                                               \
    .lengths = (const int64_t[]){__VA_ARGS__},                                                     \
    .num_lengths = sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)

/* One way to compute: a backend with one instruction set. */
typedef struct check_lane {
    char name[32];
    engine runner;
    bool is_reference;
} check_lane;

typedef enum check_verdict { CHECK_PASSED, CHECK_FAILED, CHECK_SKIPPED } check_verdict;

typedef struct check_result {
    check_verdict verdict;
    double worst_share; /* of what the tolerances allow; 0 when nothing was compared */
    char detail[256];   /* why it failed or was skipped, or the worst element */
} check_result;

/* Dtypes and formats that a case runs in. */
enum {
    VARIANT_BF16 = 1,
    VARIANT_F16 = 2,
    VARIANT_BF16_512 = 4, /* d_qk 512 */
    VARIANT_656 = 8,
    VARIANT_584 = 16,
    VARIANT_NATIVE = VARIANT_BF16 | VARIANT_F16,
    VARIANT_ALL_NATIVE = VARIANT_NATIVE | VARIANT_BF16_512,
    VARIANT_ALL = 31,
    NUM_VARIANTS = 5
};

/* A line of the case list: a batch, in some variants, once for each value of one of its fields. */
typedef struct check_case {
    const char *name; /* kind of CASES.md, slash, what is special */
    batch_spec spec;
    unsigned variants;
    bool quick;          /* part of --quick */
    bool cpu_only;       /* asks for more than float32 sums, which a GPU has not */
    const char *sweep;   /* name of the field that is swept, NULL for none */
    size_t sweep_offset; /* of an int64_t in batch_spec, or of a double, or of an int (an enum) */
    enum { SWEEP_INT64, SWEEP_DOUBLE, SWEEP_ENUM } sweep_type;
    const double *sweep_values;
    int32_t num_sweep_values;
} check_case;

extern const check_case check_cases[];
extern const int32_t num_check_cases;

/* The batches that a case may stand for; number `i` of them with its name, or false where the case
 * leaves out the variant. */
int32_t check_case_count(const check_case *item);
bool check_case_spec(const check_case *item, int32_t i, batch_spec *spec, char *name, size_t size);

/* A check that is more than a comparison of one batch with the reference. */
typedef struct check_special {
    const char *name;
    bool quick;
    bool on_reference; /* the reference itself is put to it as well */
    void (*run)(const engine *reference, const check_lane *lane, uint64_t seed,
                check_result *result);
} check_special;

extern const check_special check_oracles[];
extern const int32_t num_check_oracles;
extern const check_special check_contracts[];
extern const int32_t num_check_contracts;
void check_pack_unpack(const engine *reference, const check_lane *lane, uint64_t seed,
                       check_result *result);

/* Verdicts; the first two return false and true so that they can end a condition. */
bool check_fail(check_result *result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool check_take(check_result *result, const comparison *compared); /* the comparison's verdict */

/* Records a status that is not MLA_OK: skipped when unsupported, else failed. Returns true for OK.
 */
bool check_status(check_result *result, const char *what, mla_status status);

void check_skip(check_result *result, const char *reason);

/* Fails the check when memory of the device could not be reached or a kernel died; returns `ok`. */
bool check_device(check_result *result, bool ok);

/* A batch with two sets of outputs: `want` from the reference, `got` for the lane. */
typedef struct check_bench {
    batch input;
    batch_outputs got, want;
    const mla_ctx *reference;
    job work; /* of a lane, writing `got`; all zero until placed */
} check_bench;

/* Builds the batch and computes `want`; on failure fails the check and returns false. */
bool check_bench_open(check_bench *bench, const engine *reference, const batch_spec *spec,
                      uint64_t seed, check_result *result);
bool check_bench_place(check_bench *bench, const check_lane *lane, check_result *result);
bool check_bench_run(check_bench *bench, check_result *result);   /* plans, runs and fetches */
bool check_bench_rerun(check_bench *bench, check_result *result); /* the same without the plan */
bool check_bench_compare(const check_bench *bench, check_result *result); /* got with want */
void check_bench_close(check_bench *bench);

#endif
