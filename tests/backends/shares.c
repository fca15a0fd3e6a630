/* Jobs for the pool of workers that see whether their shares are computed once, and by whom. */

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#include "workers.h"

#define MOST 512

struct counting {
    atomic_int *computed;
    size_t threads;
    atomic_int busy[MOST], wrong;
};

static void count_share(const void *of, size_t share, size_t worker) {
    struct counting *job = (struct counting *)of;
    if (worker >= job->threads || atomic_exchange(&job->busy[worker], 1)) atomic_fetch_add(&job->wrong, 1);
    atomic_fetch_add(&job->computed[share], 1);
    for (volatile int i = 0; i < 100; i++) continue;
    atomic_store(&job->busy[worker], 0);
}

/* Add one to the number of each share; return how often a worker was unknown, or two were the same. */
int count_shares(int threads, size_t count, atomic_int *computed) {
    struct counting job = {.computed = computed, .threads = threads};
    run_shares(threads, count, count_share, &job);
    return job.wrong;
}

struct waiting {
    atomic_int begun, ended;
};

static void wait_in_share(const void *of, size_t share, size_t worker) {
    struct waiting *job = (struct waiting *)of;
    (void)share, (void)worker;
    atomic_fetch_add(&job->begun, 1);
    while (!atomic_load(&job->ended)) sched_yield();
}

/* Have as many threads as there are shares wait in one until `ended`. */
void wait_in_shares(int threads, struct waiting *job) { run_shares(threads, threads, wait_in_share, job); }
