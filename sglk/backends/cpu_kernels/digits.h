/* Queries in digits, whose products with keys in int8 are sums of integers: keys are multiplied as they are stored, four
 * at a time, and nothing is rounded before the end.
 *
 * A number is an integer of 24 bits times the scale of its line, so it is rounded by 2^-24 of the line's largest one at
 * most; the integer is three digits of 8 bits, with their signs. */

#ifndef SGLK_DIGITS_H
#define SGLK_DIGITS_H

#include "kv_block.h"

#if HAVE_DIGITS
#define DIGITS 3
#define LARGEST (127 << 16)
/* What keys are raised by: the processor multiplies unsigned bytes with signed ones. */
#define RAISED 128
/* Lines at a time, as many as there are registers for. */
#define DIGIT_LINES 4

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
    __m512i sums[DIGITS] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
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

/* Scores of `count` lines from `first` on, over keys [D / 4, TOKENS] of four each. */
INLINE void score_digits(size_t count, const struct digits *q, size_t first, const float *keys, float scale,
                         float (*scores)[TOKENS], struct ahead ahead) {
    __m512i sums[DIGIT_LINES][DIGITS][VECTORS];
#pragma GCC unroll 4
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 3
        for (size_t digit = 0; digit < DIGITS; digit++)
            sums[i][digit][0] = sums[i][digit][1] = _mm512_set1_epi32(q->starts[digit * q->lines + first + i]);
    const __m512i raised = _mm512_set1_epi8((char)RAISED);
    for (size_t t = 0, four = 0; t < TOKENS; t++) {
        if (ahead.keys) ask(ahead.keys + next_head(&ahead), ahead.bytes);
        for (const size_t end = (t + 1) * q->fours / TOKENS; four < end; four++) {
            const __m512i low = _mm512_xor_si512(_mm512_loadu_si512(keys + four * TOKENS), raised);
            const __m512i high = _mm512_xor_si512(_mm512_loadu_si512(keys + four * TOKENS + WIDE), raised);
            const int32_t *values = q->values + four * DIGITS * q->lines + first;
#pragma GCC unroll 4
            for (size_t i = 0; i < count; i++)
#pragma GCC unroll 3
                for (size_t digit = 0; digit < DIGITS; digit++) {
                    const __m512i value = _mm512_set1_epi32(values[digit * q->lines + i]);
                    add_dots(&sums[i][digit][0], low, value);
                    add_dots(&sums[i][digit][1], high, value);
                }
        }
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 2
        for (size_t v = 0; v < VECTORS; v++) {
            __m512 sum = _mm512_cvtepi32_ps(sums[i][DIGITS - 1][v]);
#pragma GCC unroll 2
            for (size_t digit = DIGITS - 1; digit-- > 0;)
                sum = _mm512_fmadd_ps(sum, _mm512_set1_ps(256), _mm512_cvtepi32_ps(sums[i][digit][v]));
            store_wide(scores[i] + v * WIDE, (wides)sum * (q->scales[first + i] * scale));
        }
}
#endif

#endif
