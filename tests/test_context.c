/* Contexts: what they report, how the mask and the environment restrict them, what they refuse. */
#include "cmocka_c11.h"

#include <mla.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static mla_status create(const mla_ctx_params *params)
{
    mla_ctx *ctx = (mla_ctx *)&ctx;
    mla_status status = mla_ctx_create(params, &ctx);
    assert_true((status == MLA_OK) == (ctx != NULL));
    mla_ctx_destroy(ctx);
    return status;
}

static mla_info info_of(uint32_t isa_mask, int32_t num_threads)
{
    mla_ctx_params params = {.struct_size = sizeof params,
                             .backend = MLA_BACKEND_CPU,
                             .isa_mask = isa_mask,
                             .num_threads = num_threads};
    mla_info info = {.struct_size = sizeof info};
    mla_ctx *ctx;
    assert_int_equal(mla_ctx_create(&params, &ctx), MLA_OK);
    assert_int_equal(mla_ctx_get_info(ctx, &info), MLA_OK);
    mla_ctx_destroy(ctx);
    return info;
}

static void defaults(void **state)
{
    (void)state;
    unsetenv("MLA_CPU_ISA");
    assert_int_equal(create(NULL), MLA_OK);
    mla_info info = info_of(0, 0);
    assert_int_equal(info.struct_size, sizeof info);
    assert_int_equal(info.backend, MLA_BACKEND_CPU);
    assert_true(strlen(info.device_name) > 0);
    assert_true(info.num_threads >= 1);
    assert_true((info.isa_available & MLA_ISA_REFERENCE) != 0);
    assert_true((info.isa_available & MLA_ISA_PORTABLE) != 0);
    assert_int_equal(info.isa_allowed, info.isa_available);
    assert_true((info.isa_allowed & info.isa_used) != 0);
    assert_true(info.isa_used != MLA_ISA_REFERENCE);
    assert_int_equal(info_of(0, 3).num_threads, 3);
}

static void the_mask_restricts(void **state)
{
    (void)state;
    unsetenv("MLA_CPU_ISA");
    uint32_t available = info_of(0, 0).isa_available;
    for (uint32_t bit = MLA_ISA_REFERENCE; bit <= MLA_ISA_AMX_BF16; bit <<= 1) {
        if ((available & bit) != 0) {
            mla_info info = info_of(bit, 0);
            assert_int_equal(info.isa_allowed, bit);
            assert_int_equal(info.isa_used, bit);
            assert_int_equal(info.isa_available, available);
            /* The reference is what is left when nothing else is. */
            mla_isa used = info_of(bit | MLA_ISA_REFERENCE, 0).isa_used;
            assert_int_equal(used, bit);
        } else {
            mla_ctx_params params = {
                .struct_size = sizeof params, .backend = MLA_BACKEND_CPU, .isa_mask = bit};
            assert_int_equal(create(&params), MLA_ERR_UNSUPPORTED);
            assert_non_null(strstr(mla_last_error(), "isa_mask"));
        }
    }
}

static void the_environment_restricts_further(void **state)
{
    (void)state;
    setenv("MLA_CPU_ISA", "portable", 1);
    assert_int_equal(info_of(0, 0).isa_used, MLA_ISA_PORTABLE);
    setenv("MLA_CPU_ISA", "reference,portable", 1);
    assert_int_equal(info_of(MLA_ISA_REFERENCE, 0).isa_used, MLA_ISA_REFERENCE);
    assert_int_equal(info_of(0, 0).isa_used, MLA_ISA_PORTABLE);
    setenv("MLA_CPU_ISA", "", 1); /* an empty value is no restriction */
    assert_int_equal(info_of(0, 0).isa_allowed, info_of(0, 0).isa_available);
    unsetenv("MLA_CPU_ISA");
}

static void the_environment_may_be_wrong(void **state)
{
    (void)state;
    const char *nonsense[] = {"sse9", "avx2,,avx512x", "AVX2;avx512", "portable,nonsense", " avx2"};
    for (size_t i = 0; i < sizeof nonsense / sizeof nonsense[0]; i++) {
        setenv("MLA_CPU_ISA", nonsense[i], 1);
        mla_ctx_params params = {.struct_size = sizeof params, .backend = MLA_BACKEND_CPU};
        assert_int_equal(create(&params), MLA_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(mla_last_error(), "MLA_CPU_ISA"));
    }
    setenv("MLA_CPU_ISA", "portable", 1); /* nothing is left of the mask */
    mla_ctx_params params = {
        .struct_size = sizeof params, .backend = MLA_BACKEND_CPU, .isa_mask = MLA_ISA_REFERENCE};
    assert_int_equal(create(&params), MLA_ERR_UNSUPPORTED);
    unsetenv("MLA_CPU_ISA");
}

