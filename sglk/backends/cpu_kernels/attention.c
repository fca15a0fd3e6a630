/* Attention over keys and values in pages, without gathering them.
 *
 * What a query comes to is a function of its row's tokens alone: not of the chunk of a prompt that it comes in, of the
 * other rows or of the number of threads. Its tokens are taken in blocks of 32 that begin at position 0 of the row,
 * with a running maximum (Milakov and Gimelshein 2018, arXiv:1805.02867), and 16 blocks make a part; parts are added in
 * order. Prompts and decodes run the same functions, so a token that is computed again in a prompt keeps its bits.
 *
 * A line is a query and one of its heads; lines that share a key/value head meet a block of it together. */

#include "kv_block.h"
#include "workers.h"

#define PART 512
#define WIDEST 256
#define VECTORS (TOKENS / LANES)
/* Lines at a time: as many as leave registers for what they meet. */
#ifdef __AVX512VL__
#define LINES 6
#else
#define LINES 3
#endif

/* Neighbouring queries of a row and the `group` heads of each that share a key/value head. */
struct tile {
    const float *q;
    size_t stride, queries, group, position, window;
    float scale;
};

/* The maximum, the sum of exponentials, and weighted sums, filled up. */
INLINE size_t state_size(size_t filled) { return filled + 2; }

INLINE size_t first_seen(const struct tile *tile, size_t query) {
    const size_t end = tile->position + query + 1;
    return tile->window && end > tile->window ? end - tile->window : 0;
}

/* Scores of `count` lines: each the sum over d from the first to the last. */
INLINE void score(size_t count, const float *const *q, const float *keys, size_t width, float scale,
                  float scores[][TOKENS]) {
    floats sums[LINES][VECTORS];
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) sums[i][v] = splat(0);
    for (size_t d = 0; d < width; d++) {
        floats key[VECTORS];
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) key[v] = load(keys + d * TOKENS + v * LANES);
#pragma GCC unroll 8
        for (size_t i = 0; i < count; i++) {
            const floats value = splat(q[i][d]);
#pragma GCC unroll 4
            for (size_t v = 0; v < VECTORS; v++) sums[i][v] = multiply_add(key[v], value, sums[i][v]);
        }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) store(scores[i] + v * LANES, sums[i][v] * scale);
}

/* Turn the scores of a line, which sees tokens [from, to) of the block, into weights; return what its sums shrink by. */
static float weigh(float *scores, size_t from, size_t to, float *state) {
    if (from >= to) {
        for (size_t t = 0; t < TOKENS; t += LANES) store(scores + t, splat(0));
        return 1;
    }
    for (size_t t = 0; t < TOKENS; t++)
        if (t < from || t >= to) scores[t] = -INFINITY;
    floats most = splat(state[0]), sum = splat(0);
    for (size_t t = 0; t < TOKENS; t += LANES) most = larger(load(scores + t), most);
    float highest = most[0];
    for (int lane = 1; lane < LANES; lane++)
        if (most[lane] > highest) highest = most[lane];
    for (size_t t = 0; t < TOKENS; t += LANES) store(scores + t, exponential(load(scores + t) - highest));
    for (size_t t = 0; t < TOKENS; t++)
        if (t < from || t >= to) scores[t] = 0;
    for (size_t t = 0; t < TOKENS; t += LANES) sum += load(scores + t);
    const float shrink = exponential(splat(state[0] - highest))[0];
    state[0] = highest;
    state[1] = state[1] * shrink + sum_lanes(sum);
    return shrink;
}

/* Shrink `vectors` registers of the sums of each line, from number d on, and add the values of the block. Of each value
 * of the next block as many numbers, of `asked` bytes, are asked for; 0 = none are. */
INLINE void add_values(int kind, const struct pool *pool, size_t asked, size_t count, size_t vectors,
                       float *const *states, const float *shrinks, float scores[][TOKENS], const struct block *block,
                       size_t d) {
    floats sums[LINES][VECTORS];
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < vectors; v++) sums[i][v] = load(states[i] + 2 + d + v * LANES) * shrinks[i];
    for (size_t t = block->from; t < block->to; t++) {
        if (asked) ask(pool->values, block->next[t] * pool->width + d, vectors * LANES, asked);
        floats value[VECTORS];
#pragma GCC unroll 4
        for (size_t v = 0; v < vectors; v++) value[v] = load_kind(block->values[t], d + v * LANES, kind);
#pragma GCC unroll 8
        for (size_t i = 0; i < count; i++) {
            const floats weight = splat(scores[i][t]);
#pragma GCC unroll 4
            for (size_t v = 0; v < vectors; v++) sums[i][v] = multiply_add(value[v], weight, sums[i][v]);
        }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < vectors; v++) store(states[i] + 2 + d + v * LANES, sums[i][v]);
}

