/* Queries and weights in digits, whose products with keys and values in int8 are sums of integers: keys and values are
 * multiplied as they are stored, four at a time, and nothing is rounded before the end.
 *
 * A number is an integer of 16 bits times a scale, in two digits of 8 bits, so it is rounded by about 2^-16 of the
 * largest number of its query, or of the largest weight that its line has in the block. Keys and values were rounded by
 * 2^-8 of theirs. Digits of queries have signs; weights are never negative, and theirs have none. */

#ifndef SGLK_DIGITS_H
#define SGLK_DIGITS_H

#include "kv_block.h"

#if HAVE_DIGITS
#define DIGITS 2
#define LARGEST (127 << 8 | 127)
#define WEIGHT_BITS 16
/* What keys are raised by: the processor multiplies unsigned bytes with signed ones. */
#define RAISED 128

/* Of `lines` lines side by side: digits [D / 4, DIGITS, lines], each four of a line; then where their sums start
 * [DIGITS, lines], and scales [lines]. */
struct digits {
    size_t lines, fours;
    int32_t *values, *starts;
    float *scales;
};

INLINE struct digits digits_in(float *room, size_t lines, size_t width) {
    const size_t fours = (width + 3) / 4;
    int32_t *values = (int32_t *)room, *starts = values + fours * DIGITS * lines;
    return (struct digits){lines, fours, values, starts, (float *)(starts + DIGITS * lines)};
}

INLINE __mmask16 first_of(size_t count) { return count < WIDE ? (1u << count) - 1 : 0xffff; }

/* Take the lowest digit off the numbers. */
INLINE __m512i take_digit(__m512i *numbers) {
    const __m512i digit = _mm512_srai_epi32(_mm512_slli_epi32(*numbers, 24), 24);
    *numbers = _mm512_srai_epi32(_mm512_sub_epi32(*numbers, digit), 8);
    return digit;
}

/* Put down line `line`, whose numbers are q [D]. */
static void lay_digits(const float *q, size_t width, size_t line, const struct digits *to) {
    __m512 most = _mm512_setzero_ps(), wrong = _mm512_setzero_ps();
    for (size_t d = 0; d < width; d += WIDE) {
        const __m512 x = _mm512_maskz_loadu_ps(first_of(width - d), q + d);
        most = _mm512_max_ps(most, _mm512_abs_ps(x));
        /* NaN where there is one, or an infinity. */
        wrong = _mm512_fmadd_ps(x, _mm512_setzero_ps(), wrong);
    }
    const float scale = _mm512_reduce_max_ps(most) / LARGEST + _mm512_reduce_add_ps(wrong);
    /* Below it the inverse is beyond what fp32 holds, and a score is as good as 0. */
    const __m512 inverse = _mm512_set1_ps(scale > 1e-37f ? 1 / scale : 0);
    __m512i sums[DIGITS] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (size_t d = 0; d < width; d += WIDE) {
        const __m512 x = _mm512_maskz_loadu_ps(first_of(width - d), q + d);
        __m512i numbers = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
        for (size_t digit = 0; digit < DIGITS; digit++) {
            const __m512i own = take_digit(&numbers);
            int32_t fours[4];
            _mm_storeu_si128((__m128i *)fours, _mm512_cvtepi32_epi8(own));
            for (size_t four = 0; four < 4 && d / 4 + four < to->fours; four++)
                to->values[((d / 4 + four) * DIGITS + digit) * to->lines + line] = fours[four];
            sums[digit] = _mm512_add_epi32(sums[digit], own);
        }
    }
    for (size_t digit = 0; digit < DIGITS; digit++)
        to->starts[digit * to->lines + line] = -RAISED * _mm512_reduce_add_epi32(sums[digit]);
    to->scales[line] = scale;
}

/* What digits come to. */
INLINE __m512 together(const __m512i digits[DIGITS]) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(digits[1], 8), digits[0]));
}

