/* One query a row over keys and values in pages, without gathering them.
 *
 * A row's tokens are taken in parts of 512, each summed from its first token to its last in blocks of 32 with a running
 * maximum (Milakov and Gimelshein 2018, arXiv:1805.02867), and the parts are added in order, so that the result depends
 * neither on the other rows nor on the number of threads. */

#include "vectors.h"

#define PART 512
#define TOKENS 32
#define WIDEST 256

struct pool {
    const void *keys, *values;
    const float *key_scales, *value_scales;
    size_t heads, width;
};

struct row {
    const int64_t *pages;
    size_t page_size, first, length;
};

INLINE size_t slot_of(const struct row *row, size_t token) {
    return (size_t)row->pages[token / row->page_size] * row->page_size + token % row->page_size;
}

INLINE float dot(const float *q, const void *keys, size_t at, size_t width, int kind) {
    floats even = splat(0), odd = splat(0);
    size_t d = 0;
    for (; d + 16 <= width; d += 16) {
        even = multiply_add(load(q + d), load_kind(keys, at + d, kind), even);
        odd = multiply_add(load(q + d + 8), load_kind(keys, at + d + 8, kind), odd);
    }
    if (d < width) even = multiply_add(load(q + d), load_kind(keys, at + d, kind), even);
    return sum_lanes(even + odd);
}

/* Add p[token] * value to sums[D]. */
INLINE void add_values(float *sums, const float *p, const struct pool *pool, const size_t *places, size_t count,
                       int kind) {
    size_t d = 0;
    for (; d + 32 <= pool->width; d += 32) {
        floats a = load(sums + d), b = load(sums + d + 8), c = load(sums + d + 16), e = load(sums + d + 24);
        for (size_t t = 0; t < count; t++) {
            const floats weight = splat(p[t]);
            const size_t at = places[t] * pool->width + d;
            a = multiply_add(weight, load_kind(pool->values, at, kind), a);
            b = multiply_add(weight, load_kind(pool->values, at + 8, kind), b);
            c = multiply_add(weight, load_kind(pool->values, at + 16, kind), c);
            e = multiply_add(weight, load_kind(pool->values, at + 24, kind), e);
        }
        store(sums + d, a);
        store(sums + d + 8, b);
        store(sums + d + 16, c);
        store(sums + d + 24, e);
    }
    for (; d < pool->width; d += 8) {
        floats a = load(sums + d);
        for (size_t t = 0; t < count; t++)
            a = multiply_add(splat(p[t]), load_kind(pool->values, places[t] * pool->width + d, kind), a);
        store(sums + d, a);
    }
}

/* One block of tokens for one query head; `state` is the maximum, the sum of exponentials, and D weighted sums. */
INLINE void attend_block(float *state, const float *q, const struct pool *pool, const size_t *places, size_t count,
                         float scale, int kind) {
    float scores[TOKENS], highest = state[0];
    for (size_t t = 0; t < count; t++) {
        scores[t] = dot(q, pool->keys, places[t] * pool->width, pool->width, kind) * scale;
        if (kind == INT8) scores[t] *= pool->key_scales[places[t]];
        if (scores[t] > highest) highest = scores[t];
    }
    for (size_t t = count; t < TOKENS; t++) scores[t] = -INFINITY;
    floats sum = splat(0);
    for (size_t t = 0; t < TOKENS; t += LANES) {
        floats p = exponential(load(scores + t) - highest);
        store(scores + t, p);
        for (size_t lane = t; lane < t + LANES; lane++)
            if (lane >= count) scores[lane] = 0;
        sum += load(scores + t);
    }
    const float shrink = exponential(splat(state[0] - highest))[0];
    state[0] = highest;
    state[1] = state[1] * shrink + sum_lanes(sum);
    for (size_t d = 0; d < pool->width; d += LANES) store(state + 2 + d, load(state + 2 + d) * shrink);
    if (kind == INT8)
        for (size_t t = 0; t < count; t++) scores[t] *= pool->value_scales[places[t]];
    add_values(state + 2, scores, pool, places, count, kind);
}

