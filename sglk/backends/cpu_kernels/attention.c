/* Attention over keys and values in pages, without gathering them.
 *
 * What a query comes to is a function of its row's tokens alone: not of the chunk of a prompt that it comes in, of the
 * other rows or of the number of threads. Its tokens are taken in blocks of 32 that begin at position 0 of the row,
 * with a running maximum (Milakov and Gimelshein 2018, arXiv:1805.02867), and 16 blocks make a part; parts are added in
 * order. Prompts and decodes run the same functions, so a token that is computed again in a prompt keeps its bits.
 *
 * Lines, each a query and one of its heads, that share a key/value head meet a block of it together. */

#include "lines.h"
#include "workers.h"

#define PART 512

/* Neighbouring queries of a row and the `group` heads of each that share a key/value head. */
struct tile {
    const float *q;
    size_t stride, queries, group, position, window;
    float scale;
};

INLINE size_t first_seen(const struct tile *tile, size_t query) {
    const size_t end = tile->position + query + 1;
    return tile->window && end > tile->window ? end - tile->window : 0;
}

INLINE size_t whole_lines(size_t lines) { return (lines + LINES - 1) / LINES * LINES; }

/* Floats that a thread needs for `count` heads. */
INLINE size_t room_size(const struct pool *pool, size_t count, size_t lines) {
    return (2 * TOKENS + count * whole_lines(lines)) * pool->filled;
}

/* Put numbers of the queries of a head as they are multiplied: those of LINES lines side by side. */
static void lay_queries(const struct tile *tile, size_t head, const struct pool *pool, size_t lines, float *room) {
    const size_t width = pool->width;
    for (size_t line = 0; line < lines; line++) {
        const float *q = tile->q + line / tile->group * tile->stride + (head * tile->group + line % tile->group) * width;
        float *to = room + line / LINES * LINES * pool->filled;
#if HAVE_DIGITS
        if (pool->kind == INT8) {
            const struct digits digits = digits_in(to, LINES, width);
            lay_digits(q, width, line % LINES, &digits);
            continue;
        }
#endif
        to += line % LINES;
        for (size_t d = 0; d < width; d++) to[d * LINES] = q[d];
    }
}

/* `count` lines of a tile, from line `first` on, as they see a block that begins at position `start`. */
static void find_lines(const struct pool *pool, const struct tile *tile, const float *q, size_t first, size_t count,
                       size_t start, float *states, struct lines *lines) {
    size_t query = first / tile->group, head = first % tile->group;
    lines->count = count, lines->scale = tile->scale * LOG2_E, lines->whole = 1, lines->q = q + first * pool->filled;
    for (size_t i = 0; i < count; i++) {
        const size_t seen = first_seen(tile, query), past = tile->position + query + 1;
        const size_t from = seen > start ? seen - start : 0, to = past > start ? past - start : 0;
        lines->states[i] = states + (first + i) * state_size(pool->filled);
        lines->sights[i] = (struct sight){from, to < TOKENS ? to : TOKENS};
        lines->whole = lines->whole && from == 0 && to >= TOKENS;
        if (++head == tile->group) head = 0, query++;
    }
}

/* All lines of a tile meet a block, of which the first ones ask for what comes next. */
static void meet_all(const struct pool *pool, const struct tile *tile, const float *q, size_t count,
                     const struct block *block, size_t start, float *states, struct ahead ahead) {
    struct lines lines;
    for (size_t line = 0; line < count; line += LINES) {
        find_lines(pool, tile, q, line, count - line < LINES ? count - line : LINES, start, states, &lines);
        meet(&lines, pool, block, ahead);
        ahead.keys = ahead.values = NULL;
    }
}

/* All lines of a tile of each of `count` heads from `head` on, over tokens [start, end) of their row, which are of one
 * part; the part that comes next, up to `past`, is begun to be asked for. The heads of a token are side by side: where
 * all take turns, memory is read in order. */
