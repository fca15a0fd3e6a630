/* As many floats at a time as the widest registers hold: 16 with AVX-512, else 8. Every lane counts for itself, so the
 * width changes no bit of a result. */

#ifndef SGLK_WIDE_H
#define SGLK_WIDE_H

#include "vectors.h"

#if defined(__AVX512F__) && defined(__AVX512BW__)
#define WIDE 16
typedef float wides __attribute__((vector_size(64)));
typedef float wides_anywhere __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t wide_ints __attribute__((vector_size(64)));

INLINE wides spread(float value) { return (wides)_mm512_set1_ps(value); }

INLINE wides load_wide(const float *from) { return *(const wides_anywhere *)from; }

INLINE void store_wide(float *to, wides value) { *(wides_anywhere *)to = value; }

INLINE wides multiply_add_wide(wides a, wides b, wides c) {
    return (wides)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

INLINE wide_ints load_wide_bytes(const uint8_t *from) {
    return (wide_ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
}

/* a < b ? b : a, which is b where one of them is NaN. */
INLINE wides larger_wide(wides a, wides b) { return (wides)_mm512_max_ps((__m512)a, (__m512)b); }

INLINE floats low_half(wides x) { return (floats)_mm512_castps512_ps256((__m512)x); }

INLINE floats high_half(wides x) { return (floats)_mm512_extractf32x8_ps((__m512)x, 1); }

#ifdef __AVX512VNNI__
/* Add products of four unsigned with four signed bytes. Told so by itself, the compiler moves every sum to and fro. */
INLINE void add_dots(__m512i *sums, __m512i unsigned_bytes, __m512i signed_bytes) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(unsigned_bytes), "v"(signed_bytes));
}
#endif

INLINE wides two_floats(floats low, floats high) {
    return (wides)_mm512_insertf32x8(_mm512_castps256_ps512((__m256)low), (__m256)high, 1);
}

/* Sixteen numbers from element `at` on, unscaled. */
INLINE wides load_wide_kind(const void *from, size_t at, int kind) {
    if (kind == FP32) return load_wide((const float *)from + at);
    if (kind == FP16)
        return (wides)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((const uint16_t *)from + at)));
    if (kind == BF16) {
        const __m256i numbers = _mm256_loadu_si256((const __m256i *)((const uint16_t *)from + at));
        return (wides)_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16);
    }
    if (kind == INT8)
        return (wides)_mm512_cvtepi32_ps(
            _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)((const int8_t *)from + at))));
    return two_floats(load_kind(from, at, kind), load_kind(from, at + LANES, kind));
}

/* The low half of each byte. */
INLINE wides low_numbers(wide_ints bytes) { return __builtin_convertvector(bytes & 15, wides); }

INLINE wides high_numbers(wide_ints bytes) { return __builtin_convertvector(bytes >> 4, wides); }
#else
#define WIDE LANES
typedef floats wides;
typedef ints wide_ints;

INLINE wides spread(float value) { return splat(value); }

INLINE wides load_wide(const float *from) { return load(from); }

INLINE void store_wide(float *to, wides value) { store(to, value); }

INLINE wides multiply_add_wide(wides a, wides b, wides c) { return multiply_add(a, b, c); }

INLINE wides larger_wide(wides a, wides b) { return larger(a, b); }

INLINE wide_ints load_wide_bytes(const uint8_t *from) { return load_bytes(from); }

INLINE wides load_wide_kind(const void *from, size_t at, int kind) { return load_kind(from, at, kind); }

/* The low half of each byte. */
INLINE wides low_numbers(wide_ints bytes) { return to_floats(bytes & 15); }

INLINE wides high_numbers(wide_ints bytes) { return to_floats(bytes >> 4); }
#endif

/* 2^x of numbers up to 0, within 1 unit in the last place; NaN stays NaN, and below -125.5 all are as there. The
 * polynomial has the least relative error within 0.5 of 0, 2^-28.5. */
INLINE wides power_of_two(wides x) {
    x = larger_wide(spread(-125.5f), x);
    /* A sum with it ends with x as an integer, and 127 more: the exponent. */
    const wides magic = spread(0x1.8p23f + 127);
    const wides shifted = x + magic, rest = x - (shifted - magic);
    wides p = multiply_add_wide(spread(1.55947576e-4f), rest, spread(1.34066745e-3f));
    p = multiply_add_wide(p, rest, spread(9.61769261e-3f));
    p = multiply_add_wide(p, rest, spread(5.55031047e-2f));
    p = multiply_add_wide(p, rest, spread(0.240226528f));
    p = multiply_add_wide(p, rest, spread(0.693147215f));
    p = multiply_add_wide(p, rest, spread(1));
    return p * (wides)((wide_ints)shifted << 23);
}

#endif
