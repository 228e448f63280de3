/* Greedy and beam search, as hmc/engine/decoding/beam.py has it: totals in 64 bits, ties to the earlier candidate. */
#include <stdlib.h>

#include "internal.h"

enum { RUNS, ENDED, FAILED };

typedef struct {
  double total;
  float score;
  int32_t token, row;
} candidate;

/* Keeps a hypothesis if it is among the best. length: its tokens, EOS counted. */
static void end(sentence *s, int row, double total, int length, int complete, float final) {
  const double rank = total / s->penalties[length < 1 ? 1 : length];
  int at = s->ended_count;
  while (at > 0 && s->ended[at - 1].rank < rank) at--;
  if (at >= s->ended_most) return;
  const int moved = (s->ended_count < s->ended_most ? s->ended_count : s->ended_most - 1) - at;
  memmove(s->ended + at + 1, s->ended + at, (size_t)moved * sizeof(hypothesis));
  s->ended[at] = (hypothesis){rank, total, length, row, complete, final};
  if (s->ended_count < s->ended_most) s->ended_count++;
}

/* Takes the running hypotheses as they are. length: their tokens. */
static void end_running(const hmc_batch *batch, sentence *s, int length) {
  for (int r = 0; r < batch->rows; r++)
    if (s->totals[r] > -INFINITY) end(s, r, s->totals[r], length, 0, 0.0f);
}

static int is_done(const hmc_batch *batch, sentence *s, int dead) {
  const int full = s->position >= s->rules.limit;
  if (!(dead || s->ended_count || full)) return 0;
  double best = -INFINITY;
  for (int r = 0; r < batch->rows; r++) best = s->totals[r] > best ? s->totals[r] : best;
  if (best == -INFINITY) return 1;
  if (s->rules.enough) {
    if (s->ended_count >= s->rules.enough) return 1;
  } else if (s->ended_count == batch->rows && best / s->penalties[s->position] <= s->ended[s->ended_count - 1].rank) {
    return 1;
  }
  if (!full) return 0;
  end_running(batch, s, s->position);
  return 1;
}

/* Inserts behind those that are as good; keeps `most`. */
static int insert(candidate *best, int count, int most, candidate c) {
  if (count == most && !(c.total > best[count - 1].total)) return count;
  int at = count < most ? count : most - 1;
  for (; at > 0 && best[at - 1].total < c.total; at--) best[at] = best[at - 1];
  best[at] = c;
  return count < most ? count + 1 : most;
}

/* The best 2 k continuations of a sentence's rows. Returns whether the model gave a number that is none. */
static int rank(const hmc_batch *batch, const sentence *s, const float *scores, const int32_t *ids, int width,
                candidate *best) {
  const hmc_level *level = batch->level;
  const int short_of = s->position < s->rules.min_length; /* `position` counts the token that is chosen here */
  int count = 0, failed = 0;
  for (int r = 0; r < batch->rows; r++) {
    int bad = 0;
    for (int j = 0; j < width; j++) bad |= !(scores[r * width + j] < INFINITY);
    failed |= bad && s->totals[r] > -INFINITY;
    for (int j = 0; j < width; j++) {
      const int32_t token = ids[r * width + j];
      const int never = bad || token == level->pad || (short_of && token == level->eos);
      const float score = never ? -INFINITY : scores[r * width + j];
      count = insert(best, count, 2 * batch->rows, (candidate){s->totals[r] + (double)score, score, token, r});
    }
  }
  return failed;
}

/* One step of a sentence, whose new tokens have been scored. */
static void advance(const hmc_batch *batch, sentence *s, const float *scores, const int32_t *ids, int width) {
  const int rows = batch->rows, eos = batch->level->eos;
  candidate best[2 * HMC_MOST_ROWS] = {{-INFINITY, 0, 0, 0}};
  if (rank(batch, s, scores, ids, width, best)) {
    s->state = FAILED;
    return;
  }
  const int dead = best[0].total == -INFINITY;
  const int step = s->position - 1;
  if (dead) end_running(batch, s, step);
  for (int j = 0; j < rows; j++)
    if (best[j].token == eos && best[j].total > -INFINITY)
      end(s, best[j].row, best[j].total, s->position, 1, best[j].score);
  int32_t parents[HMC_MOST_ROWS];
  int chosen = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int j = 0; j < 2 * rows && chosen < rows; j++) {
      const int is_eos = best[j].token == eos;
      if (is_eos != pass) continue;
      s->totals[chosen] = is_eos ? -INFINITY : best[j].total;
      s->last[chosen] = s->tokens[step * rows + chosen] = best[j].token;
      s->scores[step * rows + chosen] = best[j].score;
      s->parents[step * rows + chosen] = parents[chosen] = best[j].row;
      chosen++;
    }
  hmc_move(batch, s, parents);
  s->state = is_done(batch, s, dead) ? ENDED : RUNS;
}

