#include "device_memory.h"
#include "shared_library.h"
#include "tool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The few driver entry points that moving tensors and timing take, with the types of their C
 * interface. */
struct cuda_driver {
    void *library;
    int device;
    void *stream;       /* CUstream; waits for the default stream and it for this one */
    void *start, *stop; /* CUevent */
    int (*init)(unsigned flags);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*set_current)(void *context);
    int (*alloc)(uint64_t *address, size_t bytes);
    int (*free)(uint64_t address);
    int (*upload)(uint64_t to, const void *from, size_t bytes);
    int (*download)(void *to, uint64_t from, size_t bytes);
    int (*wait)(void);
    int (*error_text)(int error, const char **text);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*event_elapsed)(float *milliseconds, void *start, void *stop);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_instantiate)(void **executable, void *graph, unsigned long long flags);
    int (*graph_destroy)(void *graph);
    int (*graph_launch)(void *executable, void *stream);
    int (*executable_destroy)(void *executable);
    int (*attribute)(int *value, int attribute, int device);
    int (*bus_id)(char *text, int size, int device);
};

/* Values of the driver's own enumerations. */
enum {
    CAPTURE_THREAD_LOCAL = 1,
    ATTRIBUTE_CLOCK_KHZ = 13,
    ATTRIBUTE_MEMORY_KHZ = 36,
    ATTRIBUTE_BUS_BITS = 37,
    ATTRIBUTE_L2_BYTES = 38
};

static double host_timer_start;

static bool driver_ok(const cuda_driver *driver, const char *what, int error)
{
    if (error == 0) {
        return true;
    }
    const char *text = NULL;
    if (driver->error_text(error, &text) != 0 || text == NULL) {
        text = "unknown error";
    }
    tool_error("CUDA driver: %s failed: %s (%d)", what, text, error);
    return false;
}

static bool resolve(cuda_driver *driver, const char *name, void *slot)
{
    if (!find_function(driver->library, name, slot)) {
        tool_error("libcuda.so.1 has no %s", name);
        return false;
    }
    return true;
}

static bool resolve_all(cuda_driver *driver)
{
    return resolve(driver, "cuInit", &driver->init) &&
           resolve(driver, "cuDevicePrimaryCtxRetain", &driver->retain) &&
           resolve(driver, "cuDevicePrimaryCtxRelease_v2", &driver->release) &&
           resolve(driver, "cuCtxSetCurrent", &driver->set_current) &&
           resolve(driver, "cuMemAlloc_v2", &driver->alloc) &&
           resolve(driver, "cuMemFree_v2", &driver->free) &&
           resolve(driver, "cuMemcpyHtoD_v2", &driver->upload) &&
           resolve(driver, "cuMemcpyDtoH_v2", &driver->download) &&
           resolve(driver, "cuCtxSynchronize", &driver->wait) &&
           resolve(driver, "cuGetErrorString", &driver->error_text) &&
           resolve(driver, "cuEventCreate", &driver->event_create) &&
           resolve(driver, "cuEventDestroy_v2", &driver->event_destroy) &&
           resolve(driver, "cuEventRecord", &driver->event_record) &&
           resolve(driver, "cuEventSynchronize", &driver->event_wait) &&
           resolve(driver, "cuEventElapsedTime", &driver->event_elapsed) &&
           resolve(driver, "cuStreamCreate", &driver->stream_create) &&
           resolve(driver, "cuStreamDestroy_v2", &driver->stream_destroy) &&
           resolve(driver, "cuStreamBeginCapture_v2", &driver->capture_begin) &&
           resolve(driver, "cuStreamEndCapture", &driver->capture_end) &&
           resolve(driver, "cuGraphInstantiateWithFlags", &driver->graph_instantiate) &&
           resolve(driver, "cuGraphDestroy", &driver->graph_destroy) &&
           resolve(driver, "cuGraphLaunch", &driver->graph_launch) &&
           resolve(driver, "cuGraphExecDestroy", &driver->executable_destroy) &&
           resolve(driver, "cuDeviceGetAttribute", &driver->attribute) &&
           resolve(driver, "cuDeviceGetPCIBusId", &driver->bus_id);
}

