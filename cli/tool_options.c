#include "tool.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const struct argp_option common_options[] = {
    {0, 0, 0, 0, "Where it runs:", 90},
    {"backend", 'B', "auto|cpu|cuda", 0, "Default auto: the GPU if a usable one is there", 91},
    {"device", 'D', "N", 0, "Which GPU, default 0", 91},
    {"threads", 't', "N", 0, "CPU threads, default all cores", 91},
    {"isa", 'I', "LIST", 0,
     "CPU instruction sets that may be used, comma-separated: reference, portable, avx2, avx512, "
     "avx512_bf16, amx_bf16. Default all",
     91},
    {0, 0, 0, 0, 0, 0}};

/* What MLA_CPU_ISA left of the instruction sets when the tool began. */
static uint32_t environment_mask = UINT32_MAX;

/* Instruction sets of a comma-separated list; NULL, or the first word that names none. */
static const char *read_isa_list(const char *text, uint32_t *mask)
{
    *mask = 0;
    for (const char *word = text; *word != '\0';) {
        size_t length = strcspn(word, ",");
        uint32_t found = 0;
        for (int bit = 0; bit < 6; bit++) {
            const char *name = mla_isa_name((mla_isa)(1u << bit));
            if (strlen(name) == length && strncmp(name, word, length) == 0) {
                found = 1u << bit;
            }
        }
        if (found == 0) {
            return word;
        }
        *mask |= found;
        word += length + (word[length] == ',');
    }
    return *mask == 0 ? text : NULL;
}

/* "reference, portable, avx2": the names of the bits of a mask. */
static const char *name_isas(uint32_t mask, char *names, size_t size)
{
    size_t used = 0;
    names[0] = '\0';
    for (uint32_t isa = MLA_ISA_REFERENCE; isa <= MLA_ISA_AMX_BF16; isa <<= 1) {
        if ((isa & mask) != 0 && used < size) {
            used += (size_t)snprintf(names + used, size - used, "%s%s", used > 0 ? ", " : "",
                                     mla_isa_name((mla_isa)isa));
        }
    }
    return names;
}

static uint32_t parse_isa_list(struct argp_state *state, const char *text)
{
    uint32_t mask;
    char names[128];
    const char *bad = read_isa_list(text, &mask);
    if (bad != NULL) {
        argp_error(state, "--isa: '%s' is no instruction set; choose from %s", bad,
                   name_isas(UINT32_MAX, names, sizeof names));
    }
    return mask;
}

void tool_suggest_isas(void)
{
    mla_ctx_params params = {.struct_size = sizeof params, .backend = MLA_BACKEND_CPU};
    mla_info info = {.struct_size = sizeof info};
    mla_ctx *ctx;
    char names[128];
    if (mla_ctx_create(&params, &ctx) == MLA_OK) {
        if (mla_ctx_get_info(ctx, &info) == MLA_OK) {
            tool_error(
                "this machine has %s; --isa and the environment variable MLA_CPU_ISA take a list "
                "of them",
                name_isas(info.isa_available, names, sizeof names));
        }
        mla_ctx_destroy(ctx);
    }
}

bool tool_take_environment(void)
{
    const char *text = getenv("MLA_CPU_ISA");
    if (text == NULL || *text == '\0') {
        return true;
    }
    char names[128];
    const char *bad = read_isa_list(text, &environment_mask);
    if (bad != NULL) {
        tool_error("the environment variable MLA_CPU_ISA: '%s' is no instruction set; choose from "
                   "%s",
                   bad, name_isas(UINT32_MAX, names, sizeof names));
        return false;
    }
    return unsetenv("MLA_CPU_ISA") == 0;
}

bool tool_isa_mask(const tool_options *options, uint32_t *mask)
{
    *mask = options->isa_mask;
    /* The reference that results are compared with is not for the environment to take away. */
    if (environment_mask == UINT32_MAX || *mask == (uint32_t)MLA_ISA_REFERENCE) {
        return true;
    }
    *mask = *mask == 0 ? environment_mask : *mask & environment_mask;
    if (*mask == 0) {
        char wanted[128], left[128];
        tool_error("--isa %s and the environment variable MLA_CPU_ISA (%s) have nothing in common",
                   name_isas(options->isa_mask, wanted, sizeof wanted),
                   name_isas(environment_mask, left, sizeof left));
    }
    return *mask != 0;
}

