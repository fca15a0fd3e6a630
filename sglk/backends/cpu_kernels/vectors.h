/* Eight floats at a time, on any processor that the compiler knows: with AVX2 one register, elsewhere what it makes of
 * it. Letters: T tokens, B rows, E inputs, O outputs, K key/value heads, D head width. */

#ifndef SGLK_VECTORS_H
#define SGLK_VECTORS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define LANES 8
#define INLINE static inline __attribute__((always_inline))

typedef float floats __attribute__((vector_size(32)));
typedef float floats_anywhere __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(32)));
typedef uint32_t words __attribute__((vector_size(32)));
typedef uint16_t shorts_anywhere __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint8_t bytes_anywhere __attribute__((vector_size(8), aligned(1), may_alias));
typedef int8_t signed_anywhere __attribute__((vector_size(8), aligned(1), may_alias));

/* How numbers are stored; the same values as in Python. */
enum kind { FP32 = 0, FP16 = 1, BF16 = 2, INT8 = 3, INT4 = 4, E4M3 = 5, E5M2 = 6 };

INLINE floats splat(float value) { return (floats){value, value, value, value, value, value, value, value}; }

INLINE floats load(const float *from) { return *(const floats_anywhere *)from; }

INLINE void store(float *to, floats value) { *(floats_anywhere *)to = value; }

/* a * b + c, rounded once where the processor can. */
INLINE floats multiply_add(floats a, floats b, floats c) {
#ifdef __FMA__
    return (floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
    floats sum;
    for (int lane = 0; lane < LANES; lane++) sum[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return sum;
#else
    return a * b + c;
#endif
}

INLINE float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff, bits;
    if (rest >= 0x7c00) {
        bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
    } else if (rest >= 0x400) {
        bits = sign | (rest + ((127 - 15) << 10)) << 13;
    } else {
        float tiny = (float)rest * 0x1p-24f;
        memcpy(&bits, &tiny, sizeof bits);
        bits |= sign;
    }
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest, ties to even. */
INLINE uint16_t float_to_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00;
    if (bits < 0x38800000) {
        /* What is below the smallest normal half counts in units of 2^-24, which adding 0.5 rounds to. */
        float tiny;
        memcpy(&tiny, &bits, sizeof tiny);
        tiny += 0.5f;
        memcpy(&bits, &tiny, sizeof bits);
        return sign | (uint16_t)(bits - 0x3f000000);
    }
    return sign | (uint16_t)((bits - ((127 - 15) << 23) + 0xfff + (bits >> 13 & 1)) >> 13);
}

INLINE uint16_t float_to_bfloat(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Halves in the low bits of each lane, whose other bits are zeros. */
INLINE floats widen_halves(ints bits) {
    const ints size = bits & 0x7fff;
    const ints tiny = (ints)(__builtin_convertvector(size, floats) * 0x1p-24f), normal = (size << 13) + (112 << 23);
    const ints value = (tiny & (size < 0x400)) | (normal & (size >= 0x400)) | ((size >= 0x7c00) & 0x7f800000);
    return (floats)(value | (bits & 0x8000) << 16);
}

INLINE floats load_halves(const uint16_t *from) {
#ifdef __F16C__
    return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
    return widen_halves(__builtin_convertvector(*(const shorts_anywhere *)from, ints));
#endif
}

INLINE floats load_bfloats(const uint16_t *from) {
#ifdef __AVX2__
    return (floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16);
#else
    words wide = __builtin_convertvector(*(const shorts_anywhere *)from, words);
    return (floats)(wide << 16);
#endif
}

INLINE floats load_signed(const int8_t *from) {
#ifdef __AVX2__
    return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#else
    return __builtin_convertvector(__builtin_convertvector(*(const signed_anywhere *)from, ints), floats);
#endif
}

/* Eight bytes as integers. */
INLINE ints load_bytes(const uint8_t *from) {
#ifdef __AVX2__
    return (ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
#else
    return __builtin_convertvector(*(const bytes_anywhere *)from, ints);
#endif
}

INLINE floats to_floats(ints value) { return __builtin_convertvector(value, floats); }

/* 8-bit floats without infinities: sign, 4 bits of exponent, 3 of the number (Micikevicius et al. 2022,
 * arXiv:2209.05433). Below 8 the number counts in units of 2^-9. */
INLINE floats widen_e4m3(ints bits) {
    const ints size = bits & 0x7f;
    const ints tiny = (ints)(to_floats(size) * 0x1p-9f), normal = (size << 20) + (120 << 23);
    const ints value = (tiny & (size < 8)) | (normal & (size >= 8)) | ((size == 0x7f) & 0x7fc00000);
    return (floats)(value | (bits & 0x80) << 24);
}

/* The same with 5 bits of exponent, as fp16 has them. */
INLINE floats widen_e5m2(ints bits) {
    const ints size = bits & 0x7f;
    const ints tiny = (ints)(to_floats(size) * 0x1p-16f), normal = (size << 21) + (112 << 23);
    const ints value = (tiny & (size < 4)) | (normal & (size >= 4)) | ((size >= 0x7c) & 0x7f800000);
    return (floats)(value | (bits & 0x80) << 24);
}

/* Eight numbers from element `at` on, unscaled. */
INLINE floats load_kind(const void *from, size_t at, int kind) {
    if (kind == FP16) return load_halves((const uint16_t *)from + at);
    if (kind == BF16) return load_bfloats((const uint16_t *)from + at);
    if (kind == INT8) return load_signed((const int8_t *)from + at);
    if (kind == E4M3) return widen_e4m3(load_bytes((const uint8_t *)from + at));
    if (kind == E5M2) return widen_e5m2(load_bytes((const uint8_t *)from + at));
    return load((const float *)from + at);
}

INLINE float sum_lanes(floats value) {
    float left = (value[0] + value[4]) + (value[2] + value[6]);
    float right = (value[1] + value[5]) + (value[3] + value[7]);
    return left + right;
}

/* a < b ? a : b, which is b where one of them is NaN. */
INLINE floats smaller(floats a, floats b) {
#ifdef __AVX2__
    return (floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return (floats)(((ints)a & (a < b)) | ((ints)b & ~(a < b)));
#endif
}

INLINE floats larger(floats a, floats b) {
#ifdef __AVX2__
    return (floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return (floats)(((ints)a & (a > b)) | ((ints)b & ~(a > b)));
#endif
}

INLINE floats absolute(floats a) { return (floats)((words)a & 0x7fffffff); }

/* e^x within 2 units in the last place; NaN stays NaN, and what fp32 cannot hold becomes its smallest or largest.
 * Range reduction and polynomial as in Cephes' expf. */
INLINE floats exponential(floats x) {
    x = smaller(splat(88.3f), x);
    x = larger(splat(-87.3f), x);
    const floats magic = splat(12582912.0f);
    floats n = multiply_add(x, splat(1.44269504088896341f), magic) - magic;
    floats r = multiply_add(n, splat(-0.693359375f), x);
    r = multiply_add(n, splat(2.12194440e-4f), r);
    floats p = splat(1.9875691500e-4f);
    p = multiply_add(p, r, splat(1.3981999507e-3f));
    p = multiply_add(p, r, splat(8.3334519073e-3f));
    p = multiply_add(p, r, splat(4.1665795894e-2f));
    p = multiply_add(p, r, splat(1.6666665459e-1f));
    p = multiply_add(p, r, splat(5.0000001201e-1f));
    p = multiply_add(p, r * r, r) + splat(1.0f);
    ints exponent = (__builtin_convertvector(n, ints) + 127) << 23;
    return p * (floats)exponent;
}

#endif
