#include "gpu_sensors.h"
#include "shared_library.h"

enum { CLOCK_SM = 1 };

bool gpu_sensors_open(gpu_sensors *sensors, const char *bus_id)
{
    int (*init)(void);
    int (*by_bus_id)(const char *text, void **device);
    *sensors = (gpu_sensors){.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (sensors->library == NULL) {
        return false;
    }
    bool found = find_function(sensors->library, "nvmlInit_v2", &init) &&
                 find_function(sensors->library, "nvmlShutdown", &sensors->shutdown) &&
                 find_function(sensors->library, "nvmlDeviceGetHandleByPciBusId_v2", &by_bus_id) &&
                 find_function(sensors->library, "nvmlDeviceGetClockInfo", &sensors->clock) &&
                 find_function(sensors->library, "nvmlDeviceGetPowerUsage", &sensors->power);
    if (found && init() == 0) {
        if (by_bus_id(bus_id, &sensors->device) == 0) {
            return true;
        }
        sensors->shutdown();
    }
    dlclose(sensors->library);
    *sensors = (gpu_sensors){.library = NULL};
    return false;
}

void gpu_sensors_close(gpu_sensors *sensors)
{
    if (sensors->library != NULL) {
        sensors->shutdown();
        dlclose(sensors->library);
    }
    *sensors = (gpu_sensors){.library = NULL};
}

bool gpu_sensors_read(const gpu_sensors *sensors, double *megahertz, double *watts)
{
    unsigned clock = 0, power = 0;
    bool ok = sensors->library != NULL && sensors->clock(sensors->device, CLOCK_SM, &clock) == 0 &&
              sensors->power(sensors->device, &power) == 0;
    *megahertz = (double)clock;
    *watts = 1e-3 * (double)power;
    return ok;
}