static error_t parse_common(int key, char *arg, struct argp_state *state)
{
    tool_options *options = state->input;
    switch (key) {
    case 'B':
        if (strcmp(arg, "auto") == 0) {
            options->backend = MLA_BACKEND_AUTO;
        } else if (strcmp(arg, "cpu") == 0) {
            options->backend = MLA_BACKEND_CPU;
        } else if (strcmp(arg, "cuda") == 0) {
            options->backend = MLA_BACKEND_CUDA;
        } else {
            argp_error(state, "--backend: '%s' is none of auto, cpu, cuda", arg);
        }
        return 0;
    case 'D':
        options->device = (int32_t)tool_parse_int(state, "--device", arg, 0, 1023);
        return 0;
    case 't':
        options->num_threads = (int32_t)tool_parse_int(state, "--threads", arg, 1, 4096);
        return 0;
    case 'I':
        options->isa_mask = parse_isa_list(state, arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp tool_options_argp = {common_options, parse_common, 0, 0, 0, 0, 0};
const struct argp_child tool_options_child[] = {{&tool_options_argp, 0, 0, 90}, {0, 0, 0, 0}};

void tool_parse(const struct argp *argp, const char *name, int argc, char **argv, void *input)
{
    char shown[64];
    assert(argc >= 1 && strlen(name) < sizeof shown);
    snprintf(shown, sizeof shown, "%s", name);
    argv[0] = shown;
    argp_err_exit_status = TOOL_BAD_INPUT;
    error_t error = argp_parse(argp, argc, argv, 0, NULL, input);
    if (error != 0) {
        tool_error("%s", strerror(error));
        exit(TOOL_BAD_INPUT);
    }
}

int64_t tool_parse_int(struct argp_state *state, const char *what, const char *text, int64_t least,
                       int64_t most)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0) {
        argp_error(state, "%s: '%s' is not a whole number", what, text);
    }
    if (value < least || value > most) {
        argp_error(state, "%s: %s is out of range; it must be %lld to %lld", what, text,
                   (long long)least, (long long)most);
    }
    return value;
}

double tool_parse_double(struct argp_state *state, const char *what, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value)) {
        argp_error(state, "%s: '%s' is not a finite number", what, text);
    }
    return value;
}

mla_dtype tool_parse_dtype(struct argp_state *state, const char *text)
{
    if (strcmp(text, "bf16") == 0) {
        return MLA_DTYPE_BF16;
    }
    if (strcmp(text, "f16") != 0) {
        argp_error(state, "--dtype: '%s' is neither bf16 nor f16", text);
    }
    return MLA_DTYPE_F16;
}

mla_kv_format tool_parse_format(struct argp_state *state, const char *text)
{
    for (int format = MLA_KV_NATIVE; format <= MLA_KV_FP8_584; format++) {
        if (strcmp(text, tool_format_name((mla_kv_format)format)) == 0) {
            return (mla_kv_format)format;
        }
    }
    argp_error(state, "--format: '%s' is none of native, fp8_656, fp8_584", text);
    return MLA_KV_NATIVE;
}

int32_t tool_parse_list(struct argp_state *state, const char *what, const char *text, int64_t least,
                        int64_t most, int64_t *values, int32_t max)
{
    int32_t count = 0;
    while (*text != '\0') {
        char word[32];
        size_t length = strcspn(text, ",");
        if (length == 0 || length >= sizeof word) {
            argp_error(state, "%s: '%s' is not a list of numbers such as 100,5000", what, text);
        }
        if (count == max) {
            argp_error(state, "%s: at most %d numbers; use --batch, --mean and --sigma for more",
                       what, max);
        }
        memcpy(word, text, length);
        word[length] = '\0';
        values[count++] = tool_parse_int(state, what, word, least, most);
        text += length + (text[length] == ',');
    }
    if (count == 0) {
        argp_error(state, "%s: the list is empty", what);
    }
    return count;
}

bool tool_can_write(const char *path)
{
    struct stat info;
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int folder_length = slash == NULL ? 0 : (int)(slash - path) + 1;
    bool ok;
    if (stat(path, &info) == 0) {
        ok = !S_ISDIR(info.st_mode) && access(path, W_OK) == 0;
        errno = S_ISDIR(info.st_mode) ? EISDIR : errno;
    } else {
        /* The dot after the last slash makes a file in the place of the folder an error. */
        ok = errno == ENOENT &&
             snprintf(folder, sizeof folder, "%.*s.", folder_length, path) < (int)sizeof folder &&
             access(folder, W_OK | X_OK) == 0;
    }
    if (!ok) {
        tool_error("cannot write %s: %s", path, strerror(errno));
    }
    return ok;
}

void tool_error(const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* Names from files may hold anything; they are not to steer the terminal. */
    for (char *c = text; *c != '\0'; c++) {
        *c = (unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c;
    }
    fflush(stdout);
    fprintf(stderr, "mla: %s\n", text);
}

void tool_library_error(const char *what, mla_status status)
{
    tool_error("%s: %s: %s", what, mla_status_name(status), mla_last_error());
}

void *tool_alloc(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size > 0 ? size : 1);
    if (memory == NULL) {
        tool_error("out of memory: %zu x %zu bytes", count, size);
        exit(TOOL_FAILED);
    }
    return memory;
}

const char *tool_dtype_name(mla_dtype dtype)
{
    return dtype == MLA_DTYPE_BF16 ? "bf16" : dtype == MLA_DTYPE_F16 ? "f16" : "f32";
}

const char *tool_format_name(mla_kv_format kv_format)
{
    static const char *const names[] = {"native", "fp8_656", "fp8_584"};
    assert(kv_format >= MLA_KV_NATIVE && kv_format <= MLA_KV_FP8_584);
    return names[kv_format];
}

const char *tool_backend_name(mla_backend backend)
{
    return backend == MLA_BACKEND_CUDA ? "cuda" : backend == MLA_BACKEND_CPU ? "cpu" : "auto";
}

void tool_format_bytes(double bytes, char *text, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    while (bytes >= 1024.0 && unit < 4) {
        bytes /= 1024.0;
        unit++;
    }
    snprintf(text, size, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

double tool_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
