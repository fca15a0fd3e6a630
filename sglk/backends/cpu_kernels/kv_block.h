/* Keys and values of a block of tokens, as attention reads them from a paged pool. */

#ifndef SGLK_KV_BLOCK_H
#define SGLK_KV_BLOCK_H

#include "vectors.h"

#define TOKENS 32

struct pool {
    int kind;
    const void *keys, *values;
    const float *key_scales, *value_scales;
    /* `filled` is D filled up with zeros to whole registers. */
    size_t heads, width, filled;
};

INLINE size_t fill(size_t width) { return (width + LANES - 1) / LANES * LANES; }

struct row {
    const int64_t *pages;
    size_t page_size;
};

/* Tokens [from, to) of one block: keys [D, TOKENS] in fp32, zeros where there is no token; values a row each, filled
 * up. */
struct block {
    size_t from, to;
    float *keys;
    /* Of `kind`: fp32, or what costs no more than a load to widen. */
    int kind;
    const void *values[TOKENS];
    float value_scales[TOKENS];
    /* Places of what the next block has, which are asked for while this one is computed; absent where there is none. */
    const size_t *next;
};

/* Into the second cache: the first one has no room for two blocks. */
INLINE void ask(const void *pool, size_t at, size_t numbers, size_t size) {
#pragma GCC unroll 4
    for (size_t byte = 0; byte < numbers * size; byte += 64)
        __builtin_prefetch((const char *)pool + at * size + byte, 0, 2);
}

INLINE size_t number_bytes(int kind) { return kind == FP32 ? 4 : kind == FP16 || kind == BF16 ? 2 : 1; }

/* As `load_kind`, of `left` numbers that a head has from there on. */
INLINE floats load_left(const void *from, size_t at, size_t left, int kind) {
    if (left >= LANES) return load_kind(from, at, kind);
    const size_t size = number_bytes(kind);
    char numbers[4 * LANES] = {0};
    memcpy(numbers, (const char *)from + at * size, left * size);
    return load_kind(numbers, 0, kind);
}

INLINE void transpose(floats x[LANES]) {
    floats a[LANES], b[LANES];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        a[i] = __builtin_shuffle(x[i], x[i + 1], (ints){0, 8, 1, 9, 4, 12, 5, 13});
        a[i + 1] = __builtin_shuffle(x[i], x[i + 1], (ints){2, 10, 3, 11, 6, 14, 7, 15});
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        b[i] = __builtin_shuffle(a[i], a[i + 2], (ints){0, 1, 8, 9, 4, 5, 12, 13});
        b[i + 1] = __builtin_shuffle(a[i], a[i + 2], (ints){2, 3, 10, 11, 6, 7, 14, 15});
        b[i + 2] = __builtin_shuffle(a[i + 1], a[i + 3], (ints){0, 1, 8, 9, 4, 5, 12, 13});
        b[i + 3] = __builtin_shuffle(a[i + 1], a[i + 3], (ints){2, 3, 10, 11, 6, 7, 14, 15});
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        x[i] = __builtin_shuffle(b[i], b[i + 4], (ints){0, 1, 2, 3, 8, 9, 10, 11});
        x[i + 4] = __builtin_shuffle(b[i], b[i + 4], (ints){4, 5, 6, 7, 12, 13, 14, 15});
    }
}

/* Numbers [d, d + LANES) of eight tokens, a register for each d. */
INLINE void turn_keys(int kind, int whole, const struct pool *pool, const size_t *places, const struct block *block,
                      size_t t, size_t d) {
    floats x[LANES];
    if (block->next) {
        /* There are as many squares of eight numbers of eight tokens as there are pieces of 64 numbers. */
        const size_t next = block->next[t + LANES * d / pool->width];
        ask(pool->keys, next * pool->width + LANES * d % pool->width, LANES * LANES, number_bytes(kind));
    }
#pragma GCC unroll 8
    for (size_t lane = 0; lane < LANES; lane++) {
        if (whole) {
            x[lane] = load_kind(pool->keys, places[t + lane] * pool->width + d, kind);
        } else {
            const int there = t + lane >= block->from && t + lane < block->to;
            const size_t at = there ? places[t + lane] * pool->width + d : 0;
            x[lane] = there ? load_left(pool->keys, at, pool->width - d, kind) : splat(0);
        }
        if (kind == INT8 && t + lane >= block->from && t + lane < block->to)
            x[lane] *= pool->key_scales[places[t + lane]];
    }
    transpose(x);
#pragma GCC unroll 8
    for (size_t lane = 0; lane < LANES; lane++) store(block->keys + (d + lane) * TOKENS + t, x[lane]);
}

INLINE void read_keys(int kind, const struct pool *pool, const size_t *places, struct block *block) {
    for (size_t t = 0; t < TOKENS; t += LANES) {
        size_t d = 0;
        if (t >= block->from && t + LANES <= block->to)
            for (; d + LANES <= pool->width; d += LANES) turn_keys(kind, 1, pool, places, block, t, d);
        for (; d < pool->width; d += LANES) turn_keys(kind, 0, pool, places, block, t, d);
    }
}

INLINE void read_values(int kind, const struct pool *pool, const size_t *places, struct block *block, float *room) {
    const int kept = (kind == FP32 || kind == FP16 || kind == BF16) && pool->width == pool->filled;
    block->kind = kept ? kind : FP32;
    for (size_t t = block->from; t < block->to; t++) {
        const size_t at = places[t] * pool->width;
        if (kept) {
            block->values[t] = (const char *)pool->values + at * number_bytes(kind);
            continue;
        }
        float *to = room + t * pool->filled;
        for (size_t d = 0; d < pool->width; d += LANES)
            store(to + d, load_left(pool->values, at + d, pool->width - d, kind));
        block->values[t] = to;
        if (kind == INT8) block->value_scales[t] = pool->value_scales[places[t]];
    }
}

INLINE void read_kind(int kind, const struct pool *pool, const size_t *places, struct block *block, float *room) {
    read_keys(kind, pool, places, block);
    read_values(kind, pool, places, block, room);
}

/* Put down the slots of the tokens of a block that begins at position `start`, of a part that ends before `end`. */
INLINE void find_slots(const struct row *row, size_t start, size_t end, size_t *slots) {
    size_t page = start / row->page_size, slot = start % row->page_size;
    for (size_t t = 0; t < TOKENS; t++) {
        slots[t] = start + t < end ? (size_t)row->pages[page] * row->page_size + slot : slots[0];
        if (++slot == row->page_size) page++, slot = 0;
    }
}

/* Read tokens [from, to) of the block whose tokens are at `places`; `room` holds 2 * TOKENS * D floats. */
static void read_block(const struct pool *pool, const size_t *places, size_t from, size_t to, struct block *block,
                       float *room) {
    block->from = from, block->to = to, block->keys = room;
    float *rest = room + TOKENS * pool->filled;
    switch (pool->kind) {
    case FP32: read_kind(FP32, pool, places, block, rest); break;
    case FP16: read_kind(FP16, pool, places, block, rest); break;
    case BF16: read_kind(BF16, pool, places, block, rest); break;
    case E4M3: read_kind(E4M3, pool, places, block, rest); break;
    case E5M2: read_kind(E5M2, pool, places, block, rest); break;
    default: read_kind(INT8, pool, places, block, rest);
    }
}

#endif
