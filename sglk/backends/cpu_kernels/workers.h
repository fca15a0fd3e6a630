/* Workers that help whoever calls a kernel. */

#ifndef SGLK_WORKERS_H
#define SGLK_WORKERS_H

#include <stddef.h>

/* Computes one share of a job; nobody else is `worker`, less than the job's `threads`, at the time. */
typedef void (*share_function)(const void *job, size_t share, size_t worker);

/* Compute shares [0, count) on this thread and on `threads` - 1 workers at most, of which none is waited for that has
 * not begun a share. Any number of threads may call at once. */
__attribute__((visibility("hidden"))) void run_shares(int threads, size_t count, share_function function,
                                                      const void *job);

#endif
