/* Drawing a token from each row of logits, without sorting the vocabulary.
 *
 * What top_k and top_p keep ends in one of about a thousand buckets of probabilities of about the same size; only that
 * one is sorted. Sums are of doubles, in the order of ids or from the likeliest bucket on: a row's draw is a function of
 * that row alone. */

#include <stdlib.h>

#include "vectors.h"
#include "workers.h"

/* Probabilities are at most 1, whose exponent and first three bits are 1016. */
#define BUCKETS 1017
#define SHIFT 20
/* Ids whose sum is taken at once. */
#define STRIDE 256

struct candidate {
    float p;
    int32_t id;
};

/* The least likely of the ids that are kept; of equals the lower ids are. */
struct cut {
    struct candidate last;
    double mass;
};

INLINE size_t bucket_of(float p) {
    uint32_t bits;
    memcpy(&bits, &p, sizeof bits);
    return bits >> SHIFT;
}

static int by_likelihood(const void *left, const void *right) {
    const struct candidate *a = left, *b = right;
    if (a->p != b->p) return a->p > b->p ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* e^((logit - highest) / temperature): the likeliest id has 1, and what is forbidden 0, as what is NaN: none is above 1,
 * which there is no bucket for. `count` is a multiple of LANES. */
static void weigh(const float *logits, size_t count, float temperature, float *p) {
    floats most = splat(-INFINITY);
    for (size_t i = 0; i < count; i += LANES) most = larger(load(logits + i), most);
    float highest = most[0];
    for (int lane = 1; lane < LANES; lane++)
        if (most[lane] > highest) highest = most[lane];
    for (size_t i = 0; i < count; i += LANES) {
        const floats x = (load(logits + i) - highest) / temperature;
        store(p + i, (floats)((ints)exponential(x) & (x > -87.0f)));
    }
}

/* Keep the likeliest ids, at most `most`, until they have `mass` or more. `found` has room for all of them. */
static struct cut cut_off(const float *p, size_t count, const int32_t *sizes, const double *sums, size_t most,
                          double mass, struct candidate *found) {
    struct cut cut = {{0, INT32_MAX}, 0};
    size_t kept = 0;
    for (size_t b = BUCKETS; b-- > 1;) {
        if (!sizes[b]) continue;
        if (kept + sizes[b] < most && cut.mass + sums[b] < mass) {
            kept += sizes[b], cut.mass += sums[b];
            continue;
        }
        size_t number = 0;
        for (size_t i = 0; i < count; i++)
            if (bucket_of(p[i]) == b) found[number++] = (struct candidate){p[i], (int32_t)i};
        qsort(found, number, sizeof *found, by_likelihood);
        for (size_t i = 0; i < number; i++) {
            cut.mass += found[i].p;
            if (++kept < most && cut.mass < mass) continue;
            cut.last = found[i];
            return cut;
        }
    }
    return cut;
}

static struct candidate kept_until(const float *p, size_t count, int64_t top_k, float top_p, struct candidate *found) {
    int32_t sizes[BUCKETS] = {0};
    double sums[BUCKETS] = {0}, mass = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t b = bucket_of(p[i]);
        sizes[b]++, sums[b] += p[i];
    }
    const size_t most = top_k > 0 ? (size_t)top_k : count;
    if (top_p >= 1) return cut_off(p, count, sizes, sums, most, INFINITY, found).last;
    if (most < count) mass = cut_off(p, count, sizes, sums, most, INFINITY, found).mass;
    else
        for (size_t b = BUCKETS; b-- > 0;) mass += sums[b];
    return cut_off(p, count, sizes, sums, most, mass * top_p, found).last;
}

/* Set what is not kept to 0. */
static void drop(float *p, size_t count, struct candidate last, float min_p) {
    ints ids = {0, 1, 2, 3, 4, 5, 6, 7};
    for (size_t i = 0; i < count; i += LANES, ids += LANES) {
        const floats x = load(p + i);
        const ints likelier = x > last.p, as_likely = (x == last.p) & (ids <= last.id);
        store(p + i, (floats)((ints)x & (likelier | as_likely) & (x >= min_p)));
    }
}

INLINE double sum_of(const float *p, size_t count) {
    floats sum = splat(0);
    for (size_t i = 0; i < count; i += LANES) sum += load(p + i);
    return sum_lanes(sum);
}

/* The first id at which the sum of all before it and its own exceeds `uniform` of the whole. */
static int64_t draw(const float *p, size_t count, float uniform) {
    double total = 0, sum = 0;
    int64_t chosen = 0;
    for (size_t i = 0; i < count; i += STRIDE) total += sum_of(p + i, count - i < STRIDE ? count - i : STRIDE);
    for (size_t i = 0; i < count; i += STRIDE) {
        const size_t end = count - i < STRIDE ? count : i + STRIDE;
        const double after = sum + sum_of(p + i, end - i);
        if (after <= uniform * total) {
            sum = after;
            continue;
        }
        for (size_t id = i; id < end; id++) {
            if (p[id] == 0) continue;
            sum += p[id], chosen = (int64_t)id;
            if (sum > uniform * total) break;
        }
        return chosen;
    }
    return chosen;
}

struct rows {
    const float *logits;
    size_t stride, vocabulary;
    const float *temperature;
    const int64_t *top_k;
    const float *top_p, *min_p, *uniform;
    int64_t *ids;
    float *room;
};

static void sample_row(const void *of, size_t b, size_t worker) {
    const struct rows *job = of;
    const size_t vocabulary = job->vocabulary, count = (vocabulary + LANES - 1) / LANES * LANES;
    float *own = job->room + worker * 4 * (vocabulary + LANES), *p = own + count;
    struct candidate *found = (struct candidate *)(p + count), last = {0, INT32_MAX};
    memcpy(own, job->logits + b * job->stride, vocabulary * sizeof *own);
    for (size_t i = vocabulary; i < count; i++) own[i] = -INFINITY;
    weigh(own, count, job->temperature[b], p);
    const int64_t most = job->top_k[b] < (int64_t)vocabulary ? job->top_k[b] : 0;
    if (most > 0 || job->top_p[b] < 1) last = kept_until(p, count, most, job->top_p[b], found);
    if (last.p > 0 || job->min_p[b] > 0) drop(p, count, last, job->min_p[b]);
    job->ids[b] = draw(p, count, job->uniform[b]);
}

/* Logits are [B, V], rows `stride` floats apart; `room` holds 4 * (V + 8) floats for each thread. */
void sglk_sample(const float *logits, size_t stride, size_t rows, size_t vocabulary, const float *temperature,
                 const int64_t *top_k, const float *top_p, const float *min_p, const float *uniform, int64_t *ids,
                 float *room, int threads) {
    const struct rows job = {logits, stride, vocabulary, temperature, top_k, top_p, min_p, uniform, ids, room};
    run_shares(threads, rows, sample_row, &job);
}
