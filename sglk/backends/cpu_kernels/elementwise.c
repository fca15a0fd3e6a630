/* What stands between products and attention: norms, rotary positions, SwiGLU, and writing to the KV pool. */

#include "vectors.h"

static void norm_row(const float *x, const float *weight, float eps, size_t width, float *y) {
    floats squares = splat(0);
    size_t e = 0;
    for (; e + LANES <= width; e += LANES) squares = multiply_add(load(x + e), load(x + e), squares);
    float total = sum_lanes(squares);
    for (; e < width; e++) total += x[e] * x[e];
    const float factor = 1.0f / sqrtf(total / (float)width + eps);
    for (e = 0; e + LANES <= width; e += LANES) store(y + e, load(x + e) * factor * load(weight + e));
    for (; e < width; e++) y[e] = x[e] * factor * weight[e];
}

/* x is [T, N, E] with the given strides, y [T, N, E] without gaps. */
void sglk_rms_norm(const float *x, size_t stride, size_t head_stride, const float *weight, float eps, size_t count,
                   size_t heads, size_t width, float *y, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && count >= 32)
    for (size_t t = 0; t < count; t++)
        for (size_t n = 0; n < heads; n++)
            norm_row(x + t * stride + n * head_stride, weight, eps, width, y + (t * heads + n) * width);
}

/* Adds x to the residual in place. */
void sglk_add_rms_norm(const float *x, float *residual, const float *weight, float eps, size_t count, size_t width,
                       float *y, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && count >= 32)
    for (size_t t = 0; t < count; t++) {
        const float *row = x + t * width;
        float *sum = residual + t * width;
        size_t e = 0;
        for (; e + LANES <= width; e += LANES) store(sum + e, load(sum + e) + load(row + e));
        for (; e < width; e++) sum[e] += row[e];
        norm_row(sum, weight, eps, width, y + t * width);
    }
}

/* x is [T, N, D] with the given strides, cos and sin [T, D], y [T, N, D] without gaps. */
void sglk_rope(const float *x, size_t stride, size_t head_stride, const float *cos, const float *sin, size_t count,
               size_t heads, size_t width, float *y, int threads) {
    const size_t half = width / 2;
#pragma omp parallel for num_threads(threads) if (threads > 1 && count >= 32)
    for (size_t t = 0; t < count; t++) {
        const float *c = cos + t * width, *s = sin + t * width;
        for (size_t n = 0; n < heads; n++) {
            const float *left = x + t * stride + n * head_stride, *right = left + half;
            float *to = y + (t * heads + n) * width;
            for (size_t d = 0; d < half; d++) {
                const float a = left[d], b = right[d];
                to[d] = a * c[d] - b * s[d];
                to[half + d] = b * c[half + d] + a * s[half + d];
            }
        }
    }
}

/* x is [T, 2F], rows `stride` floats apart, y [T, F]. */
void sglk_silu_and_mul(const float *x, size_t stride, size_t count, size_t width, float *y,
                       int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && count >= 32)
    for (size_t t = 0; t < count; t++) {
        const float *gate = x + t * stride, *up = gate + width;
        float *to = y + t * width;
        size_t f = 0;
        for (; f + LANES <= width; f += LANES) {
            const floats g = load(gate + f);
            store(to + f, g / (1.0f + exponential(-g)) * load(up + f));
        }
        for (; f < width; f++) to[f] = gate[f] / (1.0f + exponential(splat(-gate[f]))[0]) * up[f];
    }
}

INLINE floats sigmoid(floats x) { return 1.0f / (1.0f + exponential(-x)); }

/* y = x + sigmoid(gate) * z; x and z are [T, E], gate [T]. */
void sglk_add_gated(const float *x, const float *gate, const float *z, size_t count, size_t width, float *y,
                    int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && count >= 32)
    for (size_t t = 0; t < count; t++) {
        const floats weight = sigmoid(splat(gate[t]));
        size_t e = t * width;
        for (; e + LANES <= (t + 1) * width; e += LANES) store(y + e, multiply_add(weight, load(z + e), load(x + e)));
        for (; e < (t + 1) * width; e++) y[e] = multiply_add(weight, splat(z[e]), splat(x[e]))[0];
    }
}

/* y[t] = the sum over c of weights[t, c] * x[places[t, c]], from the first c to the last, each product rounded: any
 * library comes to the same. */
void sglk_weighted_sum(const float *x, const int64_t *places, const float *weights, size_t count, size_t chosen,
                       size_t width, float *y, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && count >= 8)
    for (size_t t = 0; t < count; t++) {
        float *to = y + t * width;
        memset(to, 0, width * sizeof *to);
        for (size_t c = t * chosen; c < (t + 1) * chosen; c++) {
            const float *from = x + (size_t)places[c] * width;
            const floats weight = splat(weights[c]);
            size_t e = 0;
            for (; e + LANES <= width; e += LANES) store(to + e, load(to + e) + weight * load(from + e));
            for (; e < width; e++) to[e] += weights[c] * from[e];
        }
    }
}

static void write_head(const float *x, size_t width, int kind, void *pool, size_t at, float *scale) {
    if (kind == FP32) {
        memcpy((float *)pool + at, x, width * sizeof *x);
    } else if (kind == FP16) {
        for (size_t d = 0; d < width; d++) ((uint16_t *)pool)[at + d] = float_to_half(x[d]);
    } else if (kind == BF16) {
        for (size_t d = 0; d < width; d++) ((uint16_t *)pool)[at + d] = float_to_bfloat(x[d]);
    } else {
        float largest = 0;
        for (size_t d = 0; d < width; d++) {
            const float size = fabsf(x[d]);
            /* A NaN stays: it must show in the scale. */
            if (!(size <= largest) && largest == largest) largest = size;
        }
        *scale = largest / 127.0f;
        const float divisor = *scale == 0 ? 1.0f : *scale;
        for (size_t d = 0; d < width; d++) ((int8_t *)pool)[at + d] = (int8_t)(int32_t)rintf(x[d] / divisor);
    }
}

/* k and v are [T, K, D], tokens `k_stride` and `v_stride` floats apart. */
void sglk_store_kv(int kind, const float *k, size_t k_stride, const float *v, size_t v_stride, void *keys,
                   void *values, float *key_scales, float *value_scales, const int64_t *slots, size_t count,
                   size_t heads, size_t width) {
    for (size_t t = 0; t < count; t++)
        for (size_t head = 0; head < heads; head++) {
            const size_t place = (size_t)slots[t] * heads + head;
            float *key_scale = key_scales ? key_scales + place : NULL;
            float *value_scale = value_scales ? value_scales + place : NULL;
            write_head(k + t * k_stride + head * width, width, kind, keys, place * width, key_scale);
            write_head(v + t * v_stride + head * width, width, kind, values, place * width, value_scale);
        }
}
