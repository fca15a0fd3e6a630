/* What stands between products and attention: norms, rotary positions, SwiGLU, and writing to the KV pool. */

#include "rounding.h"
#include "workers.h"

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

/* Fewer tokens are done sooner than anybody comes. */
static int workers_for(size_t count, int threads) { return count >= 32 ? threads : 1; }

struct norms {
    const float *x, *weight;
    size_t stride, head_stride, heads, width;
    float eps, *residual, *y;
};

static void norm_token(const void *of, size_t t, size_t worker) {
    (void)worker;
    const struct norms *job = of;
    const size_t width = job->width;
    for (size_t n = 0; n < job->heads; n++) {
        const float *x = job->x + t * job->stride + n * job->head_stride;
        norm_row(x, job->weight, job->eps, width, job->y + (t * job->heads + n) * width);
    }
}

/* x is [T, N, E] with the given strides, y [T, N, E] without gaps. */
void sglk_rms_norm(const float *x, size_t stride, size_t head_stride, const float *weight, float eps, size_t count,
                   size_t heads, size_t width, float *y, int threads) {
    const struct norms job = {.x = x, .weight = weight, .stride = stride, .head_stride = head_stride, .heads = heads,
                              .width = width, .eps = eps, .y = y};
    run_shares(workers_for(count, threads), count, norm_token, &job);
}

static void add_and_norm_token(const void *of, size_t t, size_t worker) {
    (void)worker;
    const struct norms *job = of;
    const size_t width = job->width;
    const float *row = job->x + t * width;
    float *sum = job->residual + t * width;
    size_t e = 0;
    for (; e + LANES <= width; e += LANES) store(sum + e, load(sum + e) + load(row + e));
    for (; e < width; e++) sum[e] += row[e];
    norm_row(sum, job->weight, job->eps, width, job->y + t * width);
}

/* Adds x to the residual in place. */
void sglk_add_rms_norm(const float *x, float *residual, const float *weight, float eps, size_t count, size_t width,
                       float *y, int threads) {
    const struct norms job = {.x = x, .weight = weight, .width = width, .eps = eps, .residual = residual, .y = y};
    run_shares(workers_for(count, threads), count, add_and_norm_token, &job);
}

struct turns {
    const float *x, *cos, *sin;
    size_t stride, head_stride, heads, width;
    float *y;
};

static void turn_token(const void *of, size_t t, size_t worker) {
    (void)worker;
    const struct turns *job = of;
    const size_t width = job->width, half = width / 2, heads = job->heads;
    const float *c = job->cos + t * width, *s = job->sin + t * width;
    for (size_t n = 0; n < heads; n++) {
        const float *left = job->x + t * job->stride + n * job->head_stride, *right = left + half;
        float *to = job->y + (t * heads + n) * width;
        for (size_t d = 0; d < half; d++) {
            const float a = left[d], b = right[d];
            to[d] = a * c[d] - b * s[d];
            to[half + d] = b * c[half + d] + a * s[half + d];
        }
    }
}

/* x is [T, N, D] with the given strides, cos and sin [T, D], y [T, N, D] without gaps. */
void sglk_rope(const float *x, size_t stride, size_t head_stride, const float *cos, const float *sin, size_t count,
               size_t heads, size_t width, float *y, int threads) {
    const struct turns job = {x, cos, sin, stride, head_stride, heads, width, y};
    run_shares(workers_for(count, threads), count, turn_token, &job);
}

struct gates {
    const float *x, *gate, *z;
    size_t stride, width;
    float *y;
};

static void silu_token(const void *of, size_t t, size_t worker) {
    (void)worker;
    const struct gates *job = of;
    const size_t width = job->width;
    const float *gate = job->x + t * job->stride, *up = gate + width;
    float *to = job->y + t * width;
    size_t f = 0;
    for (; f + LANES <= width; f += LANES) {
        const floats g = load(gate + f);
        store(to + f, g / (1.0f + exponential(-g)) * load(up + f));
    }
    for (; f < width; f++) to[f] = gate[f] / (1.0f + exponential(splat(-gate[f]))[0]) * up[f];
}

/* x is [T, 2F], rows `stride` floats apart, y [T, F]. */
void sglk_silu_and_mul(const float *x, size_t stride, size_t count, size_t width, float *y, int threads) {
    const struct gates job = {.x = x, .stride = stride, .width = width, .y = y};
    run_shares(workers_for(count, threads), count, silu_token, &job);
}

INLINE floats sigmoid(floats x) { return 1.0f / (1.0f + exponential(-x)); }

static void add_gated_token(const void *of, size_t t, size_t worker) {
    (void)worker;
    const struct gates *job = of;
    const size_t end = (t + 1) * job->width;
    const float *x = job->x, *z = job->z;
    const floats weight = sigmoid(splat(job->gate[t]));
    float *y = job->y;
    size_t e = t * job->width;
    for (; e + LANES <= end; e += LANES) store(y + e, multiply_add(weight, load(z + e), load(x + e)));
    for (; e < end; e++) y[e] = multiply_add(weight, splat(z[e]), splat(x[e]))[0];
}

/* y = x + sigmoid(gate) * z; x and z are [T, E], gate [T]. */
void sglk_add_gated(const float *x, const float *gate, const float *z, size_t count, size_t width, float *y,
                    int threads) {
    const struct gates job = {.x = x, .gate = gate, .z = z, .width = width, .y = y};
    run_shares(workers_for(count, threads), count, add_gated_token, &job);
}

struct sums {
    const float *x, *weights;
    const int64_t *places;
    size_t chosen, width;
    float *y;
};

static void sum_token(const void *of, size_t t, size_t worker) {
    (void)worker;
    const struct sums *job = of;
    const size_t width = job->width;
    float *to = job->y + t * width;
    memset(to, 0, width * sizeof *to);
    for (size_t c = t * job->chosen; c < (t + 1) * job->chosen; c++) {
        const float *from = job->x + (size_t)job->places[c] * width;
        const float own = job->weights[c];
        const floats weight = splat(own);
        size_t e = 0;
        for (; e + LANES <= width; e += LANES) store(to + e, load(to + e) + weight * load(from + e));
        for (; e < width; e++) to[e] += own * from[e];
    }
}

/* y[t] = the sum over c of weights[t, c] * x[places[t, c]], from the first c to the last, each product rounded: any
 * library comes to the same. */
void sglk_weighted_sum(const float *x, const int64_t *places, const float *weights, size_t count, size_t chosen,
                       size_t width, float *y, int threads) {
    const struct sums job = {x, weights, places, chosen, width, y};
    run_shares(count >= 8 ? threads : 1, count, sum_token, &job);
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
        for (size_t d = 0; d < width; d++) ((int8_t *)pool)[at + d] = to_int8(x[d], divisor);
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
