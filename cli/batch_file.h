/* A batch as a safetensors file. */
#ifndef MLA_CLI_BATCH_FILE_H
#define MLA_CLI_BATCH_FILE_H

#include "batch.h"

/* To be asked before the work: prints the reason and returns false. */
bool batch_can_save(const char *path);

/* Writes the tensors of a dense decode batch of native rows, as `mla decode` reads them. Prints the
 * reason and returns false on failure. */
bool batch_save(const char *path, const batch *input);

#endif
