#include "safetensors_writer.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRY_BYTES = 512 };

/* The 8 bytes of length and the JSON header, padded so that data begins at a multiple of 8. */
static char *make_header(const st_tensor *tensors, int32_t num_tensors, size_t *bytes)
{
    size_t capacity = (size_t)(num_tensors + 1) * ENTRY_BYTES, used = 8, at = 0;
    char *header = malloc(capacity);
    if (header == NULL) {
        return NULL;
    }
    for (int32_t i = 0; i < num_tensors; i++) {
        const st_tensor *tensor = &tensors[i];
        assert(strlen(tensor->name) < 128 && strpbrk(tensor->name, "\"\\") == NULL);
        used += (size_t)snprintf(header + used, capacity - used,
                                 "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i == 0 ? "{" : ",",
                                 tensor->name, st_dtype_name(tensor->dtype));
        for (int32_t d = 0; d < tensor->num_dims; d++) {
            used += (size_t)snprintf(header + used, capacity - used, "%s%lld", d > 0 ? "," : "",
                                     (long long)tensor->shape[d]);
        }
        used += (size_t)snprintf(header + used, capacity - used, "],\"data_offsets\":[%zu,%zu]}",
                                 at, at + tensor->bytes);
        at += tensor->bytes;
    }
    used += (size_t)snprintf(header + used, capacity - used, "%s", num_tensors == 0 ? "{}" : "}");
    assert(used + 8 < capacity);
    while (used % 8 != 0) {
        header[used++] = ' ';
    }
    uint64_t length = used - 8;
    for (int i = 0; i < 8; i++) {
        header[i] = (char)(length >> (8 * i) & 0xff);
    }
    *bytes = used;
    return header;
}

static bool write_all(int descriptor, const void *data, size_t bytes)
{
    const uint8_t *from = data;
    while (bytes > 0) {
        size_t piece = bytes < (1u << 30) ? bytes : 1u << 30;
        ssize_t written = write(descriptor, from, piece);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return false;
        }
        from += written;
        bytes -= (size_t)written;
    }
    return true;
}

static bool write_file(int descriptor, const st_tensor *tensors, int32_t num_tensors)
{
    size_t header_bytes;
    char *header = make_header(tensors, num_tensors, &header_bytes);
    bool ok = header != NULL && write_all(descriptor, header, header_bytes);
    free(header);
    for (int32_t i = 0; ok && i < num_tensors; i++) {
        ok = write_all(descriptor, tensors[i].data, tensors[i].bytes);
    }
    return ok && fsync(descriptor) == 0;
}

static bool replace_file(const char *path, const st_tensor *tensors, int32_t num_tensors,
                         char *error, size_t error_size)
{
    size_t length = strlen(path) + sizeof ".XXXXXX";
    char *temporary = malloc(length);
    if (temporary == NULL) {
        snprintf(error, error_size, "out of memory");
        return false;
    }
    snprintf(temporary, length, "%s.XXXXXX", path);
    int descriptor = mkstemp(temporary);
    bool ok = descriptor >= 0;
    bool created = ok;
    if (ok) {
        /* mkstemp() makes files that only their owner may read; others follow the umask. */
        mode_t mask = umask(0);
        umask(mask);
        ok = fchmod(descriptor, 0666 & ~mask) == 0 && write_file(descriptor, tensors, num_tensors);
        int kept = errno;
        ok = close(descriptor) == 0 && ok;
        errno = ok ? 0 : kept;
    }
    ok = ok && rename(temporary, path) == 0;
    if (!ok) {
        snprintf(error, error_size, "%s", strerror(errno));
        if (created) {
            unlink(temporary);
        }
    }
    free(temporary);
    return ok;
}

/* Renaming would put a file in the place of a link, a pipe or a device; also of a link that leads
 * nowhere, or to a pipe without a name, of which realpath() knows no more than of a new file. */
bool st_may_write(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? S_ISREG(info.st_mode) : lstat(path, &info) != 0;
}

bool st_write(const char *path, const st_tensor *tensors, int32_t num_tensors, char *error,
              size_t error_size)
{
    char *target = realpath(path, NULL);
    bool ok = st_may_write(path);
    if (!ok) {
        snprintf(error, error_size, "not a regular file");
    } else {
        ok = replace_file(target != NULL ? target : path, tensors, num_tensors, error, error_size);
    }
    free(target);
    return ok;
}

bool st_same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
           of_a.st_ino == of_b.st_ino;
}
