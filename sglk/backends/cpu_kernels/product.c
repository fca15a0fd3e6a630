/* y = x W^T + b, with weights in panels of 16 outputs.
 *
 * Every number of y is summed in one order, whatever stands beside it: blocks of 256 inputs, each from its first input
 * to its last, added block after block, then the bias. So a token's result does not depend on its neighbours. */

#include "vectors.h"

#define PANEL 16
#define BLOCK 256
#define STEP 32
#define TILE 6
#define CHUNK 252
#define SECOND_CACHE (512 * 1024)

/* Panel p, input e, output o of the panel: number (p * E + e) * 16 + o; of 4-bit numbers two inputs share a byte. Scale
 * and zero of quantised ones: (p * G + g) * 16 + o, and weight = (number - zero) * scale; where there are offsets,
 * number * scale + offset. */
struct weight {
    const void *numbers;
    const void *scales, *zeros, *offsets;
    int scale_kind;
    float zero;
    size_t inputs, outputs, group, groups;
};

INLINE size_t panel_bytes(const struct weight *w, int kind) {
    size_t numbers = w->inputs * PANEL;
    if (kind == INT8 || kind == E4M3) return numbers;
    return kind == FP32 ? numbers * 4 : kind == INT4 ? numbers / 2 : numbers * 2;
}

/* Scales or zeros of eight outputs; no zeros = the same for all. */
INLINE floats figures(const struct weight *w, const void *from, size_t at) {
    if (!from) return splat(w->zero);
    return w->scale_kind == FP16 ? load_kind(from, at, FP16) : load_kind(from, at, FP32);
}

INLINE floats offset_at(const struct weight *w, size_t at, floats scale) {
    return w->offsets ? figures(w, w->offsets, at) : -figures(w, w->zeros, at) * scale;
}

INLINE void widen_bytes(const int8_t *from, int kind, floats scale, floats offset, float *to) {
    store(to, multiply_add(load_kind(from, 0, kind), scale, offset));
}

/* A byte holds two inputs, the first in its low half. */
INLINE void widen_int4(const uint8_t *from, floats scale, floats offset, float *to) {
    const ints pair = load_bytes(from);
    store(to, multiply_add(to_floats(pair & 15), scale, offset));
    store(to + PANEL, multiply_add(to_floats(pair >> 4), scale, offset));
}

INLINE void expand_kind(const struct weight *w, size_t panel, size_t start, size_t end, int kind, float *to) {
    const char *numbers = (const char *)w->numbers + panel * panel_bytes(w, kind);
    /* In steps of one or two inputs; a group of an odd number of 4-bit inputs is not taken. */
    for (size_t e = start; e < end;) {
        const size_t group = e / w->group, past = (group + 1) * w->group, stop = past < end ? past : end;
        const size_t at = (panel * w->groups + group) * PANEL;
        const floats scale_l = figures(w, w->scales, at), scale_r = figures(w, w->scales, at + 8);
        const floats offset_l = offset_at(w, at, scale_l), offset_r = offset_at(w, at + 8, scale_r);
        if (kind == INT4) {
            const uint8_t *from = (const uint8_t *)numbers + e / 2 * PANEL;
            for (; e < stop; e += 2, from += PANEL, to += 2 * PANEL) {
                widen_int4(from, scale_l, offset_l, to);
                widen_int4(from + 8, scale_r, offset_r, to + 8);
            }
        } else {
            const int8_t *from = (const int8_t *)numbers + e * PANEL;
            for (; e < stop; e++, from += PANEL, to += PANEL) {
                widen_bytes(from, kind, scale_l, offset_l, to);
                widen_bytes(from + 8, kind, scale_r, offset_r, to + 8);
            }
        }
    }
}

/* Write inputs [start, end) of a quantised panel to `to` in fp32; `start` is even. */
INLINE void expand(const struct weight *w, size_t panel, size_t start, size_t end, int kind, float *to) {
    if (kind == INT4) expand_kind(w, panel, start, end, INT4, to);
    else if (kind == E4M3) expand_kind(w, panel, start, end, E4M3, to);
    else expand_kind(w, panel, start, end, INT8, to);
}

INLINE void finish(float *y, size_t width, floats left, floats right, int first, const float *bias) {
    if (width >= PANEL) {
        if (!first) left = load(y) + left, right = load(y + 8) + right;
        if (bias) left += load(bias), right += load(bias + 8);
        store(y, left);
        store(y + 8, right);
        return;
    }
    float sums[PANEL];
    store(sums, left);
    store(sums + 8, right);
    for (size_t o = 0; o < width; o++) {
        float total = first ? sums[o] : y[o] + sums[o];
        y[o] = bias ? total + bias[o] : total;
    }
}