/* As above for all numbers of the values. */
INLINE void add_all(int kind, const struct pool *pool, size_t asked, size_t count, float *const *states,
                    const float *shrinks, float scores[][TOKENS], const struct block *block) {
    size_t d = 0;
    for (; d + VECTORS * LANES <= pool->filled; d += VECTORS * LANES)
        add_values(kind, pool, asked, count, VECTORS, states, shrinks, scores, block, d);
    for (; d < pool->filled; d += LANES) add_values(kind, pool, 0, count, 1, states, shrinks, scores, block, d);
}

/* `count` lines of a tile, from line `first` on, meet the block that begins at position `start`. */
INLINE void meet(size_t count, const struct pool *pool, const struct tile *tile, size_t first,
                 const struct block *block, size_t start, float *states) {
    const float *q[LINES];
    float *own[LINES], scores[LINES][TOKENS], shrinks[LINES];
    for (size_t i = 0; i < count; i++) {
        const size_t line = first + i;
        q[i] = tile->q + line / tile->group * tile->stride + line % tile->group * pool->width;
        own[i] = states + line * state_size(pool->filled);
    }
    score(count, q, block->keys, pool->width, tile->scale, scores);
    for (size_t i = 0; i < count; i++) {
        const size_t query = (first + i) / tile->group, seen = first_seen(tile, query);
        const size_t past = tile->position + query + 1, from = seen > start ? seen - start : 0;
        const size_t to = past > start ? past - start : 0;
        shrinks[i] = weigh(scores[i], from, to < TOKENS ? to : TOKENS, own[i]);
        if (pool->kind == INT8)
            for (size_t t = block->from; t < block->to; t++) scores[i][t] *= block->value_scales[t];
    }
    const size_t asked = first == 0 && block->next ? number_bytes(pool->kind) : 0;
    switch (block->kind) {
    case FP16: add_all(FP16, pool, asked, count, own, shrinks, scores, block); break;
    case BF16: add_all(BF16, pool, asked, count, own, shrinks, scores, block); break;
    default: add_all(FP32, pool, asked, count, own, shrinks, scores, block);
    }
}

/* All lines of a tile meet a block. */
INLINE void meet_all(const struct pool *pool, const struct tile *tile, size_t lines, const struct block *block,
                     size_t start, float *states) {
    size_t line = 0;
    for (; line + LINES <= lines; line += LINES) meet(LINES, pool, tile, line, block, start, states);
    switch (lines - line) {
    case 1: meet(1, pool, tile, line, block, start, states); break;
    case 2: meet(2, pool, tile, line, block, start, states); break;
#if LINES > 3
    case 3: meet(3, pool, tile, line, block, start, states); break;
    case 4: meet(4, pool, tile, line, block, start, states); break;
    case 5: meet(5, pool, tile, line, block, start, states); break;
#endif
    default: break;
    }
}

/* All lines of a tile of each of `count` heads from `head` on, over tokens [start, end) of their row, which are of one
 * part. The heads of a token are side by side: where all take turns, memory is read in order. */
static void attend_part(const struct pool *pool, const struct row *row, size_t head, size_t count,
                        const struct tile *tile, size_t start, size_t end, float *states, float *room) {
    const size_t lines = tile->queries * tile->group, size = state_size(pool->filled), seen = first_seen(tile, 0);
    for (size_t line = 0; line < count * lines; line++) {
        states[line * size] = -INFINITY;
        memset(states + line * size + 1, 0, (size - 1) * sizeof *states);
    }
    if (seen > start) start = seen;
    struct block block;
    size_t slots[2][TOKENS], places[TOKENS], next[TOKENS], own = 0;
    find_slots(row, start / TOKENS * TOKENS, end, slots[own]);
    for (size_t at = start / TOKENS * TOKENS; at < end; at += TOKENS, own = !own) {
        const size_t from = at > start ? at : start, to = at + TOKENS < end ? at + TOKENS : end;
        block.next = at + TOKENS < end ? next : NULL;
        if (block.next) find_slots(row, at + TOKENS, end, slots[!own]);
        struct tile mine = *tile;
        /* While one of the heads is computed, all heads of its share of the next tokens are asked for. */
        size_t token = 0, beside = 0;
        for (size_t h = 0; h < count; h++, mine.q += tile->group * pool->width) {
            for (size_t t = 0; t < TOKENS; t++) places[t] = slots[own][t] * pool->heads + head + h;
            for (size_t t = 0; block.next && t < TOKENS; t++) {
                next[t] = slots[!own][token] * pool->heads + head + beside;
                if (++beside == count) beside = 0, token++;
            }
            read_block(pool, places, from - at, to - at, &block, room);
            meet_all(pool, &mine, lines, &block, at, states + h * lines * size);
        }
    }
}

