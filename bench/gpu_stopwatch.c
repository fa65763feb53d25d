#include "gpu_stopwatch.h"

#include "gpu_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { GEMM_SIZE = 8192 };
static const double gemm_flops = 2.0 * GEMM_SIZE * GEMM_SIZE * GEMM_SIZE;

yardstick open_yardstick(void)
{
    yardstick beside = {.a = NULL};
    char bus_id[32];
    check_cuda(cudaDeviceGetPCIBusId(bus_id, (int)sizeof bus_id, 0), "cudaDeviceGetPCIBusId");
    gpu_sensors_open(&beside.sensors, bus_id);
    if (!cublas_open(&beside.blas, NULL)) {
        printf("no cuBLAS\n");
        return beside;
    }
    beside.a = device_normals((size_t)GEMM_SIZE * GEMM_SIZE, 1);
    beside.b = device_normals((size_t)GEMM_SIZE * GEMM_SIZE, 1);
    beside.c = device_alloc((size_t)GEMM_SIZE * GEMM_SIZE * 2);
    return beside;
}

/* A workload: one multiplication; the state is a yardstick. */
static void run_gemm(void *state, int idx)
{
    const yardstick *beside = state;
    (void)idx;
    if (!cublas_multiply(&beside->blas, GEMM_SIZE, beside->a, beside->b, beside->c)) {
        printf("cublasGemmEx failed\n");
        exit(2);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct timing {
    double seconds;          /* a run, mean over the measured runs */
    double megahertz, watts; /* while they ran; 0: unknown */
} timing;

/* Back to back for about `warm` seconds, then `measure` seconds timed by events. */
static timing time_back_to_back(const workload *w, double warm, double measure,
                                const gpu_sensors *sensors)
{
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    timing result = {0};
    double t0 = now();
    int runs = 0;
    do {
        w->run(w->state, runs++);
        if (runs % 4 == 0) {
            check_cuda(cudaDeviceSynchronize(), "warm-up");
        }
    } while (now() - t0 < warm);
    check_cuda(cudaDeviceSynchronize(), "warm-up");
    t0 = now();
    w->run(w->state, 0);
    check_cuda(cudaDeviceSynchronize(), "one run");
    int count = (int)(measure / (now() - t0)) + 1;
    cudaEventRecord(begin, NULL);
    for (int i = 0; i < count; i++) {
        w->run(w->state, i);
        if (i == count * 3 / 4) {
            gpu_sensors_read(sensors, &result.megahertz, &result.watts);
        }
    }
    cudaEventRecord(end, NULL);
    check_cuda(cudaEventSynchronize(end), "timed runs");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    result.seconds = ms * 1e-3 / count;
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return result;
}

/* Sorts the values. */
static float median(float *values, int count)
{
    for (int i = 1; i < count; i++) {
        for (int j = i; j > 0 && values[j] < values[j - 1]; j--) {
            const float swap = values[j];
            values[j] = values[j - 1];
            values[j - 1] = swap;
        }
    }
    return values[count / 2];
}

/* On a chip that idled: the median of single runs, in seconds. */
static double time_burst(const workload *w)
{
    enum { RUNS = 7 };
    float ms[RUNS];
    struct timespec idle = {0, 400000000};
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    w->run(w->state, 0);
    check_cuda(cudaDeviceSynchronize(), "burst");
    nanosleep(&idle, NULL);
    w->run(w->state, 0);
    for (int i = 0; i < RUNS; i++) {
        cudaEventRecord(begin, NULL);
        w->run(w->state, i + 1);
        cudaEventRecord(end, NULL);
        check_cuda(cudaEventSynchronize(end), "burst");
        cudaEventElapsedTime(&ms[i], begin, end);
    }
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return median(ms, RUNS) * 1e-3;
}

void print_beside_head(void)
{
    printf("burst: median of 7 runs after 0.4 s idle; sustained: after 0.5 s back to back; ratios "
           "to cuBLAS bf16 8192^3 before and after\n");
    printf("%-34s %9s %7s %6s | %9s %7s %6s %6s %5s %6s\n", "shape", "burst us", "TFLOP/s", "ratio",
           "sust. us", "TFLOP/s", "GB/s", "ratio", "MHz", "W");
}

void time_beside_gemm(const char *name, const workload *w, double flops, double bytes,
                      const yardstick *beside)
{
    const workload gemm = {run_gemm, (void *)(uintptr_t)beside};
    const bool has_blas = beside->blas.library != NULL;
    double gemm_mean = 0;
    const double burst_gemm = has_blas ? gemm_flops / time_burst(&gemm) : 0;
    const double burst = time_burst(w);
    if (has_blas) {
        gemm_mean = gemm_flops / time_back_to_back(&gemm, 0.4, 0.2, &beside->sensors).seconds / 2;
    }
    const timing t = time_back_to_back(w, 0.5, 0.3, &beside->sensors);
    if (has_blas) {
        gemm_mean += gemm_flops / time_back_to_back(&gemm, 0.4, 0.2, &beside->sensors).seconds / 2;
    }
    printf("%-34s %9.1f %7.1f %6.3f | %9.1f %7.1f %6.0f %6.3f %5.0f %6.0f  cuBLAS %.0f %.0f\n",
           name, burst * 1e6, flops / burst * 1e-12, has_blas ? flops / burst / burst_gemm : 0,
           t.seconds * 1e6, flops / t.seconds * 1e-12, bytes / t.seconds * 1e-9,
           has_blas ? flops / t.seconds / gemm_mean : 0, t.megahertz, t.watts, burst_gemm * 1e-12,
           gemm_mean * 1e-12);
    fflush(stdout);
}

enum { GRAPH_CALLS = 20, GRAPH_REPLAYS = 15 };

void print_graph_head(void)
{
    printf("small batches: us a call, median of %d replays of a CUDA graph of %d calls\n",
           GRAPH_REPLAYS, GRAPH_CALLS);
}

double time_graph(const workload *w, cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float ms[GRAPH_REPLAYS];
    cudaEventCreate(&begin), cudaEventCreate(&end);
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    for (int call = 0; call < GRAPH_CALLS; call++) {
        w->run(w->state, call);
    }
    check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
    check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    for (int replay = 0; replay < GRAPH_REPLAYS; replay++) {
        cudaEventRecord(begin, stream);
        check_cuda(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
        cudaEventRecord(end, stream);
        check_cuda(cudaEventSynchronize(end), "graph");
        cudaEventElapsedTime(&ms[replay], begin, end);
    }
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return median(ms, GRAPH_REPLAYS) * 1e-3 / GRAPH_CALLS;
}
