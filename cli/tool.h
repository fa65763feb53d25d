/* What every command of the tool shares: exit statuses, common options, messages, the commands. */
#ifndef MLA_CLI_TOOL_H
#define MLA_CLI_TOOL_H

#include "mla.h"

#include <argp.h>

/* Exit statuses of the tool, documented in docs/tool.md. */
enum {
    TOOL_OK = 0,
    TOOL_FAILED = 1,   /* the work was understood but failed: a check, a device, a full disk */
    TOOL_BAD_INPUT = 2 /* wrong use, or an input that contradicts itself */
};

/* Options that every command understands; the defaults are all zero. */
typedef struct tool_options {
    mla_backend backend;
    int32_t device;
    int32_t num_threads;
    uint32_t isa_mask;
} tool_options;

/*
 * Takes MLA_CPU_ISA out of the environment, so that the tool can still open the reference, and
 * applies it to the contexts that compute. Prints the reason and returns false when it names
 * something unknown.
 */
bool tool_take_environment(void);

/* isa_mask of mla_ctx_params. Prints the reason and returns false when nothing is left. */
bool tool_isa_mask(const tool_options *options, uint32_t *mask);

/* Parser of the common options; a command lists it as child 0 and points child_inputs[0] at its
 * tool_options. */
extern const struct argp tool_options_argp;
extern const struct argp_child tool_options_child[];

/* Parses `argv` of a command whose full name is `name` ("mla bench"). Wrong use ends the process
 * with TOOL_BAD_INPUT, --help with TOOL_OK. */
void tool_parse(const struct argp *argp, const char *name, int argc, char **argv, void *input);

/* Numbers in arguments; wrong ones end the process through argp_error(). */
int64_t tool_parse_int(struct argp_state *state, const char *what, const char *text, int64_t least,
                       int64_t most);
double tool_parse_double(struct argp_state *state, const char *what, const char *text);
mla_dtype tool_parse_dtype(struct argp_state *state, const char *text);
mla_kv_format tool_parse_format(struct argp_state *state, const char *text);

/* Splits "1,2,30" into at most `max` numbers; returns how many. */
int32_t tool_parse_list(struct argp_state *state, const char *what, const char *text, int64_t least,
                        int64_t most, int64_t *values, int32_t max);

/* Whether a file can be written there, as far as that shows before it is. Changes nothing. Prints
 * the reason and returns false. Hours of work should not end with a wrong path. */
bool tool_can_write(const char *path);

/* Prints the names of the CPU's instruction sets, for who asked for one that is not there. */
void tool_suggest_isas(void);

/* Prints "mla: ..." and a newline on stderr. */
void tool_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints what failed with the library's own last-error text. */
void tool_library_error(const char *what, mla_status status);

/* Allocates zeroed memory, or ends the process with TOOL_FAILED: the tool has no use for going on
 * without memory. */
void *tool_alloc(size_t count, size_t size);

const char *tool_dtype_name(mla_dtype dtype);
const char *tool_format_name(mla_kv_format kv_format);
const char *tool_backend_name(mla_backend backend);

/* A number of bytes for people: "1.5 GiB". */
void tool_format_bytes(double bytes, char *text, size_t size);

double tool_now(void); /* seconds of a monotonic clock */

/* The commands; each gets its own argv (argv[0] is the command) and returns an exit status. */
int cmd_info(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_decode(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_pack(int argc, char **argv);
int cmd_unpack(int argc, char **argv);

#endif
