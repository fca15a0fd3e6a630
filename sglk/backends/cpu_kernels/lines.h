/* Lines that meet a block of tokens. A line is a query and one of its heads. */

#ifndef SGLK_LINES_H
#define SGLK_LINES_H

#include "digits.h"

#define APART static __attribute__((noinline))

/* Lines at a time, LANES at most: as many as leave registers for what they meet. The functions that meet it are compiled
 * for each number of lines, so that sums stay in registers, and apart from all else, which would take some. */
#if WIDE == 16
#define LINES 8
#define FOR_LINES(function, count, ...)                                                                               \
    switch (count) {                                                                                                   \
    case 1: function(1, __VA_ARGS__); break;                                                                           \
    case 2: function(2, __VA_ARGS__); break;                                                                           \
    case 3: function(3, __VA_ARGS__); break;                                                                           \
    case 4: function(4, __VA_ARGS__); break;                                                                           \
    case 5: function(5, __VA_ARGS__); break;                                                                           \
    case 6: function(6, __VA_ARGS__); break;                                                                           \
    case 7: function(7, __VA_ARGS__); break;                                                                           \
    default: function(8, __VA_ARGS__);                                                                                 \
    }
#else
#define LINES 3
#define FOR_LINES(function, count, ...)                                                                               \
    switch (count) {                                                                                                   \
    case 1: function(1, __VA_ARGS__); break;                                                                           \
    case 2: function(2, __VA_ARGS__); break;                                                                           \
    default: function(3, __VA_ARGS__);                                                                                 \
    }
#endif

/* Powers of two cost less than those of e. */
#define LOG2_E 1.44269504f

/* Of a line: weighted sums, filled up, then the maximum and the sum of weights, all in whole cache lines. */
INLINE size_t state_size(size_t filled) { return filled + 16; }

/* Tokens of a block that a line sees. */
struct sight {
    size_t from, to;
};

struct lines {
    size_t count;
    float scale;
    /* Number d of all lines side by side, then number d + 1; or digits. */
    const float *q;
    float *states[LINES];
    struct sight sights[LINES];
    /* Whether each sees all tokens. */
    int whole;
    float shrinks[LANES] __attribute__((aligned(32)));
    /* Scores of the tokens of a block, and then their weights. */
    float scores[LINES][TOKENS] __attribute__((aligned(64)));
};

