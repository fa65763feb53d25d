#include "safetensors_reader.h"

#include <cjson/cJSON.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PREFIX_BYTES = 8,
    MAX_HEADER_BYTES = 100 * 1000 * 1000, /* the limit that the format's own reader sets */
    MAX_NESTING = 8                       /* a header needs three levels */
};

/* Whole numbers up to here are exact in the doubles that JSON gives. */
static const double exact_limit = 9007199254740992.0;

static const struct {
    const char *name;
    size_t bytes;
} dtypes[ST_DTYPES] = {
    [ST_BOOL] = {"BOOL", 1},       [ST_U8] = {"U8", 1},           [ST_I8] = {"I8", 1},
    [ST_F8_E4M3] = {"F8_E4M3", 1}, [ST_F8_E5M2] = {"F8_E5M2", 1}, [ST_I16] = {"I16", 2},
    [ST_U16] = {"U16", 2},         [ST_F16] = {"F16", 2},         [ST_BF16] = {"BF16", 2},
    [ST_I32] = {"I32", 4},         [ST_U32] = {"U32", 4},         [ST_F32] = {"F32", 4},
    [ST_I64] = {"I64", 8},         [ST_U64] = {"U64", 8},         [ST_F64] = {"F64", 8}};

const char *st_dtype_name(st_dtype dtype)
{
    assert(dtype >= 0 && dtype < ST_DTYPES);
    return dtypes[dtype].name;
}

size_t st_dtype_bytes(st_dtype dtype)
{
    assert(dtype >= 0 && dtype < ST_DTYPES);
    return dtypes[dtype].bytes;
}

__attribute__((format(printf, 2, 3))) static bool fail(st_file *file, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(file->error, sizeof file->error, format, args);
    va_end(args);
    return false;
}

/* Whether braces and brackets outside strings nest no deeper than a header can: cJSON recurses. */
static bool nesting_is_shallow(const char *text, size_t length)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        if (in_string) {
            i += text[i] == '\\';
            in_string = i >= length || text[i] != '"';
        } else if (text[i] == '"') {
            in_string = true;
        } else if (text[i] == '{' || text[i] == '[') {
            if (++depth > MAX_NESTING) {
                return false;
            }
        } else if (text[i] == '}' || text[i] == ']') {
            depth--;
        }
    }
    return true;
}

static bool whole_number(const cJSON *item, int64_t *value)
{
    if (!cJSON_IsNumber(item)) {
        return false;
    }
    double number = cJSON_GetNumberValue(item);
    if (!(number >= 0.0 && number <= exact_limit) || number != floor(number)) {
        return false;
    }
    *value = (int64_t)number;
    return true;
}

static bool read_dtype(st_file *file, st_tensor *tensor, const cJSON *entry)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "dtype"));
    if (text == NULL) {
        return fail(file, "tensor '%.64s' has no dtype", tensor->name);
    }
    for (int dtype = 0; dtype < ST_DTYPES; dtype++) {
        if (strcmp(text, dtypes[dtype].name) == 0) {
            tensor->dtype = (st_dtype)dtype;
            return true;
        }
    }
    return fail(file, "tensor '%.64s' has dtype '%.32s', which is not known", tensor->name, text);
}

static bool read_shape(st_file *file, st_tensor *tensor, const cJSON *entry)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    if (!cJSON_IsArray(shape)) {
        return fail(file, "tensor '%.64s' has no shape", tensor->name);
    }
    size_t bytes = dtypes[tensor->dtype].bytes;
    const cJSON *item;
    cJSON_ArrayForEach(item, shape)
    {
        int64_t dim;
        if (tensor->num_dims == ST_MAX_DIMS) {
            return fail(file, "tensor '%.64s' has more than %d dimensions", tensor->name,
                        ST_MAX_DIMS);
        }
        if (!whole_number(item, &dim)) {
            return fail(file, "tensor '%.64s': dimension %d of its shape is not a whole number",
                        tensor->name, tensor->num_dims);
        }
        if (__builtin_mul_overflow(bytes, (size_t)dim, &bytes)) {
            return fail(file, "tensor '%.64s': its shape multiplies to more bytes than exist",
                        tensor->name);
        }
        tensor->shape[tensor->num_dims++] = dim;
    }
    tensor->bytes = bytes;
    return true;
}

