/* Writes safetensors files whole or not at all. */
#ifndef MLA_CLI_SAFETENSORS_WRITER_H
#define MLA_CLI_SAFETENSORS_WRITER_H

#include "safetensors_reader.h"

/*
 * Writes `tensors` (name, dtype, num_dims, shape, data, bytes; names without quotes or backslashes)
 * to a temporary file beside `path`, which then takes its name. On failure returns false with the
 * reason in `error`, and nothing is left behind.
 */
bool st_write(const char *path, const st_tensor *tensors, int32_t num_tensors, char *error,
              size_t error_size);

/* Whether st_write() will take this path: a new file, or a regular one that is there. */
bool st_may_write(const char *path);

/* Whether two names are those of one file that is there. */
bool st_same_file(const char *a, const char *b);

#endif