INLINE void score_lines(size_t count, struct lines *lines, const float *keys, size_t width, struct ahead ahead) {
    wides sums[LINES][VECTORS];
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) sums[i][v] = spread(0);
    for (size_t t = 0, d = 0; t < TOKENS; t++) {
        if (ahead.keys) ask(ahead.keys + next_head(&ahead), ahead.bytes);
        for (const size_t end = (t + 1) * width / TOKENS; d < end; d++) {
            wides key[VECTORS];
#pragma GCC unroll 4
            for (size_t v = 0; v < VECTORS; v++) key[v] = load_wide(keys + d * TOKENS + v * WIDE);
#pragma GCC unroll 8
            for (size_t i = 0; i < count; i++) {
                const wides value = spread(lines->q[d * LINES + i]);
#pragma GCC unroll 4
                for (size_t v = 0; v < VECTORS; v++) sums[i][v] = multiply_add_wide(key[v], value, sums[i][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) store_wide(lines->scores[i] + v * WIDE, sums[i][v] * lines->scale);
}

/* Each score is the sum over d from the first to the last. */
APART void score(struct lines *lines, const float *keys, size_t width, struct ahead ahead) {
    FOR_LINES(score_lines, lines->count, lines, keys, width, ahead)
}

#if HAVE_DIGITS
INLINE void score_some(size_t count, struct lines *lines, const struct block *block, size_t width, struct ahead ahead) {
    const struct digits q = digits_in((float *)lines->q, LINES, width);
    if (count < LINES) {
        score_digits(count, &q, 0, block, lines->scale, lines->scores, ahead);
        return;
    }
    /* All at once need more registers than there are. */
    score_digits(LINES / 2, &q, 0, block, lines->scale, lines->scores, ahead);
    ahead.keys = NULL;
    score_digits(LINES / 2, &q, LINES / 2, block, lines->scale, lines->scores, ahead);
}
#else
INLINE void multiply_scores(struct lines *lines, const float *scales) {
    for (size_t i = 0; i < lines->count; i++)
        for (size_t t = 0; t < TOKENS; t += WIDE)
            store_wide(lines->scores[i] + t, load_wide(lines->scores[i] + t) * load_wide(scales + t));
}
#endif

/* Scores of keys in int8. */
APART void score_bytes(struct lines *lines, const struct block *block, size_t width, struct ahead ahead) {
#if HAVE_DIGITS
    FOR_LINES(score_some, lines->count, lines, block, width, ahead)
#else
    score(lines, block->keys, width, ahead);
    multiply_scores(lines, block->key_scales);
#endif
}

/* Write a value over the scores of tokens that a line does not see. */
static void hide(struct lines *lines, float value) {
    for (size_t i = 0; i < lines->count; i++) {
        float *scores = lines->scores[i];
        const int32_t from = (int32_t)lines->sights[i].from, to = (int32_t)lines->sights[i].to;
        for (int32_t t = 0; t < TOKENS; t++) scores[t] = (t < from) | (t >= to) ? value : scores[t];
    }
}

INLINE floats lower_halves(floats a, floats b) { return __builtin_shuffle(a, b, (ints){0, 1, 2, 3, 8, 9, 10, 11}); }

INLINE floats upper_halves(floats a, floats b) { return __builtin_shuffle(a, b, (ints){4, 5, 6, 7, 12, 13, 14, 15}); }

/* The maximum of each register. */
INLINE floats largest_of_each(const floats x[LANES]) {
    floats halves[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) halves[i] = larger(lower_halves(x[i], x[i + 4]), upper_halves(x[i], x[i + 4]));
    turn_quads(halves);
    return larger(larger(halves[0], halves[2]), larger(halves[1], halves[3]));
}

/* The sum of each register, in the order of `sum_lanes`. */
INLINE floats sum_of_each(const floats x[LANES]) {
    floats halves[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) halves[i] = lower_halves(x[i], x[i + 4]) + upper_halves(x[i], x[i + 4]);
    turn_quads(halves);
    return (halves[0] + halves[2]) + (halves[1] + halves[3]);
}

/* Maxima and sums of each eighth of the tokens, whatever the width of registers in the same order. */
INLINE floats largest_of(const wides x[VECTORS]) {
#if WIDE == 16
    const wides most = larger_wide(x[0], x[1]);
    return larger(low_half(most), high_half(most));
#else
    return larger(larger(x[0], x[2]), larger(x[1], x[3]));
#endif
}

INLINE floats sum_of(const wides x[VECTORS]) {
#if WIDE == 16
    const wides sum = x[0] + x[1];
    return low_half(sum) + high_half(sum);
#else
    return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

/* Turn scores into weights. What there is once for each line is side by side in a register. */
INLINE void weigh_lines(size_t count, struct lines *lines, size_t filled) {
    floats rows[LANES], most = splat(0), sum = splat(0);
    float highest[LANES] __attribute__((aligned(32)));
    if (!lines->whole) hide(lines, -INFINITY);
#pragma GCC unroll 8
    for (size_t i = 0; i < LANES; i++) {
        rows[i] = splat(0);
        if (i >= count) continue;
        most[i] = lines->states[i][filled], sum[i] = lines->states[i][filled + 1];
        wides scores[VECTORS];
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) scores[v] = load_wide(lines->scores[i] + v * WIDE);
        rows[i] = largest_of(scores);
    }
    const floats now = larger(largest_of_each(rows), most);
    store(highest, now);
#if WIDE == 16
    store(lines->shrinks, low_half(power_of_two(two_floats(most - now, most - now))));
#else
    store(lines->shrinks, power_of_two(most - now));
#endif
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++) {
        wides weights[VECTORS];
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) {
            weights[v] = power_of_two(load_wide(lines->scores[i] + v * WIDE) - highest[i]);
            store_wide(lines->scores[i] + v * WIDE, weights[v]);
        }
        rows[i] = sum_of(weights);
    }
    if (!lines->whole) {
        hide(lines, 0);
        for (size_t i = 0; i < count; i++) {
            if (lines->sights[i].from >= lines->sights[i].to) lines->shrinks[i] = 1;
            wides weights[VECTORS];
            for (size_t v = 0; v < VECTORS; v++) weights[v] = load_wide(lines->scores[i] + v * WIDE);
            rows[i] = sum_of(weights);
        }
    }
    sum = sum * load(lines->shrinks) + sum_of_each(rows);
    for (size_t i = 0; i < count; i++) lines->states[i][filled] = now[i], lines->states[i][filled + 1] = sum[i];
}

APART void weigh(struct lines *lines, size_t filled) { FOR_LINES(weigh_lines, lines->count, lines, filled) }

/* Shrink `vectors` registers of the sums of each line, from number d on, and add the values of the block. */
INLINE void add_values(int kind, size_t count, size_t vectors, struct lines *lines, const struct block *block, size_t d,
                       struct ahead ahead) {
    wides sums[LINES][VECTORS];
    const size_t from = d * number_bytes(kind), bytes = vectors * WIDE * number_bytes(kind);
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < vectors; v++)
            sums[i][v] = load_wide(lines->states[i] + d + v * WIDE) * lines->shrinks[i];
    for (size_t t = block->from; t < block->to; t++) {
        if (ahead.values) ask(ahead.values + next_head(&ahead) + from, bytes);
        wides value[VECTORS];
#pragma GCC unroll 4
        for (size_t v = 0; v < vectors; v++)
            value[v] = load_wide_kind(block->values + block->offsets[t], d + v * WIDE, kind);
#pragma GCC unroll 8
        for (size_t i = 0; i < count; i++) {
            const wides weight = spread(lines->scores[i][t]);
#pragma GCC unroll 4
            for (size_t v = 0; v < vectors; v++) sums[i][v] = multiply_add_wide(value[v], weight, sums[i][v]);
        }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < vectors; v++) store_wide(lines->states[i] + d + v * WIDE, sums[i][v]);
}

