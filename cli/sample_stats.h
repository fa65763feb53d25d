/* What a handful of measurements says. */
#ifndef MLA_CLI_SAMPLE_STATS_H
#define MLA_CLI_SAMPLE_STATS_H

#include <stdint.h>

/* Median, and half the distance of the quartiles as a share of it. */
typedef struct sample_stat {
    double median, spread;
} sample_stat;

/* Sorts `values`; zero for none. */
sample_stat sample_stat_of(double *values, int32_t count);

#endif
