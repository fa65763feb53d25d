/*
 * Where tensors live: host memory for CPU contexts, a GPU's memory for CUDA ones. The GPU's driver
 * is found at run time, so the tool needs no CUDA to build.
 */
#ifndef MLA_CLI_DEVICE_MEMORY_H
#define MLA_CLI_DEVICE_MEMORY_H

#include "mla.h"

typedef struct cuda_driver cuda_driver;

typedef struct memory_space {
    mla_backend backend;
    cuda_driver *driver; /* NULL for host memory */
} memory_space;

/* All of them print what failed and return false (or NULL) on failure. */
bool memory_space_open(memory_space *space, mla_backend backend, int32_t device);
void memory_space_close(memory_space *space);

void *memory_alloc(const memory_space *space, size_t bytes); /* 256-byte aligned at least */
void memory_free(const memory_space *space, void *memory);
bool memory_upload(const memory_space *space, void *to, const void *from, size_t bytes);
bool memory_download(const memory_space *space, void *to, const void *from, size_t bytes);
bool memory_wait(const memory_space *space); /* until all enqueued work is done */

/* Seconds that the work enqueued between the two calls took on the device; host memory: wall time.
 * `memory_timer_stop` waits for the work. */
bool memory_timer_start(const memory_space *space);
bool memory_timer_stop(const memory_space *space, double *seconds);

/* The stream that jobs are enqueued on and the timer looks at; NULL for host memory. */
void *memory_stream(const memory_space *space);

/* GPU only: what is enqueued on the stream between the first two becomes a CUDA graph. */
bool memory_graph_start(const memory_space *space);
bool memory_graph_stop(const memory_space *space, void **executable);
bool memory_graph_run(const memory_space *space, void *executable);
void memory_graph_free(const memory_space *space, void *executable); /* NULL is allowed */

/* GPU only. */
typedef struct device_traits {
    double clock_ghz; /* of the multiprocessors, at most */
    double bus_gbs;   /* what the memory's bus carries */
    size_t l2_bytes;
    char bus_id[32]; /* by which other libraries name the device */
} device_traits;

bool memory_device_traits(const memory_space *space, device_traits *traits);

/*
 * Host memory between two pages that fault, its end flush with the second one as far as
 * `alignment` (a power of two) allows, so that an access past the end is seen. Untouched pages cost
 * nothing and read as zero.
 */
typedef struct guarded_memory {
    uint8_t *data;
    size_t bytes;
    void *map;
    size_t map_bytes;
} guarded_memory;

bool guarded_alloc(guarded_memory *memory, size_t bytes, size_t alignment);
void guarded_free(guarded_memory *memory);

#endif