static void assert_refused(mla_ctx_params params, mla_status status, const char *text)
{
    params.struct_size = sizeof params;
    assert_int_equal(create(&params), status);
    if (strstr(mla_last_error(), text) == NULL) {
        fail_msg("'%s' does not contain '%s'", mla_last_error(), text);
    }
}

static void bad_parameters(void **state)
{
    (void)state;
    assert_refused((mla_ctx_params){.backend = (mla_backend)3}, MLA_ERR_INVALID_ARGUMENT,
                   "backend = 3");
    assert_refused((mla_ctx_params){.backend = (mla_backend)-1}, MLA_ERR_INVALID_ARGUMENT,
                   "backend = -1");
    assert_refused((mla_ctx_params){.device = -1}, MLA_ERR_INVALID_ARGUMENT, "device = -1");
    assert_refused((mla_ctx_params){.num_threads = -2}, MLA_ERR_INVALID_ARGUMENT,
                   "num_threads = -2");
    assert_refused((mla_ctx_params){.num_threads = 4097}, MLA_ERR_INVALID_ARGUMENT,
                   "num_threads = 4097");
    assert_refused((mla_ctx_params){.num_threads = INT32_MAX}, MLA_ERR_INVALID_ARGUMENT,
                   "num_threads = 2147483647");
    assert_refused((mla_ctx_params){.isa_mask = 1u << 6}, MLA_ERR_INVALID_ARGUMENT, "isa_mask");
    assert_refused((mla_ctx_params){.isa_mask = 0x80000001u}, MLA_ERR_INVALID_ARGUMENT, "isa_mask");
    assert_refused((mla_ctx_params){.backend = MLA_BACKEND_CPU, .device = 1}, MLA_ERR_UNSUPPORTED,
                   "device = 1");
    assert_refused((mla_ctx_params){.backend = MLA_BACKEND_CUDA, .device = 1000},
                   MLA_ERR_UNSUPPORTED, "");
    assert_refused((mla_ctx_params){.device = 1000}, MLA_ERR_UNSUPPORTED, "");
    assert_int_equal(mla_ctx_create(NULL, NULL), MLA_ERR_INVALID_ARGUMENT);
    mla_ctx_destroy(NULL);
}

static void sizes_of_the_parameter_struct(void **state)
{
    (void)state;
    const size_t wrong[] = {0, 1, sizeof(size_t) - 1, 4097, SIZE_MAX};
    for (int i = 0; i < 5; i++) {
        mla_ctx_params params = {.struct_size = wrong[i]};
        assert_int_equal(create(&params), MLA_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(mla_last_error(), "struct_size"));
    }
    /* An older caller's struct ends early; what it lacks is the default. */
    mla_ctx_params older = {.struct_size = offsetof(mla_ctx_params, num_threads),
                            .backend = MLA_BACKEND_CPU,
                            .num_threads = -1,
                            .isa_mask = UINT32_MAX};
    assert_int_equal(create(&older), MLA_OK);
    struct newer {
        mla_ctx_params params;
        uint64_t unknown;
    } newer = {.params = {.struct_size = sizeof newer, .backend = MLA_BACKEND_CPU}};
    assert_int_equal(create(&newer.params), MLA_OK);
    newer.unknown = 1;
    assert_int_equal(create(&newer.params), MLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(mla_last_error(), "struct_size"));
}

static void info_for_older_and_newer_callers(void **state)
{
    (void)state;
    mla_ctx *ctx;
    mla_ctx_params params = {.struct_size = sizeof params, .backend = MLA_BACKEND_CPU};
    assert_int_equal(mla_ctx_create(&params, &ctx), MLA_OK);
    mla_info info;
    memset(&info, 0xee, sizeof info);
    info.struct_size = offsetof(mla_info, num_threads);
    assert_int_equal(mla_ctx_get_info(ctx, &info), MLA_OK);
    assert_int_equal(info.backend, MLA_BACKEND_CPU);
    assert_int_equal(info.num_threads, (int32_t)0xeeeeeeee); /* beyond the older struct */
    info.struct_size = 3;
    assert_int_equal(mla_ctx_get_info(ctx, &info), MLA_ERR_INVALID_ARGUMENT);
    assert_int_equal(mla_ctx_get_info(ctx, NULL), MLA_ERR_INVALID_ARGUMENT);
    assert_int_equal(mla_ctx_get_info(NULL, &info), MLA_ERR_INVALID_ARGUMENT);
    mla_ctx_destroy(ctx);
}

