/* Random numbers from a seed, the same on every machine. */
#ifndef MLA_TESTS_RANDOM_SOURCE_H
#define MLA_TESTS_RANDOM_SOURCE_H

#include <math.h>
#include <stdint.h>

typedef struct random_source {
    uint64_t state;
} random_source;

/* One step of splitmix64. */
static inline uint64_t random_bits(random_source *source)
{
    uint64_t z = source->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* 0 ... limit - 1 */
static inline int64_t random_below(random_source *source, int64_t limit)
{
    return (int64_t)(random_bits(source) % (uint64_t)limit);
}

/* Nearly normal, standard deviation 1: four 16-bit uniform numbers summed. */
static inline float random_normal(random_source *source)
{
    uint64_t bits = random_bits(source);
    uint32_t sum = (uint32_t)(bits & 0xffff) + (uint32_t)(bits >> 16 & 0xffff) +
                   (uint32_t)(bits >> 32 & 0xffff) + (uint32_t)(bits >> 48);
    return ((float)sum - 2.0f * 65535.0f) * (1.7320508f / 65536.0f);
}

#endif
