/* The product of int8.c for processors that multiply four pairs of bytes and add them to a sum at once: the same bits.
 *
 * They take one side without a sign. So a weight is stored with 128 added, and 128 times the sum of a token's numbers
 * is taken away again. */

#ifdef __AVX512VNNI__

#include "rounding.h"
#include "wide.h"
#include "workers.h"

#define PANEL 16
#define TOGETHER 4
#define FOUR 4
/* Bytes that four panels have of four inputs. */
#define ROW (TOGETHER * FOUR * PANEL)
#define TILE 8
#define BLOCK 512
#define CHUNK 256
/* Rows that one token asks for in advance. */
#define AHEAD 8

/* Panels lie in fours, which one token reads as one stream. Panel p, inputs 4i to 4i + 3, output o of the panel: number
 * (((p / 4 * E / 4 + i) * 4 + p % 4) * 16 + o) * 4 and the next three. Scales: ((p / 4 * G + g) * 4 + p % 4) * 16 + o. */
struct weight {
    const uint8_t *numbers;
    const float *scales;
    size_t inputs, outputs, group, groups;
};

/* Rounded activations [T, E], their scales [T, G], and what the sums of each group start at [T, G]. */
struct rounded {
    int8_t *values;
    float *scales;
    int32_t *starts;
};

INLINE int32_t round_group(const float *x, size_t width, float divisor, int8_t *values) {
    int32_t sum = 0;
    for (size_t i = 0; i < width; i++) {
        const int8_t value = to_int8(x[i], divisor);
        values[i] = value;
        sum += value;
    }
    return sum;
}

/* Round group `group` of token t. */
static void round_part(const struct weight *w, const float *x, size_t t, size_t group, const struct rounded *to) {
    const size_t start = group * w->group, left = w->inputs - start, width = left < w->group ? left : w->group;
    const float *from = x + t * w->inputs + start;
    const float scale = scale_of(from, width), divisor = scale == 0 ? 1.0f : scale;
    to->scales[t * w->groups + group] = scale;
    to->starts[t * w->groups + group] = -128 * round_group(from, width, divisor, to->values + t * w->inputs + start);
}

/* Tokens of a tile. */
struct tokens {
    const int8_t *values;
    const float *scales;
    const int32_t *starts;
    float *y;
};

/* Groups [from, to) of `np` panels for `mr` tokens, added to y, or written there where they are the first. */
INLINE void tile(int mr, int np, const struct weight *w, size_t panel, size_t from, size_t to,
                 const struct tokens *tokens, const float *bias) {
    __m512 sums[TILE][4];
    for (int t = 0; t < mr; t++)
        for (int p = 0; p < np; p++) {
            const size_t o = (panel + p) * PANEL, width = w->outputs > o ? w->outputs - o : 0;
            const __mmask16 mask = width >= PANEL ? 0xffff : (1u << width) - 1;
            sums[t][p] = _mm512_maskz_loadu_ps(from ? mask : 0, tokens->y + t * w->outputs + o);
        }
    const size_t four = panel / FOUR * FOUR, place = panel % FOUR * PANEL;
    const uint8_t *numbers = w->numbers + four * w->inputs * PANEL + place * TOGETHER;
    const float *figures = w->scales + four * w->groups * PANEL + place;
    for (size_t group = from; group < to; group++) {
        const size_t start = group * w->group, left = w->inputs - start;
        const size_t end = start + (left < w->group ? left : w->group);
        __m512i dots[TILE][4];
#pragma GCC unroll 8
        for (int t = 0; t < mr; t++)
#pragma GCC unroll 4
            for (int p = 0; p < np; p++) dots[t][p] = _mm512_set1_epi32(tokens->starts[t * w->groups + group]);
        for (size_t e = start; e < end; e += TOGETHER) {
            __m512i weights[4];
#pragma GCC unroll 4
            for (int p = 0; p < np; p++) {
                const uint8_t *at = numbers + e / TOGETHER * ROW + p * PANEL * TOGETHER;
                weights[p] = _mm512_loadu_si512(at);
                if (mr == 1) __builtin_prefetch(at + AHEAD * ROW, 0, 2);
            }
#pragma GCC unroll 8
            for (int t = 0; t < mr; t++) {
                int32_t four;
                memcpy(&four, tokens->values + t * w->inputs + e, sizeof four);
                const __m512i values = _mm512_set1_epi32(four);
#pragma GCC unroll 4
                for (int p = 0; p < np; p++) add_dots(&dots[t][p], weights[p], values);
            }
        }
#pragma GCC unroll 4
        for (int p = 0; p < np; p++) {
            const __m512 own = _mm512_loadu_ps(figures + (group * FOUR + p) * PANEL);
#pragma GCC unroll 8
            for (int t = 0; t < mr; t++) {
                const __m512 scale = _mm512_mul_ps(own, _mm512_set1_ps(tokens->scales[t * w->groups + group]));
                sums[t][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t][p]), scale, sums[t][p]);
            }
        }
    }
    for (int t = 0; t < mr; t++)
        for (int p = 0; p < np; p++) {
            const size_t o = (panel + p) * PANEL, width = w->outputs > o ? w->outputs - o : 0;
            const __mmask16 mask = width >= PANEL ? 0xffff : (1u << width) - 1;
            __m512 total = sums[t][p];
            if (bias && to == w->groups) total = _mm512_add_ps(total, _mm512_maskz_loadu_ps(mask, bias + o));
            _mm512_mask_storeu_ps(tokens->y + t * w->outputs + o, mask, total);
        }
}