static bool read_offsets(st_file *file, st_tensor *tensor, const cJSON *entry, size_t data_at)
{
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    int64_t begin, end;
    size_t data_bytes = file->size - data_at;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !whole_number(cJSON_GetArrayItem(offsets, 0), &begin) ||
        !whole_number(cJSON_GetArrayItem(offsets, 1), &end)) {
        return fail(file, "tensor '%.64s': data_offsets must be two whole numbers", tensor->name);
    }
    if (begin > end || (uint64_t)end > data_bytes) {
        return fail(file,
                    "tensor '%.64s': data_offsets [%lld, %lld] do not lie within the %zu bytes of "
                    "data in the file",
                    tensor->name, (long long)begin, (long long)end, data_bytes);
    }
    if ((uint64_t)(end - begin) != tensor->bytes) {
        char what[160];
        st_describe(tensor, what, sizeof what);
        return fail(file, "tensor '%.64s': %s takes %zu bytes, but data_offsets span %lld",
                    tensor->name, what, tensor->bytes, (long long)(end - begin));
    }
    tensor->begin = (size_t)begin;
    tensor->data = file->bytes + data_at + begin;
    return true;
}

static int by_begin(const void *a, const void *b)
{
    const st_tensor *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const st_tensor *)a)->name, ((const st_tensor *)b)->name);
}

/* Tensors must tile the data section: no overlap, no gap, nothing after the last. */
static bool check_tiling(st_file *file, size_t data_at)
{
    size_t at = 0, count = (size_t)file->num_tensors;
    if (count > 0) {
        qsort(file->tensors, count, sizeof *file->tensors, by_begin);
    }
    for (size_t i = 0; i < count; i++) {
        const st_tensor *tensor = &file->tensors[i];
        if (tensor->begin < at) {
            return fail(file, "tensors '%.64s' and '%.64s' overlap", file->tensors[i - 1].name,
                        tensor->name);
        }
        if (tensor->begin > at) {
            return fail(file, "%zu bytes before tensor '%.64s' belong to no tensor",
                        tensor->begin - at, tensor->name);
        }
        at = tensor->begin + tensor->bytes;
    }
    if (at != file->size - data_at) {
        return fail(file, "%zu bytes after the last tensor belong to no tensor",
                    file->size - data_at - at);
    }
    return true;
}

static bool check_names(st_file *file)
{
    if (file->num_tensors > 0) {
        qsort(file->tensors, (size_t)file->num_tensors, sizeof *file->tensors, by_name);
    }
    for (int32_t i = 1; i < file->num_tensors; i++) {
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0) {
            return fail(file, "tensor '%.64s' appears twice", file->tensors[i].name);
        }
    }
    return true;
}

static bool read_entries(st_file *file, const cJSON *root, size_t data_at)
{
    size_t count = 0;
    const cJSON *entry;
    cJSON_ArrayForEach(entry, root)
    {
        count++;
    }
    file->tensors = calloc(count + 1, sizeof *file->tensors);
    if (file->tensors == NULL || count > INT32_MAX) {
        return fail(file, "out of memory for %zu tensors", count);
    }
    cJSON_ArrayForEach(entry, root)
    {
        if (!cJSON_IsObject(entry)) {
            return fail(file, "the entry of tensor '%.64s' is not an object", entry->string);
        }
        if (strcmp(entry->string, "__metadata__") == 0) {
            continue;
        }
        st_tensor *tensor = &file->tensors[file->num_tensors];
        tensor->name = strdup(entry->string);
        if (tensor->name == NULL) {
            return fail(file, "out of memory");
        }
        file->num_tensors++;
        if (!read_dtype(file, tensor, entry) || !read_shape(file, tensor, entry) ||
            !read_offsets(file, tensor, entry, data_at)) {
            return false;
        }
    }
    return check_names(file) && check_tiling(file, data_at);
}

