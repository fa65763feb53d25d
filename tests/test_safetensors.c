/*
 * The reader of safetensors files on good and bad ones, cut at every byte and with bits flipped.
 * With --write-seeds DIR: writes the samples there, for the fuzzer. With files as arguments: runs
 * the fuzz target over them, e.g. over what the fuzzer has found once.
 */
#include "cmocka_c11.h"
#include "guarded_memory.h"
#include "safetensors_reader.h"
#include "safetensors_samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t *sample_file(const safetensors_sample *sample, size_t *size)
{
    *size = safetensors_sample_bytes(sample, NULL);
    uint8_t *bytes = guarded_alloc(*size, 1);
    safetensors_sample_bytes(sample, bytes);
    return bytes;
}

static void samples(void **state)
{
    (void)state;
    for (size_t i = 0; i < num_safetensors_samples; i++) {
        const safetensors_sample *sample = &safetensors_samples[i];
        size_t size;
        uint8_t *bytes = sample_file(sample, &size);
        st_file file;
        bool good = st_parse(&file, bytes, size);
        if (good != (sample->error == NULL) || (!good && !strstr(file.error, sample->error))) {
            fail_msg("%s: %s: '%s'", sample->name, good ? "accepted" : "refused", file.error);
        }
        st_close(&file);
        guarded_release(0);
    }
}

static void tensors_are_found(void **state)
{
    (void)state;
    const safetensors_sample two = {
        "",
        "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
        "\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
        0, 16, NULL};
    size_t size;
    uint8_t *bytes = sample_file(&two, &size);
    st_file file;
    assert_true(st_parse(&file, bytes, size));
    const st_tensor *tensor = st_find(&file, "b");
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, ST_BF16);
    assert_int_equal(tensor->num_dims, 2);
    assert_int_equal(tensor->shape[1], 3);
    assert_int_equal(tensor->bytes, 12);
    assert_ptr_equal(tensor->data, bytes + size - 12);
    char text[40];
    st_describe(tensor, text, sizeof text);
    assert_string_equal(text, "BF16 [2, 3]");
    st_describe(tensor, text, 8);
    assert_int_equal(strlen(text), 7);
    assert_null(st_find(&file, "c"));
    st_close(&file);
    guarded_release(0);
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < num_safetensors_samples && safetensors_samples[i].error == NULL; i++) {
        size_t size;
        uint8_t *bytes = sample_file(&safetensors_samples[i], &size);
        for (size_t cut = 0; cut < size; cut++) {
            size_t mark = guarded_mark();
            uint8_t *copy = guarded_alloc(cut, 1);
            st_file file;
            memcpy(copy, bytes, cut);
            assert_false(st_parse(&file, copy, cut));
            assert_true(strlen(file.error) > 0);
            st_close(&file);
            guarded_release(mark);
        }
        guarded_release(0);
    }
}

static void flipped_bits_never_fault(void **state)
{
    (void)state;
    for (size_t i = 0; i < num_safetensors_samples; i++) {
        size_t size;
        uint8_t *bytes = sample_file(&safetensors_samples[i], &size);
        for (size_t bit = 0; bit < 8 * size; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            LLVMFuzzerTestOneInput(bytes, size);
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        guarded_release(0);
    }
}

static void files_that_cannot_be_opened(void **state)
{
    (void)state;
    st_file file;
    assert_false(st_open(&file, "/nonexistent/file.safetensors"));
    assert_non_null(strstr(file.error, "cannot open"));
    st_close(&file);
    assert_false(st_open(&file, "/"));
    assert_non_null(strstr(file.error, "not a regular file"));
    st_close(&file);
    char path[] = "/tmp/mla_test_XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_false(st_open(&file, path));
    assert_non_null(strstr(file.error, "too few"));
    st_close(&file);
    close(descriptor);
    unlink(path);
}

static int write_seeds(const char *directory)
{
    for (size_t i = 0; i < num_safetensors_samples; i++) {
        char path[4096];
        size_t size = safetensors_sample_bytes(&safetensors_samples[i], NULL);
        uint8_t *bytes = malloc(size);
        snprintf(path, sizeof path, "%s/%s", directory, safetensors_samples[i].name);
        FILE *file = fopen(path, "wb");
        if (bytes == NULL || file == NULL) {
            perror(path);
            return 1;
        }
        safetensors_sample_bytes(&safetensors_samples[i], bytes);
        bool written = fwrite(bytes, 1, size, file) == size;
        free(bytes);
        if (fclose(file) != 0 || !written) {
            perror(path);
            return 1;
        }
    }
    printf("wrote %zu files to %s\n", num_safetensors_samples, directory);
    return 0;
}

static int run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return 1;
    }
    static uint8_t bytes[1 << 20];
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    LLVMFuzzerTestOneInput(bytes, size);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write-seeds") == 0) {
        return write_seeds(argv[2]);
    }
    if (argc > 1) {
        int failed = 0;
        for (int i = 1; i < argc; i++) {
            failed += run_file(argv[i]);
        }
        return failed;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples),
        cmocka_unit_test(tensors_are_found),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(flipped_bits_never_fault),
        cmocka_unit_test(files_that_cannot_be_opened),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
