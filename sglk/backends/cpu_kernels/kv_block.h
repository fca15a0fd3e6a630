/* Keys and values of a block of tokens, as attention reads them from a paged pool. */

#ifndef SGLK_KV_BLOCK_H
#define SGLK_KV_BLOCK_H

#include "wide.h"

#define TOKENS 32
#define VECTORS (TOKENS / WIDE)
/* Bytes of a token's numbers that are turned at a time. */
#define SQUARE 32

/* Whether queries and weights meet keys and values in int8 as digits. */
#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && WIDE == 16
#define HAVE_DIGITS 1
#else
#define HAVE_DIGITS 0
#endif

INLINE size_t number_bytes(int kind) { return kind == FP32 ? 4 : kind == FP16 || kind == BF16 ? 2 : 1; }

struct pool {
    int kind;
    const char *keys, *values;
    const float *key_scales, *value_scales;
    /* `filled` is D filled up with zeros to whole registers. */
    size_t heads, width, filled;
};

INLINE size_t fill(size_t width) { return (width + 15) / 16 * 16; }

INLINE size_t head_bytes(const struct pool *pool) { return pool->width * number_bytes(pool->kind); }

struct row {
    const int64_t *pages;
    size_t page_size;
};

/* Where tokens are in a pool: their slots, and the bytes before each. */
struct places {
    size_t slots[TOKENS], bytes[TOKENS];
};

/* Put down the places of a block of tokens that begins at position `start`; those before `from` and from `end` on, which
 * are not to be read, are given that of `from`. */
INLINE void find_places(const struct pool *pool, const struct row *row, size_t start, size_t from, size_t end,
                        struct places *places) {
    const size_t first = from - start, past = end - start < TOKENS ? end - start : TOKENS;
    size_t page = from / row->page_size, slot = from % row->page_size;
    for (size_t t = first; t < past; page++, slot = 0) {
        const size_t begin = (size_t)row->pages[page] * row->page_size + slot, left = row->page_size - slot;
        const size_t next = past - t < left ? past : t + left;
        for (size_t i = 0; t < next; i++, t++) places->slots[t] = begin + i;
    }
    for (size_t t = 0; t < first; t++) places->slots[t] = places->slots[first];
    for (size_t t = past; t < TOKENS; t++) places->slots[t] = places->slots[first];
    const size_t token_bytes = pool->heads * head_bytes(pool);
    for (size_t t = 0; t < TOKENS; t++) places->bytes[t] = places->slots[t] * token_bytes;
}

/* A block that comes next, of which as many heads are asked for while one is computed: all `heads` of a token, then those
 * of the token after it, from `token` and `head` on. Keys and values are those of the first of its heads, absent where
 * they are not to be asked for. */
struct ahead {
    const struct places *places;
    const char *keys, *values;
    size_t heads, bytes, token, head;
};

/* Return how far the next head is from the first. */
INLINE size_t next_head(struct ahead *ahead) {
    const size_t at = ahead->places->bytes[ahead->token] + ahead->head * ahead->bytes;
    if (++ahead->head == ahead->heads) ahead->head = 0, ahead->token++;
    return at;
}