/* Sentences that do not run any more leave the batch. */
static void set_aside_ended(hmc_batch *batch) {
  int left = 0;
  for (int i = 0; i < batch->count; i++) {
    sentence *s = batch->sentences[i];
    if (s->state == RUNS)
      batch->sentences[left++] = s;
    else
      batch->ended[batch->ended_count++] = s;
  }
  batch->count = left;
}

/* One step of all sentences with their search. */
static int step_all(hmc_batch *batch) {
  const int width = 2 * batch->rows + 1;
  int error = hmc_begin_step(batch, NULL);
  if (!error) error = hmc_forward(batch, NULL, 0);
  if (!error) error = hmc_best(batch, width);
  if (error) return error;
  hmc_end_step(batch);
  for (int i = 0; i < batch->count; i++) {
    const size_t first = (size_t)i * batch->rows * width;
    advance(batch, batch->sentences[i], batch->best + first, batch->ids + first, width);
  }
  set_aside_ended(batch);
  return 0;
}

int hmc_run(hmc_batch *batch, int32_t steps, int32_t held, int32_t many, int32_t *ended) {
  if (!batch || !batch->count || batch->ended_count || steps < 1 || held < 0 || many < 1) return HMC_BAD_ARGUMENT;
  for (int i = 0; i < batch->count; i++) batch->sentences[i]->place = i;
  int done = 0, since = 0, error = 0;
  hmc_team_begin(batch->team);
  while (done < steps && batch->count && batch->ended_count < many && since <= held) {
    error = step_all(batch);
    if (error) break;
    done++;
    if (batch->ended_count) since++;
  }
  hmc_team_end(batch->team);
  if (error && !batch->ended_count) return error; /* else the next run finds it again, and nothing that ended is lost */
  ended[0] = batch->ended_count;
  ended[1] = 0;
  for (int i = 0; i < batch->ended_count; i++)
    if (batch->ended[i]->position > ended[1]) ended[1] = batch->ended[i]->position;
  return done;
}

/* A hypothesis from its last token back to its first. */
static void follow(const hmc_batch *batch, const sentence *s, const hypothesis *h, int32_t *tokens, float *scores) {
  const int written = h->length - h->complete;
  if (h->complete) {
    tokens[written] = batch->level->eos;
    scores[written] = h->final;
  }
  int32_t row = h->row;
  for (int step = written - 1; step >= 0; step--) {
    const int32_t at = step * batch->rows + row;
    tokens[step] = s->tokens[at];
    scores[step] = s->scores[at];
    row = s->parents[at];
  }
}

static int32_t length_of(const sentence *s, int hypothesis) {
  return hypothesis < s->ended_count ? s->ended[hypothesis].length : 0;
}

int hmc_collect(hmc_batch *batch, int32_t hypotheses, int32_t room, int32_t *places, int32_t *failed, double *ranks,
                int32_t *lengths, int32_t *complete, int32_t *tokens, float *scores) {
  if (!batch || hypotheses < 0) return HMC_BAD_ARGUMENT;
  const int count = batch->ended_count;
  int64_t written = 0;
  for (int n = 0; n < count; n++)
    for (int i = 0; i < hypotheses; i++) written += length_of(batch->ended[n], i);
  if (written > room) return HMC_BAD_ARGUMENT;
  for (int n = 0; n < count; n++) {
    sentence *s = batch->ended[n];
    *places++ = s->place;
    *failed++ = s->state == FAILED;
    for (int i = 0; i < hypotheses; i++) {
      const hypothesis h = i < s->ended_count ? s->ended[i] : (hypothesis){-INFINITY, -INFINITY, 0, 0, 0, 0};
      *ranks++ = h.rank;
      *lengths++ = h.length;
      *complete++ = h.complete;
      follow(batch, s, &h, tokens, scores);
      tokens += h.length;
      scores += h.length;
    }
    hmc_free_sentence(batch, s);
  }
  batch->ended_count = 0;
  return count;
}
