/* Reads bytes as fast as a loop on each thread can: what a product with one token is held against. */

#include <stddef.h>
#include <stdint.h>

#define BLOCK 4096

typedef uint64_t words __attribute__((vector_size(32), aligned(8), may_alias));

uint64_t read_all(const void *from, size_t bytes, int threads) {
    uint64_t all = 0;
#pragma omp parallel for num_threads(threads) reduction(^ : all) schedule(static) if (threads > 1)
    for (size_t block = 0; block < bytes / BLOCK; block++) {
        const words *in = (const words *)((const char *)from + block * BLOCK);
        words sums[8] = {{0}};
        for (size_t i = 0; i < BLOCK / sizeof *in; i += 8)
            for (int k = 0; k < 8; k++) sums[k] ^= in[i + k];
        for (int k = 1; k < 8; k++) sums[0] ^= sums[k];
        all ^= sums[0][0] ^ sums[0][1] ^ sums[0][2] ^ sums[0][3];
    }
    return all;
}