INLINE void add_lines(size_t count, int kind, struct lines *lines, const struct block *block, size_t filled,
                      struct ahead ahead) {
    size_t d = 0;
    for (; d + VECTORS * WIDE <= filled; d += VECTORS * WIDE)
        add_values(kind, count, VECTORS, lines, block, d, ahead);
    for (; d < filled; d += WIDE) add_values(kind, count, 1, lines, block, d, ahead);
}

APART void add_all(struct lines *lines, const struct block *block, size_t filled, struct ahead ahead) {
    switch (block->kind) {
    case FP16: FOR_LINES(add_lines, lines->count, FP16, lines, block, filled, ahead) break;
    case BF16: FOR_LINES(add_lines, lines->count, BF16, lines, block, filled, ahead) break;
    case INT8: FOR_LINES(add_lines, lines->count, INT8, lines, block, filled, ahead) break;
    default: FOR_LINES(add_lines, lines->count, FP32, lines, block, filled, ahead)
    }
}

#if HAVE_DIGITS
INLINE void add_vectors(size_t count, size_t vectors, const struct lines *lines, const struct weights *weights,
                        const struct block *block, size_t filled, size_t d, struct ahead ahead) {
    if (count < LINES) {
        add_weighted(count, 0, vectors, weights, lines->states, lines->shrinks, block->values, filled, d, ahead);
        return;
    }
    add_weighted(LINES / 2, 0, vectors, weights, lines->states, lines->shrinks, block->values, filled, d, ahead);
    ahead.values = NULL;
    add_weighted(LINES / 2, LINES / 2, vectors, weights, lines->states, lines->shrinks, block->values, filled, d, ahead);
}