bool st_parse(st_file *file, const uint8_t *bytes, size_t size)
{
    *file = (st_file){.bytes = bytes, .size = size};
    if (size < PREFIX_BYTES) {
        return fail(file, "%zu bytes are too few for a safetensors file", size);
    }
    uint64_t header_bytes = 0;
    for (int i = PREFIX_BYTES - 1; i >= 0; i--) {
        header_bytes = header_bytes << 8 | bytes[i];
    }
    if (header_bytes > MAX_HEADER_BYTES) {
        return fail(file,
                    "the header claims %llu bytes, more than the format allows; this is no "
                    "safetensors file",
                    (unsigned long long)header_bytes);
    }
    if (header_bytes > size - PREFIX_BYTES) {
        return fail(file, "truncated: the header claims %llu bytes, but only %zu follow",
                    (unsigned long long)header_bytes, size - PREFIX_BYTES);
    }
    const char *text = (const char *)bytes + PREFIX_BYTES;
    size_t length = (size_t)header_bytes, data_at = PREFIX_BYTES + length;
    if (length == 0 || text[0] != '{') {
        return fail(file, "the header does not begin with '{'");
    }
    if (memchr(text, '\0', length) != NULL) {
        return fail(file, "the header contains a zero byte");
    }
    if (!nesting_is_shallow(text, length)) {
        return fail(file, "the header nests deeper than %d levels", MAX_NESTING);
    }
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, length, &end, false);
    if (root == NULL || !cJSON_IsObject(root)) {
        size_t at = end != NULL && end >= text ? (size_t)(end - text) : 0;
        cJSON_Delete(root);
        return fail(file, "the header is not a JSON object (near byte %zu)", at);
    }
    bool ok = true;
    for (const char *rest = end; ok && rest < text + length; rest++) {
        ok = *rest == ' ' || *rest == '\n' || *rest == '\t' || *rest == '\r' ||
             fail(file, "garbage after the JSON object of the header");
    }
    ok = ok && read_entries(file, root, data_at);
    cJSON_Delete(root);
    return ok;
}

bool st_open(st_file *file, const char *path)
{
    *file = (st_file){.bytes = NULL};
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (descriptor < 0 || fstat(descriptor, &info) != 0) {
        fail(file, "cannot open it: %s", strerror(errno));
        if (descriptor >= 0) {
            close(descriptor);
        }
        return false;
    }
    if (!S_ISREG(info.st_mode)) {
        close(descriptor);
        return fail(file, "not a regular file");
    }
    size_t size = (size_t)info.st_size;
    if (size < PREFIX_BYTES) {
        close(descriptor);
        return fail(file, "%zu bytes are too few for a safetensors file", size);
    }
    void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    int map_error = errno;
    close(descriptor);
    if (bytes == MAP_FAILED) {
        return fail(file, "cannot map %zu bytes: %s", size, strerror(map_error));
    }
    bool ok = st_parse(file, bytes, size);
    file->mapped = true;
    return ok;
}

void st_close(st_file *file)
{
    for (int32_t i = 0; i < file->num_tensors; i++) {
        free(file->tensors[i].name);
    }
    free(file->tensors);
    if (file->mapped) {
        munmap((void *)(uintptr_t)file->bytes, file->size);
    }
    *file = (st_file){.bytes = NULL};
}

const st_tensor *st_find(const st_file *file, const char *name)
{
    for (int32_t i = 0; i < file->num_tensors; i++) {
        if (strcmp(file->tensors[i].name, name) == 0) {
            return &file->tensors[i];
        }
    }
    return NULL;
}

void st_describe(const st_tensor *tensor, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "%s [", st_dtype_name(tensor->dtype));
    for (int32_t i = 0; i < tensor->num_dims && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i > 0 ? ", " : "",
                                 (long long)tensor->shape[i]);
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
}