/* Into the second cache: the first one has no room for two blocks. */
INLINE void ask(const char *from, size_t bytes) {
#pragma GCC unroll 4
    for (size_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(from + byte, 0, 2);
}

/* Ask for heads of `bytes` bytes, `from` bytes from the first, of a block at once: of the first of a part. */
INLINE void ask_all(const struct pool *pool, const struct places *places, size_t from, size_t bytes) {
    for (size_t t = 0; t < TOKENS; t++) ask(pool->keys + from + places->bytes[t], bytes);
    for (size_t t = 0; t < TOKENS; t++) ask(pool->values + from + places->bytes[t], bytes);
}

/* Tokens [from, to) of a block of one head: keys [D, TOKENS] in fp32, values each `offsets` from the first, filled up.
 * For digits keys are [D / 4, TOKENS] of four numbers, and values [TOKENS / 4, D] of four tokens, filled up. What others
 * have there means nothing. */
struct block {
    size_t from, to;
    float *keys;
    /* Of `kind`: fp32, or what costs little more than a load to widen. */
    int kind;
    const char *values;
    const size_t *offsets;
    size_t offsets_in_room[TOKENS];
    /* Of integers, else absent. */
    float key_scales[TOKENS], value_scales[TOKENS];
};

/* Of each two halves number `part`, widened. */
INLINE floats widen_half(words x, int part) {
#if defined(__AVX2__) && defined(__F16C__)
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i apart = _mm256_shuffle_epi8((__m256i)x, _mm256_broadcastsi128_si256(order));
    const __m256i parts = _mm256_permute4x64_epi64(apart, 0xd8);
    return (floats)_mm256_cvtph_ps(part ? _mm256_extracti128_si256(parts, 1) : _mm256_castsi256_si128(parts));
#else
    return widen_halves((ints)(part ? x >> 16 : x & 0xffff));
#endif
}

/* Of each four bytes number `part`, widened. */
INLINE floats widen(floats four_bytes, int part, int kind) {
    const words x = (words)four_bytes;
    if (kind == FP32) return four_bytes;
    if (kind == BF16) return (floats)(part ? x & 0xffff0000 : x << 16);
    if (kind == FP16) return widen_half(x, part);
    if (kind == INT8) return to_floats((ints)(x << (24 - 8 * part)) >> 24);
    const ints bits = (ints)(x >> 8 * part & 0xff);
    return kind == E4M3 ? widen_e4m3(bits) : widen_e5m2(bits);
}

/* Four numbers of one token and four of another. */
INLINE floats two_quads(const char *low, const char *high) {
#ifdef __AVX2__
    const __m256 x = _mm256_castps128_ps256(_mm_loadu_ps((const float *)low));
    return (floats)_mm256_insertf128_ps(x, _mm_loadu_ps((const float *)high), 1);
#else
    floats x;
    memcpy(&x, low, 16);
    memcpy((char *)&x + 16, high, 16);
    return x;
#endif
}

/* Turn the lower and the upper halves, each a square. */
INLINE void turn_quads(floats x[4]) {
    const floats a = __builtin_shuffle(x[0], x[1], (ints){0, 8, 1, 9, 4, 12, 5, 13});
    const floats b = __builtin_shuffle(x[0], x[1], (ints){2, 10, 3, 11, 6, 14, 7, 15});
    const floats c = __builtin_shuffle(x[2], x[3], (ints){0, 8, 1, 9, 4, 12, 5, 13});
    const floats d = __builtin_shuffle(x[2], x[3], (ints){2, 10, 3, 11, 6, 14, 7, 15});
    x[0] = __builtin_shuffle(a, c, (ints){0, 1, 8, 9, 4, 5, 12, 13});
    x[1] = __builtin_shuffle(a, c, (ints){2, 3, 10, 11, 6, 7, 14, 15});
    x[2] = __builtin_shuffle(b, d, (ints){0, 1, 8, 9, 4, 5, 12, 13});
    x[3] = __builtin_shuffle(b, d, (ints){2, 3, 10, 11, 6, 7, 14, 15});
}

/* Turn `count` numbers of eight tokens at most, which are a square, into a row of keys for each number. */
INLINE void turn_square(int kind, size_t count, const char *from, const size_t *places, float *keys) {
    const size_t in_four = 4 / number_bytes(kind);
#pragma GCC unroll 2
    for (size_t half = 0; half < 2; half++, from += SQUARE / 2) {
        floats x[4];
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) x[i] = two_quads(from + places[i], from + places[i + 4]);
        turn_quads(x);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++)
#pragma GCC unroll 4
            for (size_t part = 0; part < in_four; part++) {
                const size_t number = (4 * half + i) * in_four + part;
                if (number < count) store(keys + number * TOKENS, widen(x[i], part, kind));
            }
    }
}

/* Turn the keys of a block, `bytes` bytes each. */
INLINE void read_keys(int kind, const char *from, const size_t *places, size_t bytes, float *keys) {
    const size_t size = number_bytes(kind), numbers = SQUARE / size, rest_bytes = bytes % SQUARE;
    for (size_t t = 0; t < TOKENS; t += LANES) {
        const char *at = from;
        float *to = keys + t;
        for (size_t left = bytes; left >= SQUARE; left -= SQUARE, at += SQUARE, to += numbers * TOKENS)
            turn_square(kind, numbers, at, places + t, to);
        if (!rest_bytes) continue;
        char rest[LANES][SQUARE] = {{0}};
        size_t places_in_rest[LANES];
        for (size_t lane = 0; lane < LANES; lane++) {
            memcpy(rest[lane], at + places[t + lane], rest_bytes);
            places_in_rest[lane] = lane * SQUARE;
        }
        turn_square(kind, (rest_bytes + size - 1) / size, rest[0], places_in_rest, to);
    }
}