INLINE void attend_part(int kind, const struct pool *pool, const struct row *row, size_t head, size_t group,
                        const float *q, float scale, size_t start, size_t end, float *states) {
    const size_t size = pool->width + 2;
    for (size_t g = 0; g < group; g++) {
        states[g * size] = -INFINITY;
        memset(states + g * size + 1, 0, (size - 1) * sizeof *states);
    }
    for (size_t from = start; from < end; from += TOKENS) {
        const size_t count = end - from < TOKENS ? end - from : TOKENS;
        size_t places[TOKENS];
        for (size_t t = 0; t < count; t++) places[t] = slot_of(row, from + t) * pool->heads + head;
        for (size_t g = 0; g < group; g++)
            attend_block(states + g * size, q + g * pool->width, pool, places, count, scale, kind);
    }
}

static void attend(int kind, const struct pool *pool, const struct row *row, size_t head, size_t group,
                   const float *q, float scale, size_t start, size_t end, float *states) {
    switch (kind) {
    case FP32: attend_part(FP32, pool, row, head, group, q, scale, start, end, states); break;
    case FP16: attend_part(FP16, pool, row, head, group, q, scale, start, end, states); break;
    case BF16: attend_part(BF16, pool, row, head, group, q, scale, start, end, states); break;
    default: attend_part(INT8, pool, row, head, group, q, scale, start, end, states);
    }
}

/* Add the states of a head's parts, which lie `stride` apart, and divide by the sum. */
static void merge(const float *states, size_t parts, size_t stride, size_t width, float *out) {
    float highest = -INFINITY, total = 0;
    for (size_t part = 0; part < parts; part++)
        if (states[part * stride] > highest) highest = states[part * stride];
    for (size_t d = 0; d < width; d++) out[d] = 0;
    for (size_t part = 0; part < parts; part++) {
        const float *state = states + part * stride;
        const float weight = parts == 1 ? 1 : exponential(splat(state[0] - highest))[0];
        total += weight * state[1];
        for (size_t d = 0; d < width; d += LANES)
            store(out + d, multiply_add(load(state + 2 + d), splat(weight), load(out + d)));
    }
    for (size_t d = 0; d < width; d++) out[d] /= total;
}

/* q and out are [B, H, D], rows of q `q_stride` floats apart; the pools are [S, K, D], their scales [S, K]; row b's
 * tokens [first[b], length[b]) are in the pages of line b of `table`, which has `columns`. `states` holds
 * B * ceil(most tokens of a row / 512) * H * (D + 2) floats. */
void sglk_attention_decode(int kind, const float *q, size_t q_stride, const void *keys, const void *values,
                           const float *key_scales, const float *value_scales, const int64_t *table, size_t columns,
                           size_t page_size, const int64_t *first, const int64_t *length, size_t rows, size_t heads,
                           size_t kv_heads, size_t width, float scale, float *out, float *states, size_t parts,
                           int threads) {
    const struct pool pool = {keys, values, key_scales, value_scales, kv_heads, width};
    const size_t group = heads / kv_heads, size = width + 2;
    const long tasks = (long)(rows * parts * kv_heads);
#pragma omp parallel num_threads(threads) if (threads > 1 && tasks > 1)
    {
#pragma omp for schedule(dynamic)
        for (long task = 0; task < tasks; task++) {
            const size_t b = task / (parts * kv_heads), part = task / kv_heads % parts, head = task % kv_heads;
            const struct row row = {table + b * columns, page_size, (size_t)first[b], (size_t)length[b]};
            const size_t start = row.first + part * PART;
            if (start >= row.length) continue;
            const size_t end = start + PART < row.length ? start + PART : row.length;
            float *own = states + ((b * parts + part) * heads + head * group) * size;
            attend(kind, &pool, &row, head, group, q + b * q_stride + head * group * width, scale, start, end, own);
        }
#pragma omp for schedule(static)
        for (long task = 0; task < (long)(rows * heads); task++) {
            const size_t b = task / heads, head = task % heads;
            const size_t own = (size_t)(length[b] - first[b] + PART - 1) / PART;
            merge(states + (b * parts * heads + head) * size, own, heads * size, width, out + (b * heads + head) * width);
        }
    }
}
