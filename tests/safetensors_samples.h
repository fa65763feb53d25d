/* Safetensors files, good and bad, for the reader's tests and as seeds of its fuzzer. */
#ifndef MLA_TESTS_SAFETENSORS_SAMPLES_H
#define MLA_TESTS_SAFETENSORS_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

typedef struct safetensors_sample {
    const char *name;
    const char *header;     /* JSON text, without its length */
    uint64_t claimed_bytes; /* the length that the file claims; 0: the true one */
    size_t data_bytes;      /* zero bytes after the header */
    const char *error;      /* part of the reader's message; NULL: the file is good */
} safetensors_sample;

extern const safetensors_sample safetensors_samples[];
extern const size_t num_safetensors_samples;

/* Writes the file of a sample into `bytes` and returns its size; with bytes NULL, the size alone. */
size_t safetensors_sample_bytes(const safetensors_sample *sample, uint8_t *bytes);

#endif
