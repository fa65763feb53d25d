/*
 * Fuzz target of the safetensors reader (clang -fsanitize=fuzzer). Whatever the bytes are, the
 * reader returns; of a file that it accepts, every byte of every tensor can be read.
 */
#include "safetensors_reader.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An assertion that optimised builds keep. */
static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void read_tensor(const st_file *file, const st_tensor *tensor)
{
    char text[64];
    unsigned int sum = 0;
    for (size_t i = 0; i < tensor->bytes; i++) {
        sum += tensor->data[i];
    }
    st_describe(tensor, text, sizeof text);
    require(strlen(text) < sizeof text);
    require(st_find(file, tensor->name) == tensor);
    require(tensor->bytes == 0 || (tensor->data >= file->bytes &&
                                   tensor->data + tensor->bytes <= file->bytes + file->size));
    require(sum <= 255 * tensor->bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* A block of the exact size, so that the address sanitizer sees one byte too many. */
    uint8_t *bytes = malloc(size > 0 ? size : 1);
    st_file file;
    if (bytes == NULL) {
        return 0;
    }
    memcpy(bytes, data, size);
    if (st_parse(&file, bytes, size)) {
        for (int32_t i = 0; i < file.num_tensors; i++) {
            read_tensor(&file, &file.tensors[i]);
        }
    } else {
        require(strlen(file.error) > 0);
    }
    st_close(&file);
    free(bytes);
    return 0;
}
