/* y = x W^T + b in int8: each token is rounded here, with a scale of its own for each group of inputs.
 *
 * Products are summed exactly in int32 within a group, groups in fp32 from the first to the last, then the bias, so a
 * token's result does not depend on its neighbours. */

#include "rounding.h"
#include "workers.h"

#define PANEL 16
#define TILE 6
#define BLOCK 512
#define CHUNK 252

typedef int16_t shorts __attribute__((vector_size(32)));
typedef int16_t shorts_anywhere_16 __attribute__((vector_size(32), aligned(2), may_alias));

/* Panel p, inputs 2i and 2i + 1, output o of the panel: numbers ((p * E / 2 + i) * 16 + o) * 2 and the next one.
 * Scales: (p * G + g) * 16 + o. */
struct weight {
    const int8_t *numbers;
    const float *scales;
    size_t inputs, outputs, group, groups;
};

/* Rounded activations [T, E], which fit 8 bits, and their scales [T, G]. */
struct rounded {
    int16_t *values;
    float *scales;
};

INLINE shorts widen(const int8_t *from) {
#ifdef __AVX2__
    return (shorts)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
#else
    shorts wide;
    for (int i = 0; i < 16; i++) wide[i] = from[i];
    return wide;
#endif
}

/* Lane l: w[2l] * x[0] + w[2l + 1] * x[1]. */
INLINE ints multiply_pairs(shorts w, const int16_t *x) {
#ifdef __AVX2__
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (ints)_mm256_madd_epi16((__m256i)w, _mm256_set1_epi32(pair));
#else
    ints sums;
    for (int l = 0; l < 8; l++) sums[l] = (int32_t)w[2 * l] * x[0] + (int32_t)w[2 * l + 1] * x[1];
    return sums;
#endif
}

static float round_group(const float *x, size_t width, int16_t *values) {
    const float scale = scale_of(x, width), divisor = scale == 0 ? 1.0f : scale;
    for (size_t i = 0; i < width; i++) values[i] = to_int8(x[i], divisor);
    return scale;
}

static void round_token(const struct weight *w, const float *x, int16_t *values, float *scales) {
    for (size_t group = 0; group < w->groups; group++) {
        const size_t start = group * w->group, left = w->inputs - start;
        scales[group] = round_group(x + start, left < w->group ? left : w->group, values + start);
    }
}

/* Groups [from, to) of one panel for `mr` tokens, added to y, or written there where they are the first. */
INLINE void tile(int mr, const struct weight *w, size_t panel, size_t from, size_t to, const int16_t *values,
                 const float *scales, float *y, const float *bias) {
    const size_t width = w->outputs - panel * PANEL < PANEL ? w->outputs - panel * PANEL : PANEL;
    float sums[TILE][PANEL];
    for (int t = 0; t < mr; t++)
        for (size_t o = 0; o < PANEL; o++) sums[t][o] = from && o < width ? y[t * w->outputs + o] : 0;
    for (size_t group = from; group < to; group++) {
        const size_t start = group * w->group, left = w->inputs - start;
        const size_t end = start + (left < w->group ? left : w->group);
        const int8_t *numbers = w->numbers + panel * w->inputs * PANEL;
        ints dots[TILE][2];
#pragma GCC unroll 8
        for (int t = 0; t < mr; t++) dots[t][0] = dots[t][1] = (ints){0};
        for (size_t e = start; e < end; e += 2) {
            const shorts left_half = widen(numbers + e * PANEL), right_half = widen(numbers + e * PANEL + 16);
#pragma GCC unroll 8
            for (int t = 0; t < mr; t++) {
                dots[t][0] += multiply_pairs(left_half, values + t * w->inputs + e);
                dots[t][1] += multiply_pairs(right_half, values + t * w->inputs + e);
            }
        }
        const float *own = w->scales + (panel * w->groups + group) * PANEL;
        const floats left_scale = load(own), right_scale = load(own + 8);
#pragma GCC unroll 8
        for (int t = 0; t < mr; t++) {
            const floats scale = splat(scales[t * w->groups + group]);
            const floats l = to_floats(dots[t][0]), r = to_floats(dots[t][1]);
            store(sums[t], multiply_add(l, left_scale * scale, load(sums[t])));
            store(sums[t] + 8, multiply_add(r, right_scale * scale, load(sums[t] + 8)));
        }
    }
    for (int t = 0; t < mr; t++)
        for (size_t o = 0; o < width; o++)
            y[t * w->outputs + o] = sums[t][o] + (bias && to == w->groups ? bias[o] : 0);
}

