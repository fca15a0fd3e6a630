/* y = x W^T + b, with weights in panels of 16 outputs.
 *
 * Every number of y is summed in one order, whatever stands beside it: blocks of 256 inputs, each from its first input
 * to its last, added block after block, then the bias. So a token's result does not depend on its neighbours. */

#include "wide.h"

#define PANEL 16
/* Registers that a panel takes. */
#define PARTS (PANEL / WIDE)
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

/* Tokens that are multiplied at a time, as a tile reads them: input e of token t is x[e * rows + t], rows from `count`
 * on are zeros. */
struct tokens {
    const float *x;
    size_t rows, count;
    float *y;
};

INLINE size_t panel_bytes(const struct weight *w, int kind) {
    size_t numbers = w->inputs * PANEL;
    if (kind == INT8 || kind == E4M3) return numbers;
    return kind == FP32 ? numbers * 4 : kind == INT4 ? numbers / 2 : numbers * 2;
}

/* Scales or zeros of some outputs; no zeros = the same for all. */
INLINE wides figures(const struct weight *w, const void *from, size_t at) {
    if (!from) return spread(w->zero);
    return w->scale_kind == FP16 ? load_wide_kind(from, at, FP16) : load_wide_kind(from, at, FP32);
}

INLINE wides offset_at(const struct weight *w, size_t at, wides scale) {
    return w->offsets ? figures(w, w->offsets, at) : -figures(w, w->zeros, at) * scale;
}

INLINE void expand_kind(const struct weight *w, size_t panel, size_t start, size_t end, int kind, float *to) {
    const char *numbers = (const char *)w->numbers + panel * panel_bytes(w, kind);
    /* In steps of one or two inputs; a group of an odd number of 4-bit inputs is not taken. */
    for (size_t e = start; e < end;) {
        const size_t group = e / w->group, past = (group + 1) * w->group, stop = past < end ? past : end;
        const size_t at = (panel * w->groups + group) * PANEL;
        wides scales[PARTS], offsets[PARTS];
#pragma GCC unroll 2
        for (int part = 0; part < PARTS; part++) {
            scales[part] = figures(w, w->scales, at + WIDE * part);
            offsets[part] = offset_at(w, at + WIDE * part, scales[part]);
        }
        for (; e < stop; to += PANEL) {
#pragma GCC unroll 2
            for (int part = 0; part < PARTS; part++) {
                const size_t place = WIDE * part;
                if (kind == INT4) {
                    /* A byte holds two inputs, the first in its low half. */
                    const wide_ints pair = load_wide_bytes((const uint8_t *)numbers + e / 2 * PANEL + place);
                    store_wide(to + place, multiply_add_wide(low_numbers(pair), scales[part], offsets[part]));
                    store_wide(to + PANEL + place, multiply_add_wide(high_numbers(pair), scales[part], offsets[part]));
                } else {
                    const wides number = load_wide_kind(numbers, e * PANEL + place, kind);
                    store_wide(to + place, multiply_add_wide(number, scales[part], offsets[part]));
                }
            }
            e += 1;
            if (kind == INT4) e += 1, to += PANEL;
        }
    }
}

/* Write inputs [start, end) of a quantised panel to `to` in fp32; `start` is even. */
static void expand(const struct weight *w, size_t panel, size_t start, size_t end, int kind, float *to) {
    if (kind == INT4) expand_kind(w, panel, start, end, INT4, to);
    else if (kind == E4M3) expand_kind(w, panel, start, end, E4M3, to);
    else expand_kind(w, panel, start, end, INT8, to);
}

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
    const wide_ints pair = load_wide_bytes((const uint8_t *)numbers + (e - odd) / 2 * PANEL + WIDE * part);
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

/* Ask for the same inputs of the panels that come next: each is a short stream, which the processor sees too late. */
INLINE void fetch_next(const struct weight *w, int kind, int np, const char *numbers, size_t e, size_t bytes) {
    const size_t at = kind == INT4 ? e * PANEL / 2 : e * (bytes / w->inputs);
    const size_t size = kind == INT4 ? STEP * PANEL / 2 : STEP * (bytes / w->inputs);
    for (int p = 0; p < np; p++)
        for (size_t line = 0; line < size; line += 64) __builtin_prefetch(numbers + (np + p) * bytes + at + line, 0, 2);
}

