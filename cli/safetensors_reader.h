/*
 * Reads safetensors files: 8 bytes of header length, a JSON header, tensor data. Whatever the bytes
 * claim is checked against what is there; a file that passes can be used without further care.
 * Needs nothing but libc and cJSON.
 */
#ifndef MLA_CLI_SAFETENSORS_READER_H
#define MLA_CLI_SAFETENSORS_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum st_dtype {
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_F8_E4M3,
    ST_F8_E5M2,
    ST_I16,
    ST_U16,
    ST_F16,
    ST_BF16,
    ST_I32,
    ST_U32,
    ST_F32,
    ST_I64,
    ST_U64,
    ST_F64,
    ST_DTYPES
} st_dtype;

const char *st_dtype_name(st_dtype dtype); /* as in the file: "BF16" */
size_t st_dtype_bytes(st_dtype dtype);

enum { ST_MAX_DIMS = 8 };

typedef struct st_tensor {
    char *name;
    st_dtype dtype;
    int32_t num_dims;
    int64_t shape[ST_MAX_DIMS];
    const uint8_t *data; /* inside the file's bytes; any alignment */
    size_t bytes;        /* shape times dtype */
    size_t begin;        /* offset within the data section */
} st_tensor;

typedef struct st_file {
    const uint8_t *bytes;
    size_t size;
    bool mapped;
    st_tensor *tensors; /* in the order of their data */
    int32_t num_tensors;
    char error[320]; /* what is wrong, after a failure */
} st_file;

/* Parses a file in memory, which must outlive *file. False, with file->error, when it is not one.
 * Either way st_close() releases. */
bool st_parse(st_file *file, const uint8_t *bytes, size_t size);

/* Maps a file and parses it; nothing but the header is read. */
bool st_open(st_file *file, const char *path);
void st_close(st_file *file);

/* NULL when there is no such tensor. */
const st_tensor *st_find(const st_file *file, const char *name);

/* "BF16 [4, 1, 128, 576]" */
void st_describe(const st_tensor *tensor, char *text, size_t size);

#endif