static void device_counts(void **state)
{
    (void)state;
    int32_t count = -7;
    assert_int_equal(mla_device_count(MLA_BACKEND_CPU, &count), MLA_OK);
    assert_int_equal(count, 1);
    count = -7;
    mla_status status = mla_device_count(MLA_BACKEND_CUDA, &count);
    assert_true(status == MLA_OK ? count >= 0 : status == MLA_ERR_UNSUPPORTED && count == 0);
    assert_int_equal(mla_device_count(MLA_BACKEND_CPU, NULL), MLA_ERR_INVALID_ARGUMENT);
    assert_int_equal(mla_device_count((mla_backend)9, &count), MLA_ERR_INVALID_ARGUMENT);
    assert_int_equal(mla_device_count(MLA_BACKEND_AUTO, &count), MLA_ERR_INVALID_ARGUMENT);
    assert_int_equal(count, 0);
}

/* On a machine without a usable GPU the CUDA backend says why, and AUTO falls back. */
static void a_missing_gpu_is_a_status(void **state)
{
    (void)state;
    mla_ctx_params params = {.struct_size = sizeof params, .backend = MLA_BACKEND_CUDA};
    mla_status status = create(&params);
    assert_true(status == MLA_OK || status == MLA_ERR_UNSUPPORTED);
    if (status == MLA_ERR_UNSUPPORTED) {
        assert_true(strlen(mla_last_error()) > 10);
    }
    params.backend = MLA_BACKEND_AUTO;
    assert_int_equal(create(&params), MLA_OK);
}

static void names(void **state)
{
    (void)state;
    const char *isas[] = {"reference", "portable", "avx2", "avx512", "avx512_bf16", "amx_bf16"};
    for (int i = 0; i < 6; i++) {
        assert_string_equal(mla_isa_name((mla_isa)(1 << i)), isas[i]);
    }
    assert_string_equal(mla_isa_name((mla_isa)3), "unknown");
    assert_string_equal(mla_isa_name((mla_isa)0), "unknown");
    const char *statuses[] = {"MLA_OK",
                              "MLA_ERR_INVALID_ARGUMENT",
                              "MLA_ERR_UNSUPPORTED",
                              "MLA_ERR_BUFFER_TOO_SMALL",
                              "MLA_ERR_PLAN_MISMATCH",
                              "MLA_ERR_OUT_OF_MEMORY",
                              "MLA_ERR_DEVICE"};
    for (int i = 0; i < 7; i++) {
        assert_string_equal(mla_status_name((mla_status)i), statuses[i]);
    }
    assert_string_equal(mla_status_name((mla_status)7), "unknown status");
    assert_int_equal(mla_version(),
                     MLA_VERSION_MAJOR * 10000 + MLA_VERSION_MINOR * 100 + MLA_VERSION_PATCH);
}

static void *fail_in_thread(void *out)
{
    char *texts = out;
    strcpy(texts, mla_last_error()); /* empty before the first failure of this thread */
    mla_ctx_create(NULL, NULL);
    strcpy(texts + 512, mla_last_error());
    return NULL;
}

static void errors_belong_to_their_thread(void **state)
{
    (void)state;
    int32_t count;
    assert_int_equal(mla_device_count((mla_backend)77, &count), MLA_ERR_INVALID_ARGUMENT);
    char texts[1024];
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_in_thread, texts), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(texts, "");
    assert_non_null(strstr(texts + 512, "ctx = NULL"));
    assert_non_null(strstr(mla_last_error(), "77"));
    assert_int_equal(mla_device_count(MLA_BACKEND_CPU, &count), MLA_OK); /* success leaves it */
    assert_non_null(strstr(mla_last_error(), "77"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(the_mask_restricts),
        cmocka_unit_test(the_environment_restricts_further),
        cmocka_unit_test(the_environment_may_be_wrong),
        cmocka_unit_test(bad_parameters),
        cmocka_unit_test(sizes_of_the_parameter_struct),
        cmocka_unit_test(info_for_older_and_newer_callers),
        cmocka_unit_test(device_counts),
        cmocka_unit_test(a_missing_gpu_is_a_status),
        cmocka_unit_test(names),
        cmocka_unit_test(errors_belong_to_their_thread),
    };
    return cmocka_run_group_tests_name("context", tests, NULL, NULL);
}
