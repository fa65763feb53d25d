/* Clock and power of a GPU, by NVIDIA's management library where it is installed. */
#ifndef MLA_CLI_GPU_SENSORS_H
#define MLA_CLI_GPU_SENSORS_H

#include <stdbool.h>

typedef struct gpu_sensors {
    void *library; /* NULL: no readings */
    void *device;
    int (*clock)(void *device, int domain, unsigned *megahertz);
    int (*power)(void *device, unsigned *milliwatts);
    int (*shutdown)(void);
} gpu_sensors;

/* `bus_id` is the PCI bus identity that the CUDA driver gives, since the library counts devices
 * that CUDA_VISIBLE_DEVICES hides. Returns false when there is no library or no such device. */
bool gpu_sensors_open(gpu_sensors *sensors, const char *bus_id);
void gpu_sensors_close(gpu_sensors *sensors);

/* The SM clock now, and the power as the driver averages it; false when either is not told. */
bool gpu_sensors_read(const gpu_sensors *sensors, double *megahertz, double *watts);

#endif