/* Scores of `count` lines from `first` on, 7 at most, over keys [D / 4, TOKENS] of four each. */
INLINE void score_digits(size_t count, const struct digits *q, size_t first, const struct block *block, float scale,
                         float (*scores)[TOKENS], struct ahead ahead) {
    __m512i sums[LANES][VECTORS][DIGITS];
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 2
        for (size_t digit = 0; digit < DIGITS; digit++)
            sums[i][0][digit] = sums[i][1][digit] = _mm512_set1_epi32(q->starts[digit * q->lines + first + i]);
    const __m512i raised = _mm512_set1_epi8((char)RAISED);
    for (size_t t = 0, four = 0; t < TOKENS; t++) {
        if (ahead.keys) ask(ahead.keys + next_head(&ahead), ahead.bytes);
        for (const size_t end = (t + 1) * q->fours / TOKENS; four < end; four++) {
            const __m512i low = _mm512_xor_si512(_mm512_loadu_si512(block->keys + four * TOKENS), raised);
            const __m512i high = _mm512_xor_si512(_mm512_loadu_si512(block->keys + four * TOKENS + WIDE), raised);
            const int32_t *values = q->values + four * DIGITS * q->lines + first;
#pragma GCC unroll 8
            for (size_t i = 0; i < count; i++)
#pragma GCC unroll 2
                for (size_t digit = 0; digit < DIGITS; digit++) {
                    const __m512i value = _mm512_set1_epi32(values[digit * q->lines + i]);
                    add_dots(&sums[i][0][digit], low, value);
                    add_dots(&sums[i][1][digit], high, value);
                }
        }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 2
        for (size_t v = 0; v < VECTORS; v++) {
            const wides scales = load_wide(block->key_scales + v * WIDE) * (q->scales[first + i] * scale);
            store_wide(scores[first + i] + v * WIDE, (wides)together(sums[i][v]) * scales);
        }
}

/* Weights of a block: digits of each line, the lower ones of its tokens first, and scales. */
struct weights {
    uint8_t digits[LANES][DIGITS][TOKENS] __attribute__((aligned(64)));
    float scales[LANES] __attribute__((aligned(32)));
};

/* The largest of the lanes of each. */
INLINE __m256i largest_words(const __m256i x[LANES]) {
    floats halves[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++)
        halves[i] = (floats)_mm256_max_epu32(_mm256_permute2x128_si256(x[i], x[i + 4], 0x20),
                                             _mm256_permute2x128_si256(x[i], x[i + 4], 0x31));
    turn_quads(halves);
    return _mm256_max_epu32(_mm256_max_epu32((__m256i)halves[0], (__m256i)halves[2]),
                            _mm256_max_epu32((__m256i)halves[1], (__m256i)halves[3]));
}

/* Put down the weights of `count` lines times the scales of values; those of tokens that are not `seen` are zeros, also
 * where there is a NaN. */
INLINE void lay_weights(size_t count, float (*rows)[TOKENS], const uint32_t *seen, const float *value_scales,
                        struct weights *to) {
    const __m512 low_scales = _mm512_loadu_ps(value_scales), high_scales = _mm512_loadu_ps(value_scales + WIDE);
    __m256i most[LANES];
#pragma GCC unroll 8
    for (size_t i = 0; i < LANES; i++) {
        most[i] = _mm256_setzero_si256();
        if (i >= count) continue;
        const __m512 low = _mm512_maskz_mul_ps(seen[i] & 0xffff, _mm512_loadu_ps(rows[i]), low_scales);
        const __m512 high = _mm512_maskz_mul_ps(seen[i] >> 16, _mm512_loadu_ps(rows[i] + WIDE), high_scales);
        _mm512_storeu_ps(rows[i], low), _mm512_storeu_ps(rows[i] + WIDE, high);
        /* As words NaN is larger than any number. */
        const __m512i larger_ones = _mm512_max_epu32((__m512i)low, (__m512i)high);
        most[i] = _mm256_max_epu32(_mm512_castsi512_si256(larger_ones), _mm512_extracti64x4_epi64(larger_ones, 1));
    }
    const __m256 highest = _mm256_getexp_ps((__m256)largest_words(most));
    /* The least power of two that fp32 holds is the least scale, also of zeros, which have no exponent. */
    const floats exponent = larger(splat(-149), (floats)highest - (WEIGHT_BITS - 1));
    float raise[LANES] __attribute__((aligned(32)));
    store(raise, -exponent);
    store(to->scales, (floats)_mm256_scalef_ps(_mm256_set1_ps(1), (__m256)exponent));
#pragma GCC unroll 8
    for (size_t i = 0; i < LANES; i++) {
        if (i >= count) continue;
        __m256i halves[VECTORS];
#pragma GCC unroll 2
        for (size_t v = 0; v < VECTORS; v++) {
            const __m512 number = _mm512_scalef_ps(_mm512_loadu_ps(rows[i] + v * WIDE), _mm512_set1_ps(raise[i]));
            /* The largest one of all may be rounded up to a bit more. */
            halves[v] = _mm512_cvtusepi32_epi16(_mm512_cvtps_epi32(number));
        }
        const __m512i numbers = _mm512_inserti64x4(_mm512_castsi256_si512(halves[0]), halves[1], 1);
        _mm256_store_si256((__m256i *)to->digits[i][0], _mm512_cvtepi16_epi8(numbers));
        _mm256_store_si256((__m256i *)to->digits[i][1], _mm512_cvtepi16_epi8(_mm512_srli_epi16(numbers, 8)));
    }
}

/* Shrink `vectors` registers of the sums of `count` lines from `first` on, 7 at most, from number d on, and add values
 * [TOKENS / 4, filled] of four each. */
INLINE void add_weighted(size_t count, size_t first, size_t vectors, const struct weights *weights,
                         float *const *states, const float *shrinks, const char *values, size_t filled, size_t d,
                         struct ahead ahead) {
    __m512i sums[LANES][VECTORS][DIGITS];
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 2
        for (size_t v = 0; v < vectors; v++) sums[i][v][0] = sums[i][v][1] = _mm512_setzero_si512();
    for (size_t t = 0; t < TOKENS; t += 4) {
        for (size_t i = 0; ahead.values && i < 4; i++) ask(ahead.values + next_head(&ahead), ahead.bytes);
        __m512i value[VECTORS];
#pragma GCC unroll 2
        for (size_t v = 0; v < vectors; v++)
            value[v] = _mm512_loadu_si512(values + (t / 4 * filled + d + v * WIDE) * 4);
#pragma GCC unroll 8
        for (size_t i = 0; i < count; i++)
#pragma GCC unroll 2
            for (size_t digit = 0; digit < DIGITS; digit++) {
                int32_t four;
                memcpy(&four, &weights->digits[first + i][digit][t], sizeof four);
                const __m512i weight = _mm512_set1_epi32(four);
#pragma GCC unroll 2
                for (size_t v = 0; v < vectors; v++) add_dots(&sums[i][v][digit], weight, value[v]);
            }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 2
        for (size_t v = 0; v < vectors; v++) {
            float *state = states[first + i] + d + v * WIDE;
            const wides shrunk = load_wide(state) * shrinks[first + i], scale = spread(weights->scales[first + i]);
            store_wide(state, multiply_add_wide((wides)together(sums[i][v]), scale, shrunk));
        }
}
#endif

#endif
