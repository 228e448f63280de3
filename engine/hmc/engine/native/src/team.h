/* Threads that divide a step among them. */
#ifndef HMC_TEAM_H
#define HMC_TEAM_H

#include <stdint.h>

#define HMC_MOST_THREADS 64

typedef struct hmc_team hmc_team;

/* Does part `part` of `parts` of a task. */
typedef void (*hmc_task)(void *task, int part, int parts);

/* threads: with the one that calls. NULL: no memory, or the system gives no thread. */
hmc_team *hmc_team_open(int threads);
void hmc_team_close(hmc_team *team);
int hmc_team_threads(const hmc_team *team);

/* Between these two calls the threads spin while they wait, and so answer within a microsecond. */
void hmc_team_begin(hmc_team *team);
void hmc_team_end(hmc_team *team);

/* Runs all parts of a task, the first in this thread, and returns when they are done. team: NULL runs one part. */
void hmc_team_run(hmc_team *team, hmc_task run, void *task);

/* Where the share of a part begins: `all` things in pieces of `piece`. */
static inline int hmc_share(int all, int piece, int part, int parts) {
  const int64_t pieces = (all + piece - 1) / piece;
  const int64_t begin = pieces * part / parts * piece;
  return begin < all ? (int)begin : all;
}

#endif
