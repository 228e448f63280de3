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
  _Atomic unsigned number; /* of the present task */
  _Atomic int left; /* parts of it that are not done */
  hmc_task run;
  void *task;
};

typedef struct {
  hmc_team *team;
  int part;
} member;

static inline void relax(int *spins) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
  if (++*spins % SPINS == 0) sched_yield();
}

static void *work(void *argument) {
  const member me = *(member *)argument;
  free(argument);
  hmc_team *team = me.team;
  unsigned seen = 0;
  for (;;) {
    int spins = 0;
    while (atomic_load_explicit(&team->number, memory_order_acquire) == seen) {
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
    seen++;
    team->run(team->task, me.part, team->threads);
    atomic_fetch_sub_explicit(&team->left, 1, memory_order_release);
  }
}

hmc_team *hmc_team_open(int threads) {
  hmc_team *team = calloc(1, sizeof *team);
  if (!team) return NULL;
  team->threads = threads;
  pthread_mutex_init(&team->mutex, NULL);
  pthread_cond_init(&team->changed, NULL);
  for (int part = 1; part < threads; part++) {
    member *me = malloc(sizeof *me);
    if (me) *me = (member){team, part};
    if (!me || pthread_create(&team->others[team->started], NULL, work, me)) {
      free(me);
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
  team->run = run;
  team->task = task;
  atomic_store_explicit(&team->left, team->threads - 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&team->number, 1, memory_order_release);
  run(task, 0, team->threads);
  int spins = 0;
  while (atomic_load_explicit(&team->left, memory_order_acquire)) relax(&spins);
}
