/* Reads bytes as fast as a loop on each thread can: what a product with one token is held against. */

#include <stdint.h>

#include "workers.h"

#define BLOCK 4096
#define MOST_THREADS 256

typedef uint64_t words __attribute__((vector_size(32), aligned(8), may_alias));

/* What a worker has read, on cache lines of its own. */
struct found {
    uint64_t words;
    char rest[120];
};

struct reading {
    const char *from;
    struct found *workers;
};

static void read_block(const void *of, size_t block, size_t worker) {
    const struct reading *job = of;
    const words *in = (const words *)(job->from + block * BLOCK);
    words sums[8] = {{0}};
    for (size_t i = 0; i < BLOCK / sizeof *in; i += 8)
        for (int k = 0; k < 8; k++) sums[k] ^= in[i + k];
    for (int k = 1; k < 8; k++) sums[0] ^= sums[k];
    job->workers[worker].words ^= sums[0][0] ^ sums[0][1] ^ sums[0][2] ^ sums[0][3];
}

uint64_t read_all(const void *from, size_t bytes, int threads) {
    struct found workers[MOST_THREADS] = {{0}};
    const struct reading job = {from, workers};
    uint64_t all = 0;
    run_shares(threads, bytes / BLOCK, read_block, &job);
    for (int i = 0; i < MOST_THREADS; i++) all ^= workers[i].words;
    return all;
}
