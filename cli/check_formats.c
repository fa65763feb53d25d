/* Packing rows into a cache and reading them back, in every format. */
#include "check.h"
#include "random_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 70, PAGE = 16, PAGES = 6, SLOTS = PAGE * PAGES };

/* Buffers of one round trip; host side. */
typedef struct round_trip {
    mla_kv_format kv_format;
    mla_dtype dtype;
    int64_t d_qk;
    int64_t slots[TOKENS];
    uint16_t rows[TOKENS * 576], back[TOKENS * 576];
    uint8_t *cache;
    size_t cache_bytes;
} round_trip;

static void fill_trip(round_trip *trip, uint64_t seed)
{
    rng random;
    int32_t order[SLOTS];
    rng_seed(&random, seed);
    rng_shuffle(&random, order, SLOTS);
    const small_float *format = trip->dtype == MLA_DTYPE_BF16 ? &small_bf16 : &small_f16;
    for (int token = 0; token < TOKENS; token++) {
        trip->slots[token] = token % 7 == 3 ? -1 : order[token];
        /* Magnitudes from 1e-3 to 1e3, one token of zeros. */
        double std = token == 5 ? 0.0 : pow(10.0, token % 7 - 3);
        for (int64_t i = 0; i < trip->d_qk; i++) {
            trip->rows[token * trip->d_qk + i] = (uint16_t)small_float_encode(
                format, std * rng_normal(&random));
        }
    }
    memset(trip->back, 0xff, sizeof trip->back);
    memset(trip->cache, 0xff, trip->cache_bytes);
}

/* Values that share one scale; 0 for those stored as they are. */
static int64_t group_of(const round_trip *trip, int64_t column)
{
    if (trip->kv_format == MLA_KV_FP8_656) {
        return column < 512 ? 128 : 0;
    }
    return trip->kv_format == MLA_KV_FP8_584 && column < 448 ? 64 : 0;
}

static bool trip_matches(const round_trip *trip, check_result *result)
{
    for (int64_t token = 0; token < TOKENS; token++) {
        const uint16_t *row = trip->rows + token * trip->d_qk;
        const uint16_t *back = trip->back + token * trip->d_qk;
        double amax = 0.0;
        for (int64_t i = 0; i < trip->d_qk; i++) {
            int64_t group = group_of(trip, i);
            if (group > 0 && i % group == 0) {
                amax = 0.0;
                for (int64_t n = i; n < i + group; n++) {
                    amax = fmax(amax, fabs((double)elem_to_float(trip->dtype, row[n])));
                }
            }
            double want = (double)elem_to_float(trip->dtype, row[i]);
            double got = (double)elem_to_float(trip->dtype, back[i]);
            /* Half a unit of e4m3's last place, 2^-4 of the value or 2^-10 of a scale that is at
             * most twice amax / 448 (never below 1e-4), and the rounding back to bf16. */
            double scale = fmax(2.0 * amax / 448.0, 2e-4);
            double allowed = group == 0 ? 0.0
                                        : fmax(fabs(want) * (0x1p-4 + 0x1p-8), scale * 0x1p-10);
            bool skipped = trip->slots[token] < 0;
            bool ok = skipped ? back[i] == 0xffff : fabs(got - want) <= allowed;
            if (!ok) {
                return check_fail(result, "%s: value [%lld, %lld] came back as %.9g, was %.9g",
                                  tool_format_name(trip->kv_format), (long long)token, (long long)i,
                                  got, want);
            }
        }
    }
    return true;
}

/* Slots that no row went to are as they were. Native rows and 656-byte rows lie one by one. */
static bool others_untouched(const round_trip *trip, check_result *result)
{
    if (trip->kv_format == MLA_KV_FP8_584) {
        return true;
    }
    size_t row_bytes = trip->cache_bytes / SLOTS;
    for (int64_t slot = 0; slot < SLOTS; slot++) {
        bool named = false;
        for (int token = 0; token < TOKENS; token++) {
            named = named || trip->slots[token] == slot;
        }
        for (size_t i = 0; !named && i < row_bytes; i++) {
            if (trip->cache[(size_t)slot * row_bytes + i] != 0xff) {
                return check_fail(result, "%s: slot %lld was written, but no row names it",
                                  tool_format_name(trip->kv_format), (long long)slot);
            }
        }
    }
    return true;
}

static bool run_trip(const check_lane *lane, round_trip *trip, check_result *result)
{
    const memory_space *memory = &lane->runner.memory;
    uint8_t *rows = memory_alloc(memory, sizeof trip->rows);
    uint8_t *back = memory_alloc(memory, sizeof trip->back);
    uint8_t *slots = memory_alloc(memory, sizeof trip->slots);
    uint8_t *cache = memory_alloc(memory, trip->cache_bytes);
    mla_pack_args args = {.struct_size = sizeof args,
                          .kv_format = trip->kv_format,
                          .dtype = trip->dtype,
                          .num_tokens = TOKENS,
                          .h_kv = 1,
                          .d_qk = trip->d_qk,
                          .page_size = PAGE,
                          .num_pages = PAGES,
                          .rows = rows,
                          .cache = cache,
                          .slots = (const int64_t *)(const void *)slots};
    bool placed = memory_upload(memory, rows, trip->rows, sizeof trip->rows) &&
                  memory_upload(memory, back, trip->back, sizeof trip->back) &&
                  memory_upload(memory, slots, trip->slots, sizeof trip->slots) &&
                  memory_upload(memory, cache, trip->cache, trip->cache_bytes);
    bool ok = check_device(result, placed) &&
              check_status(result, "mla_pack", mla_pack(lane->runner.ctx, &args, NULL));
    args.rows = back;
    ok = ok && check_status(result, "mla_unpack", mla_unpack(lane->runner.ctx, &args, NULL)) &&
         check_device(result, memory_wait(memory) &&
                                  memory_download(memory, trip->back, back, sizeof trip->back) &&
                                  memory_download(memory, trip->cache, cache, trip->cache_bytes)) &&
         trip_matches(trip, result) && others_untouched(trip, result);
    memory_free(memory, rows);
    memory_free(memory, back);
    memory_free(memory, slots);
    memory_free(memory, cache);
    return ok;
}

void check_pack_unpack(const engine *reference, const check_lane *lane, uint64_t seed,
                       check_result *result)
{
    static const struct {
        mla_kv_format kv_format;
        mla_dtype dtype;
        int64_t d_qk;
    } kinds[] = {{MLA_KV_NATIVE, MLA_DTYPE_BF16, 576},
                 {MLA_KV_NATIVE, MLA_DTYPE_F16, 512},
                 {MLA_KV_FP8_656, MLA_DTYPE_BF16, 576},
                 {MLA_KV_FP8_584, MLA_DTYPE_BF16, 512}};
    (void)reference;
    round_trip *trip = tool_alloc(1, sizeof *trip);
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof kinds / sizeof kinds[0]; i++) {
        trip->kv_format = kinds[i].kv_format;
        trip->dtype = kinds[i].dtype;
        trip->d_qk = kinds[i].d_qk;
        trip->cache_bytes = (size_t)PAGES * (size_t)mla_page_bytes(trip->kv_format, trip->dtype,
                                                                   PAGE, 1, trip->d_qk);
        trip->cache = tool_alloc(trip->cache_bytes, 1);
        fill_trip(trip, seed + i);
        ok = run_trip(lane, trip, result);
        free(trip->cache);
    }
    free(trip);
}