/* As `load_kind`, of `left` numbers that a head has from there on. */
INLINE floats load_left(const char *from, size_t left, int kind) {
    if (left >= LANES) return load_kind(from, 0, kind);
    char numbers[4 * LANES] = {0};
    memcpy(numbers, from, left * number_bytes(kind));
    return load_kind(numbers, 0, kind);
}

/* Widen values into `room`, filled up, and ask for the next ones. */
INLINE void widen_values(int kind, const struct pool *pool, struct ahead *ahead, struct block *block, float *room) {
    struct ahead own = *ahead;
    for (size_t t = block->from; t < block->to; t++) {
        if (own.values) ask(own.values + next_head(&own), own.bytes);
        const char *from = block->values + block->offsets[t];
        float *to = room + t * pool->filled;
        for (size_t d = 0; d < pool->width; d += LANES)
            store(to + d, load_left(from + d * number_bytes(kind), pool->width - d, kind));
        block->offsets_in_room[t] = t * pool->filled * sizeof *room;
    }
    block->kind = FP32, block->values = (const char *)room, block->offsets = block->offsets_in_room;
    ahead->values = NULL;
}

#if HAVE_DIGITS
INLINE __m256i load_square(const char *from, size_t left) {
    if (left >= SQUARE) return _mm256_loadu_si256((const __m256i *)from);
    return _mm256_maskz_loadu_epi8((1u << left) - 1, from);
}

INLINE __m512i two_squares(const char *low, const char *high, size_t left) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load_square(low, left)), load_square(high, left), 1);
}

/* Put the values of four tokens side by side, number by number, filled up. */
INLINE void turn_values(const struct pool *pool, const char *from, const size_t *places, int32_t *values) {
    const __m512i low = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(4));
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    for (size_t t = 0; t < TOKENS; t += 4, places += 4)
        for (size_t d = 0; d < pool->width; d += SQUARE) {
            const size_t left = pool->width - d;
            const __m512i a = two_squares(from + places[0] + d, from + places[1] + d, left);
            const __m512i b = two_squares(from + places[2] + d, from + places[3] + d, left);
            int32_t *to = values + t / 4 * pool->filled + d;
            _mm512_storeu_si512(to, _mm512_shuffle_epi8(_mm512_permutex2var_epi32(a, low, b), bytes));
            if (left > WIDE)
                _mm512_storeu_si512(to + WIDE, _mm512_shuffle_epi8(_mm512_permutex2var_epi32(a, high, b), bytes));
        }
}
#endif

INLINE void read_scales(const float *from, const size_t *slots, size_t heads, float *scales) {
    for (size_t t = 0; t < TOKENS; t++) scales[t] = from[slots[t] * heads];
}

INLINE void read_kind(int kind, const struct pool *pool, const struct places *places, size_t head, struct ahead *ahead,
                      struct block *block, float *room) {
    const size_t start = head * pool->width * number_bytes(kind);
    /* What meets digits is turned four together, as numbers of four bytes are. */
    const int turned = kind == INT8 && HAVE_DIGITS ? FP32 : kind;
    read_keys(turned, pool->keys + start, places->bytes, head_bytes(pool), block->keys);
    block->kind = kind, block->values = pool->values + start, block->offsets = places->bytes;
#if HAVE_DIGITS
    if (kind == INT8) {
        turn_values(pool, block->values, places->bytes, (int32_t *)room);
        block->values = (const char *)room;
    } else
#endif
    if (kind == E4M3 || kind == E5M2 || pool->width < pool->filled) widen_values(kind, pool, ahead, block, room);
    if (kind != INT8) return;
    read_scales(pool->key_scales + head, places->slots, pool->heads, block->key_scales);
    read_scales(pool->value_scales + head, places->slots, pool->heads, block->value_scales);
}

/* Read tokens [from, to) of a block of one head; `room` holds 2 * TOKENS * D floats. */
static void read_block(const struct pool *pool, const struct places *places, size_t head, size_t from, size_t to,
                       struct ahead *ahead, struct block *block, float *room) {
    block->from = from, block->to = to, block->keys = room;
    float *rest = room + TOKENS * pool->filled;
    switch (pool->kind) {
    case FP32: read_kind(FP32, pool, places, head, ahead, block, rest); break;
    case FP16: read_kind(FP16, pool, places, head, ahead, block, rest); break;
    case BF16: read_kind(BF16, pool, places, head, ahead, block, rest); break;
    case E4M3: read_kind(E4M3, pool, places, head, ahead, block, rest); break;
    case E5M2: read_kind(E5M2, pool, places, head, ahead, block, rest); break;
    default: read_kind(INT8, pool, places, head, ahead, block, rest);
    }
}

#endif