static void in_tiles(const struct weight *w, size_t panel, size_t from, size_t to, const struct rounded *x,
                     size_t first, size_t count, float *y, const float *bias) {
    const size_t tiles = (count + TILE - 1) / TILE;
    const float *own = bias ? bias + panel * PANEL : NULL;
    for (size_t i = 0; i < tiles; i++) {
        const size_t begin = count * i / tiles, mr = count * (i + 1) / tiles - begin, t = first + begin;
        const int16_t *values = x->values + t * w->inputs;
        const float *scales = x->scales + t * w->groups;
        float *place = y + t * w->outputs + panel * PANEL;
        switch (mr) {
        case 1: tile(1, w, panel, from, to, values, scales, place, own); break;
        case 2: tile(2, w, panel, from, to, values, scales, place, own); break;
        case 3: tile(3, w, panel, from, to, values, scales, place, own); break;
        case 4: tile(4, w, panel, from, to, values, scales, place, own); break;
        case 5: tile(5, w, panel, from, to, values, scales, place, own); break;
        default: tile(6, w, panel, from, to, values, scales, place, own);
        }
    }
}

/* A product as its workers see it. */
struct product {
    struct weight all;
    struct rounded rounded;
    size_t panels, share, count;
    const float *x, *bias;
    float *y;
};

static void round_share(const void *of, size_t t, size_t worker) {
    (void)worker;
    const struct product *job = of;
    const struct weight *w = &job->all;
    round_token(w, job->x + t * w->inputs, job->rounded.values + t * w->inputs, job->rounded.scales + t * w->groups);
}

static void multiply_share(const void *of, size_t i, size_t worker) {
    (void)worker;
    const struct product *job = of;
    const struct weight *w = &job->all;
    const size_t first = i * job->share, past = first + job->share;
    const size_t last = past < job->panels ? past : job->panels;
    const size_t chunks = (job->count + CHUNK - 1) / CHUNK, together = w->group < BLOCK ? BLOCK / w->group : 1;
    for (size_t chunk = 0; chunk < chunks; chunk++) {
        const size_t t = job->count * chunk / chunks, here = job->count * (chunk + 1) / chunks - t;
        for (size_t from = 0; from < w->groups; from += together) {
            const size_t to = from + together < w->groups ? from + together : w->groups;
            for (size_t panel = first; panel < last; panel++)
                in_tiles(w, panel, from, to, &job->rounded, t, here, job->y, job->bias);
        }
    }
}

/* x is [T, E] and y is [T, O], both without gaps; `values` [T, E] and `scratch` [T, G] are room to work in. E and the
 * group size are even. */
void sglk_int8_product(const int8_t *numbers, const float *scales, size_t inputs, size_t outputs, size_t group,
                       const float *x, size_t count, const float *bias, float *y, int16_t *values, float *scratch,
                       int threads) {
    if (count == 0) return;
    const struct weight w = {numbers, scales, inputs, outputs, group, (inputs + group - 1) / group};
    const size_t panels = (outputs + PANEL - 1) / PANEL;
    size_t share = panels / (8 * (size_t)threads);
    if (share < 4) share = 4;
    const struct product job = {w, {values, scratch}, panels, share, count, x, bias, y};
    run_shares(threads, count, round_share, &job);
    run_shares(threads, (panels + share - 1) / share, multiply_share, &job);
}

/* Inputs that lie together in a panel where the group size and E are multiples of it: 4 where `sglk_int8_dots` runs. */
int sglk_int8_together(void) {
#ifdef __AVX512VNNI__
    return 4;
#else
    return 2;
#endif
}