/* Inputs [start, end) of one block, `mr` tokens by `np` panels. */
INLINE void tile(int mr, int np, int source, int kind, const struct weight *w, size_t panel, size_t start, size_t end,
                 const float *ready, const struct tokens *tokens, const float *bias) {
    wides sums[TILE][8];
#pragma GCC unroll 16
    for (int t = 0; t < mr; t++)
#pragma GCC unroll 8
        for (int i = 0; i < PARTS * np; i++) sums[t][i] = spread(0);
    const size_t bytes = panel_bytes(w, kind);
    const float *x = tokens->x + start * mr;
    float some[4 * STEP * PANEL];
    struct reading reading = {.numbers = (const char *)w->numbers + panel * bytes, .bytes = bytes, .expanded = some};
    const size_t length = source == SCALED && w->groups > 1 && w->group % STEP ? STEP / 2 : STEP;
    for (size_t from = start; from < end; from += length) {
        const size_t to = from + length < end ? from + length : end;
        if (source == READY) reading.expanded = ready + (from - start) * PANEL;
        else if (source == SCALED && np > 1) fetch_next(w, kind, np, reading.numbers, from, bytes);
        if (source == STEPWISE)
            for (int p = 0; p < np; p++) expand(w, panel + p, from, to, kind, some + p * STEP * PANEL);
        if (source == SCALED)
#pragma GCC unroll 8
            for (int p = 0; p < np; p++) {
                const size_t at = ((panel + p) * w->groups + from / w->group) * PANEL;
#pragma GCC unroll 2
                for (int part = 0; part < PARTS; part++) {
                    const wides scale = figures(w, w->scales, at + WIDE * part);
                    reading.scales[PARTS * p + part] = scale;
                    reading.offsets[PARTS * p + part] = offset_at(w, at + WIDE * part, scale);
                }
            }
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

/* Panels that a tile of so many rows takes at a time: few rows take more, which keeps the multipliers busy. */
INLINE size_t panels_for(size_t rows) {
    if (WIDE == 16) return rows <= 4 ? 4 : 1;
    return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
}

/* A tile that reads the panels themselves. */
INLINE void direct_tile(int source, int kind, const struct weight *w, size_t panel, size_t start, size_t end,
                        const struct tokens *x, const float *bias) {
#define CASE(rows) \
    case rows: tile(rows, panels_for(rows), source, kind, w, panel, start, end, NULL, x, bias); break
    switch (x->rows) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(6);
#if TILE == 12
        CASE(8);
        CASE(10);
        CASE(12);
#else
        CASE(5);
#endif
    default: break;
    }
#undef CASE
}

/* A tile of a panel that is expanded. */
static void ready_tile(const struct weight *w, size_t panel, size_t start, size_t end, const float *ready,
                       const struct tokens *x, const float *bias) {
#define CASE(rows) \
    case rows: tile(rows, 1, READY, READY, w, panel, start, end, ready, x, bias); break
    switch (x->rows) {
        CASE(6);
#if TILE == 12
        CASE(8);
        CASE(10);
        CASE(12);
#else
        CASE(3);
        CASE(4);
        CASE(5);
#endif
    default: break;
    }
#undef CASE
}

/* Whether no tile can read the panels themselves. */
static int stepwise(int kind, const struct weight *w) {
    return kind == E4M3 || (kind == INT8 && (w->zeros || w->offsets)) || (w->groups > 1 && w->group % (STEP / 2));
}

/* Tokens that are multiplied together, in tiles of nearly as many rows; `x` holds these one after the other. */
struct chunk {
    const float *x;
    float *y;
    size_t count, tiles;
};

/* The first row of tile i. Wide tiles have even numbers of rows, which keeps the code small. */
INLINE size_t row_of(const struct chunk *chunk, size_t i) {
    if (WIDE == 16 && chunk->count > 4) return (chunk->count + 1) / 2 * i / chunk->tiles * 2;
    return chunk->count * i / chunk->tiles;
}

INLINE struct tokens tile_of(const struct chunk *chunk, const struct weight *w, size_t i) {
    const size_t row = row_of(chunk, i), past = row_of(chunk, i + 1);
    const size_t count = (past < chunk->count ? past : chunk->count) - row;
    return (struct tokens){chunk->x + row * w->inputs, past - row, count, chunk->y + row * w->outputs};
}

INLINE void meet_directly(int source, int kind, const struct weight *w, size_t panel, size_t past, size_t start,
                          size_t end, const struct chunk *chunk, const float *bias) {
    for (size_t i = 0; i < chunk->tiles; i++) {
        const struct tokens tokens = tile_of(chunk, w, i);
        for (size_t p = panel; p < past; p += panels_for(tokens.rows))
            direct_tile(source, kind, w, p, start, end, &tokens, bias);
    }
}

/* One block of the panels of a tile against all tokens of a chunk, expanded first where that pays. */
static void meet(int kind, const struct weight *w, size_t panel, size_t start, const struct chunk *chunk,
                 const float *bias) {
    const size_t end = start + BLOCK < w->inputs ? start + BLOCK : w->inputs;
    const size_t past = panel + panels_for(row_of(chunk, 1));
    if (kind == FP32) return meet_directly(FP32, kind, w, panel, past, start, end, chunk, bias);
    if (kind == FP16) return meet_directly(FP16, kind, w, panel, past, start, end, chunk, bias);
    if (kind == BF16) return meet_directly(BF16, kind, w, panel, past, start, end, chunk, bias);
    if (chunk->tiles <= DIRECT_TILES) {
        if (stepwise(kind, w)) return meet_directly(STEPWISE, kind, w, panel, past, start, end, chunk, bias);
        if (kind == INT8) return meet_directly(SCALED, INT8, w, panel, past, start, end, chunk, bias);
        return meet_directly(SCALED, INT4, w, panel, past, start, end, chunk, bias);
    }
    float ready[BLOCK * PANEL] __attribute__((aligned(64)));
    for (; panel < past; panel++) {
        expand(w, panel, start, end, kind, ready);
        for (size_t i = 0; i < chunk->tiles; i++) {
            const struct tokens tokens = tile_of(chunk, w, i);
            ready_tile(w, panel, start, end, ready, &tokens, bias);
        }
    }
}

/* Panels [first, last), from end to end where the chunk fits the second cache, else block by block. */
static void multiply(int kind, const struct weight *w, const struct chunk *chunk, const float *bias, size_t first,
                     size_t last) {
    const size_t together = panels_for(row_of(chunk, 1));
    if (chunk->count * w->inputs * sizeof *chunk->x <= SECOND_CACHE) {
        for (size_t panel = first; panel < last; panel += together)
            for (size_t start = 0; start < w->inputs; start += BLOCK) meet(kind, w, panel, start, chunk, bias);
    } else {
        for (size_t start = 0; start < w->inputs; start += BLOCK)
            for (size_t panel = first; panel < last; panel += together) meet(kind, w, panel, start, chunk, bias);
    }
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

/* Tokens that meet one matrix; `room` takes them as tiles read them. */
struct span {
    const float *x;
    float *y, *room;
    size_t count;
};

static size_t chunks_of(size_t count) { return (count + CHUNK - 1) / CHUNK; }

/* Chunk c of a span; a token alone is read where it is. */
static struct chunk chunk_of(const struct span *span, const struct weight *w, size_t c) {
    const size_t chunks = chunks_of(span->count);
    if (c >= chunks) return (struct chunk){0};
    const size_t t = span->count * c / chunks, count = span->count * (c + 1) / chunks - t;
    const size_t tiles = (count + TILE - 1) / TILE;
    return (struct chunk){count == 1 ? span->x : span->room, span->y + t * w->outputs, count, tiles};
}

/* Lay tile i of a chunk out. */
static void lay_out(const struct span *span, const struct weight *w, size_t c, size_t i) {
    const struct chunk chunk = chunk_of(span, w, c);
    if (i >= chunk.tiles || chunk.count == 1) return;
    const struct tokens tokens = tile_of(&chunk, w, i);
    const float *from = span->x + (size_t)(tokens.y - span->y) / w->outputs * w->inputs;
    float *to = span->room + (tokens.x - chunk.x);
    for (size_t t = 0; t < tokens.rows; t++, from += w->inputs)
        for (size_t e = 0; e < w->inputs; e++) to[e * tokens.rows + t] = t < tokens.count ? from[e] : 0;
}

/* x is [T, E] and y is [T, O], both without gaps; scales and zeros belong to quantised kinds. Panels come in fours,
 * filled up with zeros. Tokens [starts[i], starts[i + 1]) meet the matrix of `experts`[i], i < `spans`; without
 * `experts` all meet one. `room` holds 2 * T * E floats; a single token needs none. */
void sglk_product(int kind, const void *numbers, int scale_kind, const void *scales, const void *offsets,
                  const void *zeros, float zero, size_t inputs, size_t outputs, size_t group, const int64_t *experts,
                  const int64_t *starts, size_t spans, const float *x, size_t tokens, const float *bias, float *y,
                  float *room, int threads) {
    const size_t groups = (inputs + group - 1) / group;
    const struct weight all = {numbers, scales, zeros, offsets, scale_kind, zero, inputs, outputs, group, groups};
    const size_t panels = (outputs + 4 * PANEL - 1) / (4 * PANEL) * 4;
    size_t share = panels * spans / (8 * (size_t)threads) / 4 * 4, chunks = 0;
    if (share < 4) share = 4;
    if (share > panels) share = panels;
    const size_t shares = (panels + share - 1) / share;
    for (size_t i = 0; i < spans; i++) {
        const size_t own = chunks_of(experts ? (size_t)(starts[i + 1] - starts[i]) : tokens);
        if (own > chunks) chunks = own;
    }
#define SPAN(i) \
    const size_t start = experts ? (size_t)starts[i] : 0, end = experts ? (size_t)starts[i + 1] : tokens; \
    const struct span span = {x + start * inputs, y + start * outputs, room + 2 * start * inputs, end - start}
#pragma omp parallel num_threads(threads) if (threads > 1 && shares * spans > 1)
    for (size_t c = 0; c < chunks; c++) {
        if (tokens > 1) {
#pragma omp for schedule(static)
            for (long i = 0; i < (long)(spans * MOST_TILES); i++) {
                SPAN(i / MOST_TILES);
                lay_out(&span, &all, c, i % MOST_TILES);
            }
        }
#pragma omp for schedule(dynamic)
        for (long i = 0; i < (long)(shares * spans); i++) {
            const size_t first = i % shares * share, last = first + share < panels ? first + share : panels;
            SPAN(i / shares);
            const struct weight w = of_expert(&all, kind, panels, experts ? (size_t)experts[i / shares] : 0);
            const struct chunk chunk = chunk_of(&span, &w, c);
            if (chunk.count) multiply(kind, &w, &chunk, bias, first, last);
        }
    }
#undef SPAN
}