/* Where a tile finds its weights: in the panels, there with one scale for all inputs of a step (and, of 4-bit numbers,
 * one offset), or expanded to fp32 before it starts or step by step. */
enum { SCALED = 16, READY, STEPWISE };

/* What a tile reads: `numbers` of its first panel, those of the next `bytes` further. */
struct reading {
    const char *numbers;
    size_t bytes;
    const float *expanded;
    floats scales[8], offsets[8];
};

/* Eight weights of input e of panel p; 4-bit numbers of an odd input are in the high half of a byte. */
INLINE floats weight_at(const struct reading *from, int source, int kind, size_t e, int odd, int p, int half) {
    if (source == READY || source == STEPWISE) return load(from->expanded + (p * STEP + e) * PANEL + 8 * half);
    const char *numbers = from->numbers + p * from->bytes;
    if (source != SCALED) return load_kind(numbers, e * PANEL + 8 * half, source);
    const floats scale = from->scales[2 * p + half];
    if (kind == INT8) return load_signed((const int8_t *)numbers + e * PANEL + 8 * half) * scale;
    const ints pair = load_bytes((const uint8_t *)numbers + e / 2 * PANEL + 8 * half);
    return multiply_add(to_floats(odd ? pair >> 4 : pair & 15), scale, from->offsets[2 * p + half]);
}

