#include "sample_stats.h"

#include <stdlib.h>

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

sample_stat sample_stat_of(double *values, int32_t count)
{
    if (count == 0) {
        return (sample_stat){0.0, 0.0};
    }
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    double median = values[count / 2];
    double quartiles = values[count * 3 / 4] - values[count / 4];
    return (sample_stat){median, 0.5 * quartiles / median};
}