static bool open_device(cuda_driver *driver, int32_t device)
{
    void *context = NULL;
    driver->device = device;
    return driver_ok(driver, "cuInit", driver->init(0)) &&
           driver_ok(driver, "cuDevicePrimaryCtxRetain", driver->retain(&context, device)) &&
           driver_ok(driver, "cuCtxSetCurrent", driver->set_current(context)) &&
           driver_ok(driver, "cuStreamCreate", driver->stream_create(&driver->stream, 0)) &&
           driver_ok(driver, "cuEventCreate", driver->event_create(&driver->start, 0)) &&
           driver_ok(driver, "cuEventCreate", driver->event_create(&driver->stop, 0));
}

bool memory_space_open(memory_space *space, mla_backend backend, int32_t device)
{
    assert(backend == MLA_BACKEND_CPU || backend == MLA_BACKEND_CUDA);
    *space = (memory_space){.backend = backend};
    if (backend == MLA_BACKEND_CPU) {
        return true;
    }
    cuda_driver *driver = tool_alloc(1, sizeof *driver);
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver->library == NULL) {
        tool_error("cannot load the CUDA driver: %s", dlerror());
        free(driver);
        return false;
    }
    if (!resolve_all(driver) || !open_device(driver, device)) {
        dlclose(driver->library);
        free(driver);
        return false;
    }
    space->driver = driver;
    return true;
}

void memory_space_close(memory_space *space)
{
    if (space->driver != NULL) {
        space->driver->event_destroy(space->driver->start);
        space->driver->event_destroy(space->driver->stop);
        space->driver->stream_destroy(space->driver->stream);
        space->driver->release(space->driver->device);
        dlclose(space->driver->library);
        free(space->driver);
    }
    *space = (memory_space){.backend = MLA_BACKEND_AUTO};
}

void *memory_alloc(const memory_space *space, size_t bytes)
{
    size_t rounded = (bytes + 255) / 256 * 256 + 256;
    if (space->driver == NULL) {
        void *memory = aligned_alloc(256, rounded);
        if (memory == NULL) {
            tool_error("out of memory: %zu bytes", rounded);
        }
        return memory;
    }
    uint64_t address = 0;
    if (!driver_ok(space->driver, "cuMemAlloc", space->driver->alloc(&address, rounded))) {
        return NULL;
    }
    return (void *)(uintptr_t)address;
}

void memory_free(const memory_space *space, void *memory)
{
    if (space->driver == NULL) {
        free(memory);
    } else if (memory != NULL) {
        driver_ok(space->driver, "cuMemFree", space->driver->free((uint64_t)(uintptr_t)memory));
    }
}

bool memory_upload(const memory_space *space, void *to, const void *from, size_t bytes)
{
    if (space->driver == NULL) {
        memcpy(to, from, bytes);
        return true;
    }
    return driver_ok(space->driver, "cuMemcpyHtoD",
                     space->driver->upload((uint64_t)(uintptr_t)to, from, bytes));
}

bool memory_download(const memory_space *space, void *to, const void *from, size_t bytes)
{
    if (space->driver == NULL) {
        memcpy(to, from, bytes);
        return true;
    }
    return driver_ok(space->driver, "cuMemcpyDtoH",
                     space->driver->download(to, (uint64_t)(uintptr_t)from, bytes));
}

bool memory_wait(const memory_space *space)
{
    return space->driver == NULL || driver_ok(space->driver, "kernel", space->driver->wait());
}

bool memory_timer_start(const memory_space *space)
{
    if (space->driver == NULL) {
        host_timer_start = tool_now();
        return true;
    }
    return driver_ok(space->driver, "cuEventRecord",
                     space->driver->event_record(space->driver->start, space->driver->stream));
}

bool memory_timer_stop(const memory_space *space, double *seconds)
{
    if (space->driver == NULL) {
        *seconds = tool_now() - host_timer_start;
        return true;
    }
    cuda_driver *driver = space->driver;
    float milliseconds = 0.0f;
    bool ok = driver_ok(driver, "cuEventRecord",
                        driver->event_record(driver->stop, driver->stream)) &&
              driver_ok(driver, "kernel", driver->event_wait(driver->stop)) &&
              driver_ok(driver, "cuEventElapsedTime",
                        driver->event_elapsed(&milliseconds, driver->start, driver->stop));
    *seconds = 1e-3 * milliseconds;
    return ok;
}