/* Panels come in fours, filled up with zeros. */
static void in_tiles(const struct weight *w, size_t panel, size_t from, size_t to, const struct rounded *x,
                     size_t first, size_t count, float *y, const float *bias) {
    const size_t tiles = (count + TILE - 1) / TILE;
    for (size_t i = 0; i < tiles; i++) {
        const size_t begin = count * i / tiles, mr = count * (i + 1) / tiles - begin, t = first + begin;
        const struct tokens tokens = {x->values + t * w->inputs, x->scales + t * w->groups, x->starts + t * w->groups,
                                      y + t * w->outputs};
        switch (mr) {
        case 1: tile(1, 4, w, panel, from, to, &tokens, bias); break;
        case 2: tile(2, 4, w, panel, from, to, &tokens, bias); break;
        case 3: tile(3, 4, w, panel, from, to, &tokens, bias); break;
        case 4: tile(4, 4, w, panel, from, to, &tokens, bias); break;
#define HALVES(rows) \
    case rows: \
        tile(rows, 2, w, panel, from, to, &tokens, bias); \
        tile(rows, 2, w, panel + 2, from, to, &tokens, bias); \
        break
        HALVES(5);
        HALVES(6);
        HALVES(7);
        HALVES(8);
        default: break;
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

static void round_share(const void *of, size_t i, size_t worker) {
    (void)worker;
    const struct product *job = of;
    round_part(&job->all, job->x, i / job->all.groups, i % job->all.groups, &job->rounded);
}

static void multiply_share(const void *of, size_t i, size_t worker) {
    (void)worker;
    const struct product *job = of;
    const struct weight *w = &job->all;
    const size_t first = i * job->share, past = first + job->share;
    const size_t last = past < job->panels ? past : job->panels, chunks = (job->count + CHUNK - 1) / CHUNK;
    /* Panels are read from end to end where few tokens meet them. */
    const size_t together = job->count <= TILE ? w->groups : w->group < BLOCK ? BLOCK / w->group : 1;
    for (size_t chunk = 0; chunk < chunks; chunk++) {
        const size_t t = job->count * chunk / chunks, here = job->count * (chunk + 1) / chunks - t;
        for (size_t from = 0; from < w->groups; from += together) {
            const size_t to = from + together < w->groups ? from + together : w->groups;
            for (size_t panel = first; panel < last; panel += 4)
                in_tiles(w, panel, from, to, &job->rounded, t, here, job->y, job->bias);
        }
    }
}

/* As `sglk_int8_product`, with E and the group size multiples of 4. `values` [T, E], `scratch` and `starts` [T, G] are
 * room to work in. */
void sglk_int8_dots(const uint8_t *numbers, const float *scales, size_t inputs, size_t outputs, size_t group,
                    const float *x, size_t count, const float *bias, float *y, int8_t *values, float *scratch,
                    int32_t *starts, int threads) {
    if (count == 0) return;
    const struct weight w = {numbers, scales, inputs, outputs, group, (inputs + group - 1) / group};
    const size_t panels = (outputs + 4 * PANEL - 1) / (4 * PANEL) * 4;
    /* Workers take pieces of a stream; those of many tokens are better long, for all of these are read for each. */
    const size_t parts = (size_t)threads * 8 * FOUR, share = count <= 4 ? FOUR : (panels + parts - 1) / parts * FOUR;
    const struct product job = {w, {values, scratch, starts}, panels, share, count, x, bias, y};
    /* A token alone is rounded sooner than anybody comes. */
    run_shares(count > 1 ? threads : 1, count * w.groups, round_share, &job);
    run_shares(threads, (panels + share - 1) / share, multiply_share, &job);
}

#endif