/* Add the state of a later part; one that saw nothing changes nothing. */
static void add_part(float *total, const float *state, size_t filled) {
    if (state[1] == 0) return;
    if (total[1] == 0) {
        memcpy(total, state, state_size(filled) * sizeof *total);
        return;
    }
    const float highest = total[0] > state[0] ? total[0] : state[0];
    const float old = exponential(splat(total[0] - highest))[0], new = exponential(splat(state[0] - highest))[0];
    total[0] = highest;
    total[1] = total[1] * old + state[1] * new;
    for (size_t d = 2; d < filled + 2; d += LANES)
        store(total + d, multiply_add(load(state + d), splat(new), load(total + d) * old));
}

INLINE void finish(const float *state, size_t width, float *out) {
    size_t d = 0;
    for (; d + LANES <= width; d += LANES) store(out + d, load(state + 2 + d) / state[1]);
    for (; d < width; d++) out[d] = state[2 + d] / state[1];
}

/* Decodes as their workers see them. */
struct decodes {
    struct pool pool;
    const float *q;
    size_t stride;
    const int64_t *table, *lengths;
    size_t columns, page_size, window, group, parts;
    /* Key/value heads of a share. */
    size_t together;
    float scale, *out, *states, *room;
};

static void decode_share(const void *of, size_t task, size_t worker) {
    const struct decodes *job = of;
    const size_t parts = job->parts, kv_heads = job->pool.heads, group = job->group, heads = kv_heads * group;
    const size_t width = job->pool.width, size = state_size(job->pool.filled), tasks = kv_heads / job->together;
    const size_t b = task / (parts * tasks), part = task / tasks % parts, head = task % tasks * job->together;
    const struct row row = {job->table + b * job->columns, job->page_size};
    const size_t length = (size_t)job->lengths[b];
    const float *q = job->q + b * job->stride + head * group * width;
    const struct tile tile = {q, job->stride, 1, group, length - 1, job->window, job->scale};
    const size_t start = (first_seen(&tile, 0) / PART + part) * PART;
    const size_t end = start + PART < length ? start + PART : length;
    float *own = job->states + ((b * parts + part) * heads + head * group) * size;
    float *room = job->room + worker * 2 * TOKENS * job->pool.filled;
    if (start < length)
        attend_part(&job->pool, &row, head, job->together, &tile, start, end, own, room);
    else
        for (size_t g = 0; g < job->together * group; g++) own[g * size + 1] = 0;
}

/* Put the parts of a head of a row together. */
static void finish_share(const void *of, size_t task, size_t worker) {
    (void)worker;
    const struct decodes *job = of;
    const size_t heads = job->pool.heads * job->group, size = state_size(job->pool.filled);
    float *total = job->states + (task / heads * job->parts * heads + task % heads) * size;
    for (size_t part = 1; part < job->parts; part++) add_part(total, total + part * heads * size, job->pool.filled);
    finish(total, job->pool.width, job->out + task * job->pool.width);
}

/* q and out are [B, H, D], rows of q `stride` floats apart; the pools are [S, K, D], their scales [S, K]; the tokens of
 * row b are in the pages of line b of `table`, which has `columns`. The parts of a row are computed side by side.
 * `states` holds B * parts * H * (D + 2) floats, `room` 64 * D for each thread, with D filled up. */
