/* One pool of workers for all threads of a process that call kernels.
 *
 * A caller puts its job where workers look, and computes until no share is left; workers take shares as they come. Each
 * of them walks through a span of its own, for memory likes long streams, and then takes from the ends of others'. */

#define _GNU_SOURCE
#include "workers.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#define MOST_CALLERS 16
#define MOST_THREADS 256
/* Shares are taken by the piece: so many of a job for each thread at most, which keeps small ones cheap. */
#define PIECES 32
/* How often an idle worker looks for a job: at once, then letting others run between two looks, then it sleeps. */
#define LOOKS 2000
#define PATIENT_LOOKS 1000
/* Where the system gave no thread it is asked again after so many jobs: seconds. */
#define PATIENT_JOBS 100000
#define OWN_LINE __attribute__((aligned(128)))

/* `turn` counts the jobs of a place, so that who comes late sees that his job is over: turn << 32 | first << 16 | past
 * of the pieces that are left of a span, turn << 32 | came << 16 | threads of who works at a job. */
#define WORD(turn, high, low) ((uint64_t)(turn) << 32 | (uint64_t)(high) << 16 | (uint64_t)(low))
#define TURN(word) ((uint32_t)((word) >> 32))
#define HIGH(word) ((size_t)((word) >> 16 & 0xffff))
#define LOW(word) ((size_t)((word) & 0xffff))

struct place {
    OWN_LINE _Atomic uint64_t entry;
    atomic_bool taken;
    uint32_t turn;
    share_function function;
    const void *job;
    size_t count, pieces;
    OWN_LINE atomic_size_t done;
    struct {
        OWN_LINE _Atomic uint64_t left;
    } spans[MOST_THREADS];
};

static struct place places[MOST_CALLERS];
/* Jobs that were ever posted. */
OWN_LINE static _Atomic uint64_t posted;
/* Workers that callers wait for, that there are, that sleep; and that are called but not awake yet. */
OWN_LINE static atomic_size_t wanted;
static atomic_size_t workers, sleeping;
static size_t called;
/* From how many jobs on the system is asked for threads. */
static uint64_t again_at;
static size_t processors;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t call = PTHREAD_COND_INITIALIZER;

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Wait a little, longer where it has been long already: then whoever is waited for may need this processor. */
static void wait_a_little(size_t looks) {
    if (looks < LOOKS) pause_briefly();
    else sched_yield();
}

/* Take the next piece of a worker's own span, or the last of another's. */
static bool take(struct place *place, uint32_t turn, size_t worker, size_t threads, size_t *piece) {
    for (size_t i = 0; i < threads; i++) {
        _Atomic uint64_t *span = &place->spans[(worker + i) % threads].left;
        uint64_t left = atomic_load(span);
        while (TURN(left) == turn && HIGH(left) < LOW(left)) {
            if (!atomic_compare_exchange_weak(span, &left, i ? left - 1 : left + WORD(0, 1, 0))) continue;
            *piece = i ? LOW(left) - 1 : HIGH(left);
            return true;
        }
    }
    return false;
}

/* Compute pieces until none is left; return how many. What else a place holds is only read with a piece in hand: until
 * that is done, the job is not over. */
static size_t work(struct place *place, uint32_t turn, size_t worker, size_t threads) {
    size_t own = 0, piece;
    for (; take(place, turn, worker, threads, &piece); own++) {
        const size_t past = place->count * (piece + 1) / place->pieces;
        for (size_t share = place->count * piece / place->pieces; share < past; share++)
            place->function(place->job, share, worker);
        if (worker) atomic_fetch_add(&place->done, 1);
    }
    return own;
}

/* Help at a place where more may come; return whether anything was done. */
static bool help(struct place *place) {
    uint64_t entry = atomic_load(&place->entry);
    while (HIGH(entry) < LOW(entry))
        if (atomic_compare_exchange_weak(&place->entry, &entry, entry + WORD(0, 1, 0)))
            return work(place, TURN(entry), HIGH(entry), LOW(entry)) > 0;
    return false;
}

static void sleep_until_called(uint64_t seen) {
    pthread_mutex_lock(&lock);
    atomic_fetch_add(&sleeping, 1);
    if (atomic_load(&posted) == seen) {
        while (!called) pthread_cond_wait(&call, &lock);
        called--;
    }
    atomic_fetch_sub(&sleeping, 1);
    pthread_mutex_unlock(&lock);
}

