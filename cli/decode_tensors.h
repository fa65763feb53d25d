/* From the tensors of a safetensors file to a problem with its inputs, every claim checked. */
#ifndef MLA_CLI_DECODE_TENSORS_H
#define MLA_CLI_DECODE_TENSORS_H

#include "batch.h"
#include "safetensors_reader.h"

/* What the file does not say. */
typedef struct decode_options {
    int64_t page_size; /* of flat caches; 0: the cache has a page dimension */
    int64_t extra_page_size;
    double softmax_scale; /* 0: 1 / sqrt(d_qk) */
    int64_t num_parts;
    bool causal, prefill, batch_invariant, lse_empty_pos_inf;
} decode_options;

/* A pool as a file has it: bf16, f16 or FP8 rows with or without a page dimension. */
typedef struct cache_layout {
    mla_kv_format kv_format;
    mla_dtype dtype; /* native rows */
    int64_t num_pages, page_size, h_kv, d_qk;
    int64_t page_stride; /* elements, bytes with FP8 rows */
} cache_layout;

typedef struct decode_input {
    const char *path;
    st_file file;
    batch input;               /* memory[] points into the file or to `owned` */
    void *owned[TENSOR_COUNT]; /* converted or realigned tensors */
    const st_tensor *used[TENSOR_COUNT];
} decode_input;

/* Opens the file. Prints the reason and returns false on failure; decode_close() either way. */
bool decode_open(decode_input *in, const char *path);

/* Fills in->input from the file. Prints the reason and returns false on failure. */
bool decode_read(decode_input *in, const decode_options *options);
void decode_close(decode_input *in);

/* Reads the layout of a cache tensor. Prints what was expected and returns false on failure. */
bool cache_layout_read(const decode_input *in, const st_tensor *tensor, int64_t page_size,
                       cache_layout *layout);

/* Prints "PATH: tensor 'NAME' is BF16 [1, 2]: expected ..." and returns false. */
bool decode_wrong(const decode_input *in, const st_tensor *tensor, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Makes a tensor reachable at its natural alignment. False when memory is short. */
bool decode_bind(decode_input *in, tensor_id id, const st_tensor *tensor);

#endif
