/* Some tokens by some panels: what the registers hold. */

#ifndef SGLK_TILE_H
#define SGLK_TILE_H

#include "weight.h"

#define BLOCK 256
#define STEP 32
/* Tokens that meet a panel at a time: their sums fill the registers. */
#if WIDE == 16
#define TILE 12
#else
#define TILE 6
#endif
#define CHUNK 252
#define MOST_TILES (CHUNK / TILE)
/* Of more tiles a chunk expands quantised weights before they meet it. */
#define DIRECT_TILES 1
/* Tokens that take a panel no longer than memory does. */
#define FEW 4
#define SECOND_CACHE (512 * 1024)

/* Tokens that are multiplied at a time, as a tile reads them: input e of token t is x[e * rows + t], rows from `count`
 * on are zeros. */
struct tokens {
    const float *x;
    size_t rows, count;
    float *y;
};

/* Add the sums of a panel to y, or write them there where they are the first. */
INLINE void finish(float *y, size_t width, const float *sums, int first, const float *bias) {
    if (width >= PANEL) {
        for (size_t o = 0; o < PANEL; o += WIDE) {
            wides total = load_wide(sums + o);
            if (!first) total = load_wide(y + o) + total;
            if (bias) total += load_wide(bias + o);
            store_wide(y + o, total);
        }
        return;
    }
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
    wides scales[8], offsets[8];
};

/* Some weights of input e of panel p; 4-bit numbers of an odd input are in the high half of a byte. */
INLINE wides weight_at(const struct reading *from, int source, int kind, size_t e, int odd, int p, int part) {
    if (source == READY || source == STEPWISE) return load_wide(from->expanded + (p * STEP + e) * PANEL + WIDE * part);
    const char *numbers = from->numbers + p * from->bytes;
    if (source != SCALED) return load_wide_kind(numbers, e * PANEL + WIDE * part, source);
    const wides scale = from->scales[PARTS * p + part];
    if (kind == INT8) return load_wide_kind(numbers, e * PANEL + WIDE * part, INT8) * scale;
    const wide_ints pair = load_wide_bytes((const uint8_t *)numbers + (e - odd) / 2 * FOUR * PANEL + WIDE * part);
    const wides number = odd ? high_numbers(pair) : low_numbers(pair);
    return multiply_add_wide(number, scale, from->offsets[PARTS * p + part]);
}

/* Input e, number `at` of what is expanded, of `mr` tokens. */
INLINE void step(int mr, int np, int source, int kind, const struct reading *from, size_t e, size_t at, int odd,
                 const float *x, wides sums[TILE][8]) {
    wides weights[8];
#pragma GCC unroll 8
    for (int p = 0; p < np; p++)
#pragma GCC unroll 2
        for (int part = 0; part < PARTS; part++)
            weights[PARTS * p + part] = weight_at(from, source, kind, source > SCALED ? at : e, odd, p, part);
#pragma GCC unroll 16
    for (int t = 0; t < mr; t++) {
        const wides value = spread(x[t]);
#pragma GCC unroll 8
        for (int i = 0; i < PARTS * np; i++) sums[t][i] = multiply_add_wide(weights[i], value, sums[t][i]);
    }
}

/* Ask for what comes next of quantised panels, each a short stream that the processor sees too late: the next inputs, or
 * where a step has few bytes of a panel the same inputs of the next panels and their scales. */
INLINE void fetch_next(const struct weight *w, int kind, int np, size_t panel, size_t e) {
    if (kind == INT4) {
        const char *next = panel_start(w, INT4, panel) + (e + STEP) / 2 * FOUR * PANEL;
        for (size_t line = 0; line < STEP / 2 * FOUR * PANEL; line += 64) __builtin_prefetch(next + line, 0, 2);
        return;
    }
    for (int p = 0; p < np; p++) {
        const char *next = panel_start(w, kind, panel + np + p) + e * PANEL;
        for (size_t line = 0; line < STEP * PANEL; line += 64) __builtin_prefetch(next + line, 0, 2);
        const size_t at = figure_place(w, kind, panel + np + p, e / w->group) * (w->scale_kind == FP16 ? 2 : 4);
        __builtin_prefetch((const char *)w->scales + at, 0, 2);
    }
}

/* The scales and offsets of a step's inputs. */
INLINE void read_figures(const struct weight *w, int kind, int np, size_t panel, size_t group, struct reading *to) {
#pragma GCC unroll 8
    for (int p = 0; p < np; p++) {
        const size_t at = figure_place(w, kind, panel + p, group);
#pragma GCC unroll 2
        for (int part = 0; part < PARTS; part++) {
            const wides scale = figures(w, w->scales, at + WIDE * part);
            to->scales[PARTS * p + part] = scale;
            to->offsets[PARTS * p + part] = offset_at(w, at + WIDE * part, scale);
        }
    }
}

/* Inputs [start, end) of one block, `mr` tokens by `np` panels. */
INLINE void tile(int mr, int np, int source, int kind, const struct weight *w, size_t panel, size_t start, size_t end,
                 const float *ready, const struct tokens *tokens, const float *bias) {
    wides sums[TILE][8];
#pragma GCC unroll 16
    for (int t = 0; t < mr; t++)
#pragma GCC unroll 8
        for (int i = 0; i < PARTS * np; i++) sums[t][i] = spread(0);
    const float *x = tokens->x + start * mr;
    float some[4 * STEP * PANEL];
    struct reading reading = {.numbers = panel_start(w, kind, panel), .bytes = panel_stride(w, kind), .expanded = some};
    const size_t length = source == SCALED && w->groups > 1 && w->group % STEP ? STEP / 2 : STEP;
    for (size_t from = start; from < end; from += length) {
        const size_t to = from + length < end ? from + length : end;
        if (source == READY) reading.expanded = ready + (from - start) * PANEL;
        else if (source == SCALED && np > 1) fetch_next(w, kind, np, panel, from);
        if (source == STEPWISE)
            for (int p = 0; p < np; p++) expand(w, panel + p, from, to, kind, some + p * STEP * PANEL);
        if (source == SCALED) read_figures(w, kind, np, panel, from / w->group, &reading);
        size_t e = from;
        for (; e + 2 <= to; e += 2, x += 2 * mr) {
            step(mr, np, source, kind, &reading, e, e - from, 0, x, sums);
            step(mr, np, source, kind, &reading, e + 1, e + 1 - from, 1, x + mr, sums);
        }
        if (e < to) step(mr, np, source, kind, &reading, e, e - from, 0, x, sums), x += mr;
    }
    /* Not unrolled: the sums go through memory, which keeps the code small. */
    for (size_t t = 0; t < tokens->count; t++)
        for (int p = 0; p < np; p++) {
            size_t o = (panel + p) * PANEL;
            const float *own = bias && end == w->inputs ? bias + o : NULL;
            if (o < w->outputs)
                finish(tokens->y + t * w->outputs + o, w->outputs - o, (float *)&sums[t][PARTS * p], !start, own);
        }
}

#endif