/* Input e, number `at` of what is expanded, of `mr` tokens. */
INLINE void step(int mr, int np, int source, int kind, const struct reading *from, size_t e, size_t at, int odd,
                 const float *x, size_t inputs, floats sums[TILE][8]) {
    floats weights[8];
#pragma GCC unroll 8
    for (int p = 0; p < np; p++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
            weights[2 * p + half] = weight_at(from, source, kind, source > SCALED ? at : e, odd, p, half);
#pragma GCC unroll 8
    for (int t = 0; t < mr; t++) {
        const floats value = splat(x[t * inputs + e]);
#pragma GCC unroll 8
        for (int half = 0; half < 2 * np; half++)
            sums[t][half] = multiply_add(weights[half], value, sums[t][half]);
    }
}

/* Inputs [start, end) of one block, `mr` tokens by `np` panels. */
INLINE void tile(int mr, int np, int source, int kind, const struct weight *w, size_t panel, size_t start, size_t end,
                 const float *ready, const float *x, float *y, const float *bias) {
    floats sums[TILE][8];
#pragma GCC unroll 8
    for (int t = 0; t < mr; t++)
#pragma GCC unroll 8
        for (int half = 0; half < 2 * np; half++) sums[t][half] = splat(0);
    const size_t bytes = panel_bytes(w, kind), inputs = w->inputs;
    float some[4 * STEP * PANEL];
    struct reading reading = {.numbers = (const char *)w->numbers + panel * bytes, .bytes = bytes, .expanded = some};
    for (size_t from = start; from < end; from += STEP) {
        const size_t to = from + STEP < end ? from + STEP : end;
        if (source == READY) reading.expanded = ready + (from - start) * PANEL;
        if (source == STEPWISE)
            for (int p = 0; p < np; p++) expand(w, panel + p, from, to, kind, some + p * STEP * PANEL);
        if (source == SCALED)
#pragma GCC unroll 8
            for (int p = 0; p < np; p++) {
                const size_t at = ((panel + p) * w->groups + from / w->group) * PANEL;
#pragma GCC unroll 2
                for (int half = 0; half < 2; half++) {
                    const floats scale = figures(w, w->scales, at + 8 * half);
                    reading.scales[2 * p + half] = scale;
                    reading.offsets[2 * p + half] = offset_at(w, at + 8 * half, scale);
                }
            }
        size_t e = from;
        for (; e + 2 <= to; e += 2) {
            step(mr, np, source, kind, &reading, e, e - from, 0, x, inputs, sums);
            step(mr, np, source, kind, &reading, e + 1, e + 1 - from, 1, x, inputs, sums);
        }
        if (e < to) step(mr, np, source, kind, &reading, e, e - from, 0, x, inputs, sums);
    }
    /* Not unrolled: the sums go through memory, which keeps the code small. */
    for (int t = 0; t < mr; t++)
        for (int p = 0; p < np; p++) {
            size_t o = (panel + p) * PANEL;
            const float *own = bias && end == inputs ? bias + o : NULL;
            if (o < w->outputs)
                finish(y + t * w->outputs + o, w->outputs - o, sums[t][2 * p], sums[t][2 * p + 1], start == 0, own);
        }
}

/* Up to six tokens: as many panels at a time as keep the multipliers busy. */
INLINE void few_tokens(int source, int kind, const struct weight *w, const float *x, size_t count, const float *bias,
                       float *y, size_t first, size_t last) {
    const size_t together = count == 1 ? 4 : count <= 3 ? 2 : 1;
    for (size_t panel = first; panel < last; panel += together)
        for (size_t start = 0; start < w->inputs; start += BLOCK) {
            size_t end = start + BLOCK < w->inputs ? start + BLOCK : w->inputs;
            switch (count) {
            case 1: tile(1, 4, source, kind, w, panel, start, end, NULL, x, y, bias); break;
            case 2: tile(2, 2, source, kind, w, panel, start, end, NULL, x, y, bias); break;
            case 3: tile(3, 2, source, kind, w, panel, start, end, NULL, x, y, bias); break;
            case 4: tile(4, 1, source, kind, w, panel, start, end, NULL, x, y, bias); break;
            case 5: tile(5, 1, source, kind, w, panel, start, end, NULL, x, y, bias); break;
            default: tile(6, 1, source, kind, w, panel, start, end, NULL, x, y, bias);
            }
        }
}

/* Whether no tile can read the panels themselves. */
static int stepwise(int kind, const struct weight *w) {
    return kind == E4M3 || (kind == INT8 && (w->zeros || w->offsets)) || (w->groups > 1 && w->group % STEP);
}

static void few_from_panels(int kind, const struct weight *w, const float *x, size_t count, const float *bias,
                            float *y, size_t first, size_t last) {
    if (kind == FP32) few_tokens(FP32, kind, w, x, count, bias, y, first, last);
    else if (kind == FP16) few_tokens(FP16, kind, w, x, count, bias, y, first, last);
    else if (kind == BF16) few_tokens(BF16, kind, w, x, count, bias, y, first, last);
    else if (stepwise(kind, w)) few_tokens(STEPWISE, kind, w, x, count, bias, y, first, last);
    else if (kind == INT8) few_tokens(SCALED, INT8, w, x, count, bias, y, first, last);
    else few_tokens(SCALED, INT4, w, x, count, bias, y, first, last);
}

/* Tokens [0, count) of a chunk against one block of a panel, in tiles of nearly equal size. */
INLINE void in_tiles(int source, const struct weight *w, size_t panel, size_t start, size_t end, const float *ready,
                     const float *x, size_t count, float *y, const float *bias) {
    const size_t tiles = (count + TILE - 1) / TILE;
    for (size_t i = 0; i < tiles; i++) {
        const size_t t = count * i / tiles, mr = count * (i + 1) / tiles - t;
        const float *from = x + t * w->inputs;
        float *to = y + t * w->outputs;
        switch (mr) {
        case 3: tile(3, 1, source, source, w, panel, start, end, ready, from, to, bias); break;
        case 4: tile(4, 1, source, source, w, panel, start, end, ready, from, to, bias); break;
        case 5: tile(5, 1, source, source, w, panel, start, end, ready, from, to, bias); break;
        default: tile(6, 1, source, source, w, panel, start, end, ready, from, to, bias);
        }
    }
}

/* One block of a panel against all tokens of a chunk, expanded first where it is quantised. */
static void meet(int kind, const struct weight *w, size_t panel, size_t start, const float *x, size_t count, float *y,
                 const float *bias) {
    float ready[BLOCK * PANEL] __attribute__((aligned(64)));
    const size_t end = start + BLOCK < w->inputs ? start + BLOCK : w->inputs;
    if (kind == FP32) {
        in_tiles(FP32, w, panel, start, end, NULL, x, count, y, bias);
    } else if (kind == FP16) {
        in_tiles(FP16, w, panel, start, end, NULL, x, count, y, bias);
    } else if (kind == BF16) {
        in_tiles(BF16, w, panel, start, end, NULL, x, count, y, bias);
    } else {
        expand(w, panel, start, end, kind, ready);
        in_tiles(READY, w, panel, start, end, ready, x, count, y, bias);
    }
}

/* More: while a block of a panel is in the nearest cache it meets all tokens of a chunk. Panels are read from end to
 * end where the chunk fits the second cache, else block by block of the chunk. */
static void many_tokens(int kind, const struct weight *w, const float *x, size_t count, const float *bias, float *y,
                        size_t first, size_t last) {
    const size_t chunks = (count + CHUNK - 1) / CHUNK, panels = (w->outputs + PANEL - 1) / PANEL;
    if (last > panels) last = panels;
    for (size_t chunk = 0; chunk < chunks; chunk++) {
        const size_t t = count * chunk / chunks, here = count * (chunk + 1) / chunks - t;
        const float *from = x + t * w->inputs;
        float *to = y + t * w->outputs;
        if (here * w->inputs * sizeof *x <= SECOND_CACHE) {
            for (size_t panel = first; panel < last; panel++)
                for (size_t start = 0; start < w->inputs; start += BLOCK)
                    meet(kind, w, panel, start, from, here, to, bias);
        } else {
            for (size_t start = 0; start < w->inputs; start += BLOCK)
                for (size_t panel = first; panel < last; panel++)
                    meet(kind, w, panel, start, from, here, to, bias);
        }
    }
}

INLINE float one_number(const void *from, size_t at, int kind) {
    if (kind == FP32) return ((const float *)from)[at];
    const uint16_t bits = ((const uint16_t *)from)[at];
    if (kind == FP16) return half_to_float(bits);
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* The matrix of one expert of several that lie one after the other, each filled up to whole panels. */
static struct weight of_expert(const struct weight *w, int kind, size_t panels, size_t expert) {
    struct weight own = *w;
    const size_t figures = expert * panels * w->groups * PANEL * (w->scale_kind == FP16 ? 2 : 4);
    own.numbers = (const char *)w->numbers + expert * panels * panel_bytes(w, kind);
    if (w->scales) own.scales = (const char *)w->scales + figures;
    if (w->zeros) own.zeros = (const char *)w->zeros + figures;
    if (w->offsets) own.offsets = (const char *)w->offsets + figures;
    return own;
}

/* x is [T, E] and y is [T, O], both without gaps; scales and zeros belong to quantised kinds. Panels come in fours,
 * filled up with zeros. Tokens [starts[i], starts[i + 1]) meet the matrix of `experts`[i], i < `spans`; without `experts`
 * all meet one. */
void sglk_product(int kind, const void *numbers, int scale_kind, const void *scales, const void *offsets,
                  const void *zeros, float zero, size_t inputs, size_t outputs, size_t group, const int64_t *experts, const int64_t *starts,
                  size_t spans, const float *x, size_t tokens, const float *bias, float *y, int threads) {
    const struct weight all = {numbers, scales, zeros, offsets, scale_kind, zero, inputs, outputs, group, (inputs + group - 1) / group};
    const size_t panels = (outputs + 4 * PANEL - 1) / (4 * PANEL) * 4;
    size_t share = panels * spans / (8 * (size_t)threads) / 4 * 4;
    if (share < 4) share = 4;
    if (share > panels) share = panels;
    const size_t shares = (panels + share - 1) / share;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1 && shares * spans > 1)
    for (long i = 0; i < (long)(shares * spans); i++) {
        const size_t span = i / shares, first = i % shares * share, last = first + share < panels ? first + share : panels;
        const size_t start = experts ? (size_t)starts[span] : 0, end = experts ? (size_t)starts[span + 1] : tokens;
        const size_t count = end - start;
        const struct weight w = of_expert(&all, kind, panels, experts ? (size_t)experts[span] : 0);
        if (count == 0) continue;
        if (count <= TILE) few_from_panels(kind, &w, x + start * inputs, count, bias, y + start * outputs, first, last);
        else many_tokens(kind, &w, x + start * inputs, count, bias, y + start * outputs, first, last);
    }
}

/* Rows of a matrix in panels: y[t] = W[ids[t]]. Numbers of 8 and 4 bits have scales, one for each group of inputs. */
void sglk_rows(int kind, const void *numbers, int scale_kind, const void *scales, const void *offsets, size_t inputs,
               size_t group, const int64_t *ids, size_t count, float *y) {
    const size_t groups = (inputs + group - 1) / group;
    for (size_t t = 0; t < count; t++) {
        const size_t panel = (size_t)ids[t] / PANEL, o = (size_t)ids[t] % PANEL;
        float *row = y + t * inputs;
        for (size_t e = 0; e < inputs; e++) {
            const size_t at = (panel * inputs + e) * PANEL + o, figure = (panel * groups + e / group) * PANEL + o;
            if (kind == INT4) {
                const int pair = ((const uint8_t *)numbers)[(panel * inputs / 2 + e / 2) * PANEL + o];
                const float scaled = (float)(e % 2 ? pair >> 4 : pair & 15) * one_number(scales, figure, scale_kind);
                row[e] = scaled + one_number(offsets, figure, scale_kind);
            } else if (kind == INT8) {
                row[e] = (float)((const int8_t *)numbers)[at] * one_number(scales, figure, scale_kind);
            } else {
                row[e] = one_number(numbers, at, kind);
            }
        }
    }
}