void *memory_stream(const memory_space *space)
{
    return space->driver != NULL ? space->driver->stream : NULL;
}

bool memory_graph_start(const memory_space *space)
{
    assert(space->driver != NULL);
    return driver_ok(space->driver, "cuStreamBeginCapture",
                     space->driver->capture_begin(space->driver->stream, CAPTURE_THREAD_LOCAL));
}

bool memory_graph_stop(const memory_space *space, void **executable)
{
    assert(space->driver != NULL);
    const cuda_driver *driver = space->driver;
    void *graph = NULL;
    *executable = NULL;
    if (!driver_ok(driver, "cuStreamEndCapture", driver->capture_end(driver->stream, &graph))) {
        return false;
    }
    bool ok = driver_ok(driver, "cuGraphInstantiate",
                        driver->graph_instantiate(executable, graph, 0));
    driver->graph_destroy(graph);
    return ok;
}

bool memory_graph_run(const memory_space *space, void *executable)
{
    assert(space->driver != NULL && executable != NULL);
    return driver_ok(space->driver, "cuGraphLaunch",
                     space->driver->graph_launch(executable, space->driver->stream));
}

void memory_graph_free(const memory_space *space, void *executable)
{
    if (executable != NULL) {
        driver_ok(space->driver, "cuGraphExecDestroy",
                  space->driver->executable_destroy(executable));
    }
}

bool memory_device_traits(const memory_space *space, device_traits *traits)
{
    assert(space->driver != NULL);
    const cuda_driver *driver = space->driver;
    int clock_khz = 0, memory_khz = 0, bus_bits = 0, l2_bytes = 0;
    *traits = (device_traits){.clock_ghz = 0.0};
    bool ok = driver_ok(driver, "cuDeviceGetAttribute",
                        driver->attribute(&clock_khz, ATTRIBUTE_CLOCK_KHZ, driver->device)) &&
              driver_ok(driver, "cuDeviceGetAttribute",
                        driver->attribute(&memory_khz, ATTRIBUTE_MEMORY_KHZ, driver->device)) &&
              driver_ok(driver, "cuDeviceGetAttribute",
                        driver->attribute(&bus_bits, ATTRIBUTE_BUS_BITS, driver->device)) &&
              driver_ok(driver, "cuDeviceGetAttribute",
                        driver->attribute(&l2_bytes, ATTRIBUTE_L2_BYTES, driver->device)) &&
              driver_ok(driver, "cuDeviceGetPCIBusId",
                        driver->bus_id(traits->bus_id, (int)sizeof traits->bus_id, driver->device));
    traits->clock_ghz = clock_khz * 1e-6;
    /* Two transfers a clock. */
    traits->bus_gbs = 2.0 * memory_khz * 1e3 * bus_bits / 8.0 * 1e-9;
    traits->l2_bytes = (size_t)l2_bytes;
    return ok;
}

bool guarded_alloc(guarded_memory *memory, size_t bytes, size_t alignment)
{
    assert(alignment > 0 && (alignment & (alignment - 1)) == 0);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inner = (bytes + page - 1) / page * page;
    *memory = (guarded_memory){.bytes = bytes, .map_bytes = inner + 2 * page};
    memory->map = mmap(NULL, memory->map_bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory->map == MAP_FAILED || (inner > 0 && mprotect((uint8_t *)memory->map + page, inner,
                                                            PROT_READ | PROT_WRITE) != 0)) {
        tool_error("cannot map %zu bytes of memory", memory->map_bytes);
        guarded_free(memory);
        return false;
    }
    memory->data = (uint8_t *)memory->map + page + (inner - bytes) / alignment * alignment;
    return true;
}

void guarded_free(guarded_memory *memory)
{
    if (memory->map != NULL && memory->map != MAP_FAILED) {
        munmap(memory->map, memory->map_bytes);
    }
    *memory = (guarded_memory){.data = NULL};
}