static void attend_part(const struct pool *pool, const struct row *row, size_t head, size_t count,
                        const struct tile *tile, size_t start, size_t end, size_t past, float *states, float *room) {
    const size_t lines = tile->queries * tile->group, size = state_size(pool->filled), seen = first_seen(tile, 0);
    if (seen > start) start = seen;
    struct block block;
    struct places places[2];
    const size_t bytes = head_bytes(pool);
    size_t own = 0;
    find_places(pool, row, start / TOKENS * TOKENS, start, end, &places[own]);
    ask_all(pool, &places[own], head * bytes, count * bytes);
    for (size_t line = 0; line < count * lines; line++) {
        memset(states + line * size, 0, size * sizeof *states);
        states[line * size + pool->filled] = -INFINITY;
    }
    float *q = room + 2 * TOKENS * pool->filled;
    for (size_t h = 0; h < count; h++) lay_queries(tile, h, pool, lines, q + h * whole_lines(lines) * pool->filled);
    for (size_t at = start / TOKENS * TOKENS; at < end; at += TOKENS, own = !own) {
        const size_t from = at > start ? at : start, to = at + TOKENS < end ? at + TOKENS : end;
        const int more = at + TOKENS < past;
        if (more) find_places(pool, row, at + TOKENS, at + TOKENS, past, &places[!own]);
        for (size_t h = 0; h < count; h++) {
            struct ahead ahead = {&places[!own], NULL, NULL, count, bytes, h * TOKENS / count, h * TOKENS % count};
            if (more) ahead.keys = pool->keys + head * bytes, ahead.values = pool->values + head * bytes;
            read_block(pool, &places[own], head + h, from - at, to - at, &ahead, &block, room);
            meet_all(pool, tile, q + h * whole_lines(lines) * pool->filled, lines, &block, at, states + h * lines * size,
                     ahead);
        }
    }
}

/* Add the state of a later part; one that saw nothing changes nothing. */
static void add_part(float *total, const float *state, size_t filled) {
    if (state[filled + 1] == 0) return;
    if (total[filled + 1] == 0) {
        memcpy(total, state, state_size(filled) * sizeof *total);
        return;
    }
    const float highest = total[filled] > state[filled] ? total[filled] : state[filled];
    const float old = power_of_two(spread(total[filled] - highest))[0];
    const float new = power_of_two(spread(state[filled] - highest))[0];
    for (size_t d = 0; d < filled; d += LANES)
        store(total + d, multiply_add(load(state + d), splat(new), load(total + d) * old));
    total[filled] = highest;
    total[filled + 1] = total[filled + 1] * old + state[filled + 1] * new;
}

INLINE void finish(const float *state, size_t width, float *out) {
    const float sum = state[fill(width) + 1];
    size_t d = 0;
    for (; d + LANES <= width; d += LANES) store(out + d, load(state + d) / sum);
    for (; d < width; d++) out[d] = state[d] / sum;
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
    float *room = job->room + worker * room_size(&job->pool, job->together, group);
    if (start < length)
        attend_part(&job->pool, &row, head, job->together, &tile, start, end, length, own, room);
    else
        for (size_t g = 0; g < job->together * group; g++) own[g * size + job->pool.filled + 1] = 0;
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
 * `states` holds B * parts * H * (D + 16) floats, `room` (64 + H + 7 * K) * D for each thread, with D filled up; both
 * begin with a cache line. */
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
    for (size_t line = 0; line < lines; line++) states[line * size + pool->filled + 1] = 0;
    for (size_t start = first_seen(tile, 0) / PART * PART; start < end; start += PART) {
        attend_part(pool, row, head, 1, tile, start, start + PART < end ? start + PART : end, end, part, room);
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
                job->room + worker * room_size(&job->pool, 1, job->together * group));
}

/* As above, but q and out are [T, H, D], the queries of row b are from `starts`[b] to before `starts`[b + 1], and they
 * are the last of its tokens. A tile has `together` queries at most. `states` holds for each thread
 * 2 * together * H / K * (D + 16) floats, `room` (64 + together * H / K + 7) * D. */
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
