/*
 * Scores in double precision, where those of float32 are too coarse.
 *
 * float32 holds a score of 128 to 2^-17 and one of 40,000 to 2^-8, and summing it costs two bits
 * more: too few for the weights of keys that compete with the largest. Where scores are that large
 * few keys do, and the kernels compute those keys' scores again.
 */
#ifndef MLA_CPU_EXACT_SCORES_H
#define MLA_CPU_EXACT_SCORES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Scores of at least the first, in base 2, are large. From the second on float32 may not even tell
 * which keys compete: its error, about 2^-24 |q| |k| scale, nears the distance over which weights
 * count. Such rows are left to the reference.
 */
#define MLA_LARGE_SCORE 128.0f
#define MLA_HUGE_SCORE  0x1p20f

/* Relative to the largest, weights up to this, in base 2, are of no account. */
#define MLA_EXACT_WEIGHT   0x1p-24f
#define MLA_EXACT_DISTANCE -24.0f

/* Whether the largest score of a row, in base 2, is large. */
static inline bool mla_scores_are_large(double max)
{
    return fabs(max) >= MLA_LARGE_SCORE && fabs(max) < MLA_HUGE_SCORE;
}

/* q . k in double precision; d_qk is a multiple of 8. */
static inline double mla_exact_dot(const float *q, const float *k, int64_t d_qk)
{
    double sums[8] = {0};
    for (int64_t d = 0; d < d_qk; d += 8) {
        for (int i = 0; i < 8; i++) {
            sums[i] += (double)q[d + i] * k[d + i];
        }
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

#endif
