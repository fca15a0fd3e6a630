/* y = x W^T + b, with weights in panels of 16 outputs.
 *
 * Every number of y is summed in one order, whatever stands beside it: blocks of 256 inputs, each from its first input
 * to its last, added block after block, then the bias. So a token's result does not depend on its neighbours. */

#include "tile.h"
#include "workers.h"

/* Panels that a tile of so many rows takes at a time. Of floats one, which is read as one stream; of what must be
 * converted few rows take more, which keeps the multipliers busy. */
INLINE size_t panels_for(size_t rows, int kind) {
    if (kind == FP32 || kind == FP16 || kind == BF16) return 1;
    if (WIDE == 16) return rows <= 4 ? 4 : 1;
    return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
}

/* A tile that reads the panels themselves. */
INLINE void direct_tile(int source, int kind, const struct weight *w, size_t panel, size_t start, size_t end,
                        const struct tokens *x, const float *bias) {
#define CASE(rows) \
    case rows: tile(rows, panels_for(rows, kind), source, kind, w, panel, start, end, NULL, x, bias); break
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
        for (size_t p = panel; p < past; p += panels_for(tokens.rows, kind))
            direct_tile(source, kind, w, p, start, end, &tokens, bias);
    }
}

/* One block of the panels of a tile against all tokens of a chunk, expanded first where that pays. */
static void meet(int kind, const struct weight *w, size_t panel, size_t start, const struct chunk *chunk,
                 const float *bias) {
    const size_t end = start + BLOCK < w->inputs ? start + BLOCK : w->inputs;
    const size_t past = panel + panels_for(row_of(chunk, 1), kind);
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
    const size_t together = panels_for(row_of(chunk, 1), kind);
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

/* A product as its workers see it: chunk after chunk, laid out by all and then multiplied by all. */
struct product {
    int kind;
    struct weight all;
    const int64_t *experts, *starts;
    size_t panels, share, shares, chunk, tiles, tokens;
    const float *x, *bias;
    float *y, *room;
};

/* The tokens of span i. */
static struct span span_of(const struct product *job, size_t i) {
    const size_t start = job->experts ? (size_t)job->starts[i] : 0;
    const size_t end = job->experts ? (size_t)job->starts[i + 1] : job->tokens;
    const size_t inputs = job->all.inputs;
    return (struct span){job->x + start * inputs, job->y + start * job->all.outputs, job->room + 2 * start * inputs,
                         end - start};
}

static void lay_out_share(const void *of, size_t i, size_t worker) {
    (void)worker;
    const struct product *job = of;
    const struct span span = span_of(job, i / job->tiles);
    lay_out(&span, &job->all, job->chunk, i % job->tiles);
}

static void multiply_share(const void *of, size_t i, size_t worker) {
    (void)worker;
    const struct product *job = of;
    const size_t first = i % job->shares * job->share, past = first + job->share;
    const size_t expert = job->experts ? (size_t)job->experts[i / job->shares] : 0;
    const struct span span = span_of(job, i / job->shares);
    const struct weight w = of_expert(&job->all, job->kind, job->panels, expert);
    const struct chunk chunk = chunk_of(&span, &w, job->chunk);
    if (chunk.count) multiply(job->kind, &w, &chunk, job->bias, first, past < job->panels ? past : job->panels);
}

/* x is [T, E] and y is [T, O], both without gaps; scales and zeros belong to quantised kinds. Panels come in fours,
 * filled up with zeros. Tokens [starts[i], starts[i + 1]) meet the matrix of `experts`[i], i < `spans`; without
 * `experts` all meet one. `room` holds 2 * T * E floats; a single token needs none. */
void sglk_product(int kind, const void *numbers, int scale_kind, const void *scales, const void *offsets,
                  const void *zeros, float zero, size_t inputs, size_t outputs, size_t group, const int64_t *experts,
                  const int64_t *starts, size_t spans, const float *x, size_t tokens, const float *bias, float *y,
                  float *room, int threads) {
    if (tokens == 0) return;
    const size_t groups = (inputs + group - 1) / group;
    const struct weight all = {numbers, scales, zeros, offsets, scale_kind, zero, inputs, outputs, group, groups};
    const size_t panels = (outputs + FOUR * PANEL - 1) / (FOUR * PANEL) * FOUR;
    size_t chunks = 0;
    for (size_t i = 0; i < spans; i++) {
        const size_t own = chunks_of(experts ? (size_t)(starts[i + 1] - starts[i]) : tokens);
        if (own > chunks) chunks = own;
    }
    /* Workers take pieces of a stream; those of many tokens are better long, for all of these are read for each. */
    const size_t parts = (size_t)threads * 8 * FOUR;
    size_t share = tokens <= FEW && !experts ? FOUR : (panels * spans + parts - 1) / parts * FOUR;
    if (share > panels) share = panels;
    struct product job = {.kind = kind, .all = all, .experts = experts, .starts = starts, .panels = panels,
                          .share = share, .shares = (panels + share - 1) / share,
                          .tiles = tokens < CHUNK ? (tokens + TILE - 1) / TILE : MOST_TILES,
                          .tokens = tokens, .x = x, .bias = bias, .y = y, .room = room};
    for (; job.chunk < chunks; job.chunk++) {
        if (tokens > 1) run_shares(threads, spans * job.tiles, lay_out_share, &job);
        run_shares(threads, job.shares * spans, multiply_share, &job);
    }
}