INLINE void add_some(size_t count, const struct lines *lines, const struct weights *weights, const struct block *block,
                     size_t filled, struct ahead ahead) {
    size_t d = 0;
    for (; d + VECTORS * WIDE <= filled; d += VECTORS * WIDE, ahead.values = NULL)
        add_vectors(count, VECTORS, lines, weights, block, filled, d, ahead);
    if (d < filled) add_vectors(count, 1, lines, weights, block, filled, d, ahead);
}

APART void put_weights(struct lines *lines, const struct block *block, struct weights *weights) {
    uint32_t seen[LINES];
    for (size_t i = 0; i < lines->count; i++) {
        const struct sight sight = lines->sights[i];
        seen[i] = sight.from < sight.to ? (uint32_t)((1ull << sight.to) - (1ull << sight.from)) : 0;
    }
    lay_weights(lines->count, lines->scores, seen, block->value_scales, weights);
}

APART void add_digits(struct lines *lines, const struct weights *weights, const struct block *block, size_t filled,
                      struct ahead ahead) {
    FOR_LINES(add_some, lines->count, lines, weights, block, filled, ahead)
}
#endif

/* Add values in int8. */
static void add_bytes(struct lines *lines, const struct block *block, size_t filled, struct ahead ahead) {
#if HAVE_DIGITS
    struct weights weights;
    put_weights(lines, block, &weights);
    add_digits(lines, &weights, block, filled, ahead);
#else
    multiply_scores(lines, block->value_scales);
    if (!lines->whole) hide(lines, 0);
    add_all(lines, block, filled, ahead);
#endif
}

/* Whether a line does not see all tokens of a block. */
static int sees_less(const struct lines *lines, const struct block *block) {
    for (size_t i = 0; i < lines->count; i++)
        if (lines->sights[i].from > block->from || lines->sights[i].to < block->to) return 1;
    return 0;
}

APART int all_finite(const struct block *block, size_t filled) {
    wides wrong = spread(0);
    for (size_t t = block->from; t < block->to; t++)
        for (size_t d = 0; d < filled; d += WIDE)
            wrong += load_wide_kind(block->values + block->offsets[t], d, block->kind) * 0;
    int finite = 1;
    for (size_t lane = 0; lane < WIDE; lane++) finite = finite && wrong[lane] == 0;
    return finite;
}

/* Each line adds the values of what it sees alone, since a weight of 0 makes NaN of an infinite one. */
static void add_seen(const struct lines *lines, const struct block *block, size_t filled) {
    const struct ahead nothing = {0};
    for (size_t i = 0; i < lines->count; i++) {
        struct block seen = *block;
        if (lines->sights[i].from > seen.from) seen.from = lines->sights[i].from;
        if (lines->sights[i].to < seen.to) seen.to = lines->sights[i].to;
        struct lines one = {.count = 1, .states = {lines->states[i]}, .shrinks = {lines->shrinks[i]}};
        memcpy(one.scores[0], lines->scores[i], sizeof one.scores[0]);
        add_all(&one, &seen, filled, nothing);
    }
}

/* Lines meet a block, while what comes next is asked for. */
static void meet(struct lines *lines, const struct pool *pool, const struct block *block, struct ahead ahead) {
    if (pool->kind == INT8)
        score_bytes(lines, block, pool->width, ahead);
    else
        score(lines, block->keys, pool->width, ahead);
    weigh(lines, pool->filled);
    if (pool->kind == INT8) {
        add_bytes(lines, block, pool->filled, ahead);
        return;
    }
    if (!lines->whole && sees_less(lines, block) && !all_finite(block, pool->filled))
        add_seen(lines, block, pool->filled);
    else
        add_all(lines, block, pool->filled, ahead);
}

#endif
