/* The highest logit of each row. */

#include "vectors.h"

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

/* Logits are [B, V], rows `stride` floats apart. */
void sglk_greedy(const float *logits, size_t stride, size_t rows, size_t vocabulary, float *best, int64_t *ids,
                 int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && rows >= 8)
    for (size_t b = 0; b < rows; b++) {
        const size_t place = place_of_highest(logits + b * stride, vocabulary);
        best[b] = logits[b * stride + place];
        ids[b] = (int64_t)place;
    }
}
