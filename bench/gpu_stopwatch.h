/*
 * Times work on the GPU, with its clock and power, and cuBLAS beside it as the yardstick. Both
 * libraries are opened when the program runs and may be absent.
 */
#ifndef MLA_BENCH_GPU_STOPWATCH_H
#define MLA_BENCH_GPU_STOPWATCH_H

/* cuBLAS, bf16 8192^3, by its C interface; absent when the library is. */
typedef struct cublas {
    void *handle;
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                int, int, const void *, void *, int, int, int, int);
    void *a, *b, *c;
} cublas;

extern const double gemm_flops;

/* The handle is NULL when the library is absent. */
cublas open_cublas(void);

/* A workload: one multiplication; the state is a cublas. */
void run_gemm(void *state, int idx);

/* Clock and power; the device is NULL when the library is absent. */
typedef struct nvml {
    void *device;
    int (*clock)(void *, int, unsigned *);
    int (*power)(void *, unsigned *);
} nvml;

nvml open_nvml(void);

/* What is timed: one launch sequence, and how many of them a measurement repeats. */
typedef struct workload {
    void (*run)(void *state, int idx);
    void *state;
} workload;

typedef struct timing {
    double seconds;   /* a run, mean over the measured runs */
    unsigned mhz, mw; /* while they ran */
} timing;

/* Back to back for about `warm` seconds, then `measure` seconds timed by events. */
timing time_back_to_back(const workload *w, double warm, double measure, const nvml *ml);

/* On a chip that idled: the median of single runs, in seconds. */
double time_burst(const workload *w);

/* Sorts the values. */
float median(float *values, int count);

#endif