void sglk_attention_decode(int kind, const float *q, size_t stride, const void *keys, const void *values,
                           const float *key_scales, const float *value_scales, const int64_t *table, size_t columns,
                           size_t page_size, const int64_t *lengths, size_t rows, size_t window, size_t heads,
                           size_t kv_heads, size_t width, float scale, float *out, float *states, size_t parts,
                           float *room, int threads) {
    const struct pool pool = {kind, keys, values, key_scales, value_scales, kv_heads, width, fill(width)};
    /* Heads apart where there is else too little to share. */
    const size_t together = threads == 1 || rows * parts >= 2 * (size_t)threads ? kv_heads : 1;
    const struct decodes job = {pool,   q,        stride, table, lengths, columns, page_size, window, heads / kv_heads,
                                parts,  together, scale,  out,   states,  room};
    run_shares(threads, rows * parts * kv_heads / together, decode_share, &job);
    /* A few are put together sooner than anybody comes. */
    run_shares(rows * parts >= 8 ? threads : 1, rows * heads, finish_share, &job);
}

/* A tile of a prompt over all of its parts; `states` holds two states a line. */
static void attend_tile(const struct pool *pool, const struct row *row, size_t head, const struct tile *tile,
                        size_t heads, float *out, float *states, float *room) {
    const size_t lines = tile->queries * tile->group, size = state_size(pool->filled);
    const size_t end = tile->position + tile->queries;
    float *part = states + lines * size;
    for (size_t line = 0; line < lines; line++) states[line * size + 1] = 0;
    for (size_t start = first_seen(tile, 0) / PART * PART; start < end; start += PART) {
        attend_part(pool, row, head, 1, tile, start, start + PART < end ? start + PART : end, part, room);
        for (size_t line = 0; line < lines; line++) add_part(states + line * size, part + line * size, pool->filled);
    }
    for (size_t line = 0; line < lines; line++) {
        const size_t at = line / tile->group * heads + head * tile->group + line % tile->group;
        finish(states + line * size, pool->width, out + at * pool->width);
    }
}

/* The queries of one row of prompts as their workers see them. */
struct queries {
    struct pool pool;
    struct row row;
    const float *q;
    size_t stride, count, past, together, group, tasks, window;
    float scale, *out, *states, *room;
};

static void prefill_share(const void *of, size_t task, size_t worker) {
    const struct queries *job = of;
    const size_t kv_heads = job->pool.heads, group = job->group, width = job->pool.width, head = task % kv_heads;
    /* The longest first. */
    const size_t i = (job->tasks / kv_heads - 1 - task / kv_heads) * job->together;
    const size_t queries = job->count - i < job->together ? job->count - i : job->together;
    const float *q = job->q + i * job->stride + head * group * width;
    const struct tile tile = {q, job->stride, queries, group, job->past + i, job->window, job->scale};
    attend_tile(&job->pool, &job->row, head, &tile, kv_heads * group, job->out + i * kv_heads * group * width,
                job->states + worker * 2 * job->together * group * state_size(job->pool.filled),
                job->room + worker * 2 * TOKENS * job->pool.filled);
}

/* As above, but q and out are [T, H, D], the queries of row b are from `starts`[b] to before `starts`[b + 1], and they
 * are the last of its tokens. A tile has `together` queries at most. `states` holds for each thread
 * 2 * together * H / K * (D + 2) floats. */
void sglk_attention_prefill(int kind, const float *q, size_t stride, const void *keys, const void *values,
                            const float *key_scales, const float *value_scales, const int64_t *table, size_t columns,
                            size_t page_size, const int64_t *starts, const int64_t *lengths, size_t rows, size_t window,
                            size_t heads, size_t kv_heads, size_t width, float scale, float *out, float *states,
                            size_t together, float *room, int threads) {
    const struct pool pool = {kind, keys, values, key_scales, value_scales, kv_heads, width, fill(width)};
    for (size_t b = 0; b < rows; b++) {
        const size_t start = (size_t)starts[b], count = (size_t)starts[b + 1] - start;
        const size_t tasks = (count + together - 1) / together * kv_heads;
        const struct queries job = {.pool = pool, .row = {table + b * columns, page_size}, .q = q + start * stride,
                                    .stride = stride, .count = count, .past = (size_t)lengths[b] - count,
                                    .together = together, .group = heads / kv_heads, .tasks = tasks, .window = window,
                                    .scale = scale, .out = out + start * heads * width, .states = states,
                                    .room = room};
        run_shares(threads, tasks, prefill_share, &job);
    }
}
