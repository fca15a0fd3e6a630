/* Rounding to int8, for keys, values and both products. */

#ifndef SGLK_ROUNDING_H
#define SGLK_ROUNDING_H

#include "vectors.h"

/* The scale of a group is NaN where a number of it is not finite, so that nothing hides it. */
INLINE float scale_of(const float *x, size_t width) {
    floats largest = splat(0), spoilt = splat(0);
    size_t e = 0;
    for (; e + LANES <= width; e += LANES) {
        largest = larger(absolute(load(x + e)), largest);
        spoilt += load(x + e) * 0.0f;
    }
    float most = 0, bad = sum_lanes(spoilt);
    for (int lane = 0; lane < LANES; lane++)
        if (largest[lane] > most) most = largest[lane];
    for (size_t rest = e; rest < width; rest++) {
        if (fabsf(x[rest]) > most) most = fabsf(x[rest]);
        bad += x[rest] * 0.0f;
    }
    return most / 127.0f + bad;
}

/* A NaN gives 0. The divisor of tiny numbers is itself rounded, by up to half, and would let them wrap. */
INLINE int8_t to_int8(float x, float divisor) {
    const float whole = rintf(x / divisor), below = 127.0f < whole ? 127.0f : whole;
    return (int8_t)(int32_t)(-127.0f > below ? -127.0f : below);
}

#endif
