/* The highest logit of each row. */

#include "vectors.h"
#include "workers.h"

/* The first place of the highest number; a NaN counts as highest. */
static size_t place_of_highest(const float *x, size_t count) {
    floats most = splat(-INFINITY);
    ints strange = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const floats value = load(x + i);
        strange |= value != value;
        most = larger(value, most);
    }
    float highest = -INFINITY;
    int found = 0;
    for (int lane = 0; lane < LANES; lane++) {
        found |= strange[lane] != 0;
        if (most[lane] > highest) highest = most[lane];
    }
    for (; i < count; i++) {
        found |= x[i] != x[i];
        if (x[i] > highest) highest = x[i];
    }
    size_t place = 0;
    if (found)
        while (x[place] == x[place]) place++;
    else
        while (x[place] != highest) place++;
    return place;
}

struct rows {
    const float *logits;
    size_t stride, vocabulary;
    float *best;
    int64_t *ids;
};

static void choose_of_row(const void *of, size_t b, size_t worker) {
    (void)worker;
    const struct rows *job = of;
    const float *logits = job->logits + b * job->stride;
    const size_t place = place_of_highest(logits, job->vocabulary);
    job->best[b] = logits[place];
    job->ids[b] = (int64_t)place;
}

/* Logits are [B, V], rows `stride` floats apart. */
void sglk_greedy(const float *logits, size_t stride, size_t rows, size_t vocabulary, float *best, int64_t *ids,
                 int threads) {
    const struct rows job = {logits, stride, vocabulary, best, ids};
    run_shares(rows >= 8 ? threads : 1, rows, choose_of_row, &job);
}
