/* Threads that divide a step among them. */
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define SPINS 4096 /* looks before a thread that waits lets others run */

struct hmc_team {
  int threads;
  pthread_t others[HMC_MOST_THREADS];
  int started;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int closing; /* under the mutex */
  _Atomic int awake; /* whether a call is on */
  /* The number of the present task, 32 bits, and its next part, 32 bits. Whoever counts the part up does it. */
  _Atomic uint64_t next;
  _Atomic int done; /* parts of it */
  _Atomic(hmc_task) run;
  _Atomic(void *) task;
};

static inline void relax(int *spins) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
  if (++*spins % SPINS == 0) sched_yield();
}

/* Does parts of the present task until none is left. A thread that has no processor holds nobody up: others take its
   part. */
static void take_parts(hmc_team *team) {
  uint64_t next = atomic_load_explicit(&team->next, memory_order_acquire);
  while ((uint32_t)next < (uint32_t)team->threads) {
    const hmc_task run = atomic_load_explicit(&team->run, memory_order_relaxed);
    void *task = atomic_load_explicit(&team->task, memory_order_relaxed);
    /* It succeeds only if `next` is as it was, so both belong to that task. */
    if (!atomic_compare_exchange_weak_explicit(&team->next, &next, next + 1, memory_order_acq_rel, memory_order_acquire))
      continue;
    run(task, (int)(uint32_t)next, team->threads);
    atomic_fetch_add_explicit(&team->done, 1, memory_order_release);
    next = atomic_load_explicit(&team->next, memory_order_acquire);
  }
}

static void *work(void *argument) {
  hmc_team *team = argument;
  for (int spins = 0;;) {
    take_parts(team);
    if (atomic_load_explicit(&team->awake, memory_order_acquire)) {
      relax(&spins);
      continue;
    }
    pthread_mutex_lock(&team->mutex);
    while (!atomic_load(&team->awake) && !team->closing) pthread_cond_wait(&team->changed, &team->mutex);
    const int closing = team->closing;
    pthread_mutex_unlock(&team->mutex);
    if (closing) return NULL;
  }
}

hmc_team *hmc_team_open(int threads) {
  hmc_team *team = calloc(1, sizeof *team);
  if (!team) return NULL;
  team->threads = threads;
  atomic_store(&team->next, UINT32_MAX); /* no part is left */
  pthread_mutex_init(&team->mutex, NULL);
  pthread_cond_init(&team->changed, NULL);
  for (int part = 1; part < threads; part++) {
    if (pthread_create(&team->others[team->started], NULL, work, team)) {
      hmc_team_close(team);
      return NULL;
    }
    team->started++;
  }
  return team;
}

void hmc_team_close(hmc_team *team) {
  if (!team) return;
  pthread_mutex_lock(&team->mutex);
  team->closing = 1;
  pthread_cond_broadcast(&team->changed);
  pthread_mutex_unlock(&team->mutex);
  for (int i = 0; i < team->started; i++) pthread_join(team->others[i], NULL);
  pthread_mutex_destroy(&team->mutex);
  pthread_cond_destroy(&team->changed);
  free(team);
}

int hmc_team_threads(const hmc_team *team) { return team ? team->threads : 1; }

void hmc_team_begin(hmc_team *team) {
  if (!team) return;
  pthread_mutex_lock(&team->mutex);
  atomic_store(&team->awake, 1);
  pthread_cond_broadcast(&team->changed);
  pthread_mutex_unlock(&team->mutex);
}

void hmc_team_end(hmc_team *team) {
  if (team) atomic_store_explicit(&team->awake, 0, memory_order_release);
}

void hmc_team_run(hmc_team *team, hmc_task run, void *task) {
  if (!team) {
    run(task, 0, 1);
    return;
  }
  const uint64_t number = (atomic_load_explicit(&team->next, memory_order_relaxed) >> 32) + 1;
  atomic_store_explicit(&team->run, run, memory_order_relaxed);
  atomic_store_explicit(&team->task, task, memory_order_relaxed);
  atomic_store_explicit(&team->done, 0, memory_order_relaxed);
  atomic_store_explicit(&team->next, number << 32, memory_order_release);
  take_parts(team);
  int spins = 0;
  while (atomic_load_explicit(&team->done, memory_order_acquire) < team->threads) relax(&spins);
}