static void *serve(void *unused) {
    size_t looks = 0;
    for (size_t next = 0;;) {
        const uint64_t seen = atomic_load(&posted);
        bool helped = false;
        /* From where it was last, so that all callers get their turn. */
        for (size_t i = 0; i < MOST_CALLERS; i++) helped |= help(&places[next++ % MOST_CALLERS]);
        if (helped) looks = 0;
        for (; atomic_load(&posted) == seen && looks < LOOKS + PATIENT_LOOKS; looks++) wait_a_little(looks);
        if (looks < LOOKS + PATIENT_LOOKS) continue;
        sleep_until_called(seen);
        looks = 0;
    }
    return unused;
}

/* Start a worker, which ends with the process; return whether it was given. */
static bool start(void) {
    pthread_t thread;
    pthread_attr_t detached;
    sigset_t all, before;
    if (pthread_attr_init(&detached)) return false;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    /* Signals are for the threads of the program. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = !pthread_create(&thread, &detached, serve, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return started;
}

/* Return whether the lock could be had: nobody waits for a thread that had to make way with it. */
static bool lock_soon(void) {
    for (size_t tries = 0; tries < 100; tries++, pause_briefly())
        if (!pthread_mutex_trylock(&lock)) return true;
    return false;
}

/* Have as many workers awake as all callers want, but for those that the processors would run in turns. */
static void call_workers(size_t helpers) {
    size_t all = atomic_fetch_add(&wanted, helpers) + helpers;
    const size_t most = helpers > processors - 1 ? helpers : processors - 1;
    if (all > most) all = most;
    const uint64_t jobs = atomic_fetch_add(&posted, 1) + 1;
    size_t awake = atomic_load(&workers) - atomic_load(&sleeping);
    if (awake >= all || !lock_soon()) return;
    for (awake += called; awake < all && called < atomic_load(&sleeping); awake++, called++) pthread_cond_signal(&call);
    while (atomic_load(&workers) < all && jobs >= again_at) {
        if (start()) atomic_fetch_add(&workers, 1);
        else again_at = jobs + PATIENT_JOBS;
    }
    pthread_mutex_unlock(&lock);
}

static struct place *free_place(void) {
    for (struct place *place = places; place < places + MOST_CALLERS; place++)
        if (!atomic_load(&place->taken) && !atomic_exchange(&place->taken, true)) return place;
    return NULL;
}

void run_shares(int threads, size_t count, share_function function, const void *job) {
    struct place *place = threads > 1 && count > 1 ? free_place() : NULL;
    if (!place) {
        for (size_t share = 0; share < count; share++) function(job, share, 0);
        return;
    }
    size_t all = threads < MOST_THREADS ? (size_t)threads : MOST_THREADS;
    if (all > count) all = count;
    const size_t pieces = count < all * PIECES ? count : all * PIECES;
    place->function = function, place->job = job, place->count = count, place->pieces = pieces;
    atomic_store_explicit(&place->done, 0, memory_order_relaxed);
    const uint32_t turn = ++place->turn;
    for (size_t i = 0; i < all; i++) {
        const uint64_t left = WORD(turn, pieces * i / all, pieces * (i + 1) / all);
        atomic_store_explicit(&place->spans[i].left, left, memory_order_release);
    }
    atomic_store(&place->entry, WORD(turn, 1, all));
    call_workers(all - 1);
    const size_t own = work(place, turn, 0, all);
    for (size_t looks = 0; atomic_load(&place->done) < pieces - own; looks++) wait_a_little(looks);
    atomic_store(&place->entry, WORD(turn, all, all));
    atomic_fetch_sub(&wanted, all - 1);
    atomic_store(&place->taken, false);
}

/* Nothing of the pool but its memory is in a child of fork. */
static void begin_again(void) {
    for (struct place *place = places; place < places + MOST_CALLERS; place++) {
        atomic_store(&place->entry, 0);
        atomic_store(&place->taken, false);
    }
    atomic_store(&workers, 0);
    atomic_store(&sleeping, 0);
    atomic_store(&wanted, 0);
    called = 0, again_at = 0;
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&call, NULL);
}

/* Those that this process may run on, at least 1. */
static size_t count_processors(void) {
#ifdef CPU_COUNT
    cpu_set_t own;
    if (sched_getaffinity(0, sizeof own, &own) == 0) return (size_t)CPU_COUNT(&own);
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 1 ? (size_t)online : 1;
}

__attribute__((constructor)) static void prepare(void) {
    processors = count_processors();
    pthread_atfork(NULL, NULL, begin_again);
}
