/* Sentences join a batch, move within it and leave it. */
#include <stdlib.h>

#include "internal.h"

#define MOST_TOGETHER 160 /* source tokens that are encoded at once, but for a longer sentence alone */

/* ---- opening ---- */

int hmc_batch_open(const hmc_level *level, int32_t rows, int32_t threads, hmc_batch **opened) {
  if (!level || rows < 1 || rows > HMC_MOST_ROWS || threads < 1 || threads > HMC_MOST_THREADS) return HMC_BAD_ARGUMENT;
  hmc_batch *batch = calloc(1, sizeof *batch);
  if (!batch) return HMC_NO_MEMORY;
  batch->level = level;
  batch->rows = rows;
  batch->values = calloc((size_t)level->values, sizeof(float *));
  batch->team = threads > 1 ? hmc_team_open(threads) : NULL;
  if (!batch->values || (threads > 1 && !batch->team)) {
    hmc_team_close(batch->team);
    free(batch->values);
    free(batch);
    return HMC_NO_MEMORY;
  }
  *opened = batch;
  return 0;
}

void hmc_free_sentence(hmc_batch *batch, sentence *s) {
  for (int i = 0; i < s->page_count; i++) {
    if (batch->free_count == batch->free_most) {
      const int32_t more = 2 * batch->free_most + 64;
      uint8_t **pages = realloc(batch->free_pages, (size_t)more * sizeof(uint8_t *));
      if (!pages) {
        free(s->pages[i]);
        continue;
      }
      batch->free_pages = pages;
      batch->free_most = more;
    }
    batch->free_pages[batch->free_count++] = s->pages[i];
  }
  hmc_free_packed(&s->projection);
  free(s->listed);
  free(s->memory);
  free(s->at);
  free(s->pages);
  free(s->ancestors);
  free(s->moved);
  free(s->penalties);
  free(s->tokens);
  free(s->parents);
  free(s->scores);
  free(s->ended);
  free(s);
}

void hmc_batch_close(hmc_batch *batch) {
  if (!batch) return;
  hmc_team_close(batch->team);
  for (int i = 0; i < batch->count; i++) hmc_free_sentence(batch, batch->sentences[i]);
  for (int i = 0; i < batch->ended_count; i++) hmc_free_sentence(batch, batch->ended[i]);
  for (int i = 0; i < batch->free_count; i++) free(batch->free_pages[i]);
  for (int i = 0; i < batch->level->values; i++) free(batch->values[i]);
  free(batch->sentences);
  free(batch->ended);
  free(batch->free_pages);
  free(batch->values);
  free(batch->scratch);
  free(batch->quantised);
  free(batch->tokens);
  free(batch->positions);
  free(batch->nans);
  free(batch->attend);
  free(batch->logits);
  free(batch->best);
  free(batch->ids);
  free(batch->sums);
  free(batch);
}

/* ---- joining ---- */

static int source_memory(const hmc_level *level, sentence *s) {
  s->at = malloc((2 * (size_t)level->source_count + 1) * sizeof(size_t));
  if (!s->at) return HMC_NO_MEMORY;
  size_t bytes = 0;
  for (int i = 0; i < level->source_count; i++) {
    const plane *p = level->source + i;
    const size_t numbers = (size_t)p->heads * p->width * s->source;
    s->at[2 * i] = bytes;
    bytes = ROUND_UP(bytes + numbers * p->key_bytes, 64);
    s->at[2 * i + 1] = bytes;
    bytes = ROUND_UP(bytes + numbers * p->value_bytes, 64);
  }
  s->memory = hmc_memory(bytes);
  return s->memory ? 0 : HMC_NO_MEMORY;
}

static int rules_hold(const hmc_level *level, const hmc_rules *r) {
  return r->limit >= 1 && r->limit < level->positions && r->min_length >= 0 && r->enough >= 0 && r->enough <= 4096 &&
         r->penalties;
}

static sentence *new_sentence(const hmc_batch *batch, int32_t source, const hmc_rules *rules) {
  sentence *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  const size_t rows = (size_t)batch->rows, entries = (size_t)rules->limit + 1;
  s->source = source;
  s->rules = *rules;
  s->room = rules->limit + 1;
  s->ended_most = rules->enough > batch->rows ? rules->enough : batch->rows;
  s->ancestors = malloc(rows * entries * 4);
  s->moved = malloc(rows * entries * 4);
  s->pages = malloc((rows * entries / PAGE + 1) * sizeof(uint8_t *));
  s->penalties = malloc(entries * sizeof(double));
  s->tokens = malloc(rows * entries * 4);
  s->parents = malloc(rows * entries * 4);
  s->scores = malloc(rows * entries * 4);
  s->ended = malloc(((size_t)s->ended_most + 1) * sizeof(hypothesis));
  if (!s->ancestors || !s->moved || !s->pages || !s->penalties || !s->tokens || !s->parents || !s->scores || !s->ended ||
      source_memory(batch->level, s))
    return s; /* `memory` is NULL */
  memcpy(s->penalties, rules->penalties, entries * sizeof(double));
  for (int r = 0; r < batch->rows; r++) {
    s->totals[r] = r ? -INFINITY : 0.0;
    s->last[r] = batch->level->start;
  }
  return s;
}

static int sources_hold(const hmc_level *level, int32_t count, const int32_t *starts, const int32_t *tokens) {
  for (int i = 0; i < count; i++) {
    if (starts[i + 1] <= starts[i] || starts[i + 1] - starts[i] > level->positions) return 0;
    for (int t = starts[i]; t < starts[i + 1]; t++)
      if (tokens[t] < 0 || tokens[t] >= level->source_vocabulary) return 0;
  }
  return 1;
}

static int lists_hold(const hmc_level *level, int32_t count, const int32_t *starts, const int32_t *ids) {
  if (!level->listed) return !starts && !ids;
  if (!starts || !ids || starts[0] != 0) return 0;
  for (int i = 0; i < count; i++) {
    if (starts[i + 1] <= starts[i] || starts[i + 1] - starts[i] > level->vocabulary) return 0;
    for (int t = starts[i]; t < starts[i + 1]; t++) {
      const int32_t before = t > starts[i] ? ids[t - 1] : -1;
      if (ids[t] <= before || ids[t] >= level->vocabulary) return 0;
    }
  }
  return 1;
}

/* The output projection of a sentence's list. */
static int take_list(const hmc_level *level, sentence *s, const int32_t *ids, int32_t count) {
  s->listed = malloc((size_t)count * 4);
  if (!s->listed) return HMC_NO_MEMORY;
  memcpy(s->listed, ids, (size_t)count * 4);
  return hmc_pack_listed(&level->step[level->step_count - 1].product, ids, count, &s->projection);
}

int hmc_admit(hmc_batch *batch, int32_t count, const int32_t *starts, const int32_t *tokens, const hmc_rules *rules,
              const int32_t *list_starts, const int32_t *listed) {
  if (!batch) return HMC_BAD_ARGUMENT;
  const hmc_level *level = batch->level;
  if (count < 1 || starts[0] != 0 || !sources_hold(level, count, starts, tokens)) return HMC_BAD_ARGUMENT;
  if (!lists_hold(level, count, list_starts, listed)) return HMC_BAD_ARGUMENT;
  for (int i = 0; i < count; i++)
    if (!rules_hold(level, rules + i)) return HMC_BAD_ARGUMENT;
  const int32_t all = batch->count + batch->ended_count + count;
  if (all > batch->most) {
    sentence **sentences = realloc(batch->sentences, 2 * (size_t)all * sizeof(sentence *));
    if (!sentences) return HMC_NO_MEMORY;
    batch->sentences = sentences;
    sentence **ended = realloc(batch->ended, 2 * (size_t)all * sizeof(sentence *));
    if (!ended) return HMC_NO_MEMORY;
    batch->ended = ended;
    batch->most = 2 * all;
  }
  sentence **fresh = batch->sentences + batch->count;
  const int32_t **texts = malloc((size_t)count * sizeof(int32_t *));
  int made = 0, error = texts ? 0 : HMC_NO_MEMORY;
  while (!error && made < count) {
    texts[made] = tokens + starts[made];
    fresh[made] = new_sentence(batch, starts[made + 1] - starts[made], rules + made);
    if (!fresh[made])
      error = HMC_NO_MEMORY;
    else if (!fresh[made++]->memory)
      error = HMC_NO_MEMORY;
    else if (level->listed)
      error = take_list(level, fresh[made - 1], listed + list_starts[made - 1], list_starts[made] - list_starts[made - 1]);
  }
  for (int first = 0, last; !error && first < count; first = last) {
    last = first + 1;
    while (last < count && starts[last + 1] - starts[first] <= MOST_TOGETHER) last++;
    hmc_team_begin(batch->team);
    error = hmc_encode_sentences(batch, fresh + first, last - first, texts + first);
    hmc_team_end(batch->team);
  }
  free(texts);
  if (error) {
    for (int i = 0; i < made; i++) hmc_free_sentence(batch, fresh[i]);
    return error;
  }
  batch->count += count;
  return 0;
}

/* ---- moving and leaving ---- */

int hmc_keep(hmc_batch *batch, int32_t count, const int32_t *order) {
  if (!batch || count < 0 || count > batch->count || batch->ended_count) return HMC_BAD_ARGUMENT;
  sentence **kept = malloc(((size_t)batch->most + 1) * sizeof(sentence *));
  if (!kept) return HMC_NO_MEMORY;
  for (int i = 0; i < count; i++) {
    kept[i] = order[i] >= 0 && order[i] < batch->count ? batch->sentences[order[i]] : NULL;
    for (int j = 0; j < i; j++)
      if (kept[j] == kept[i]) kept[i] = NULL;
    if (!kept[i]) {
      free(kept);
      return HMC_BAD_ARGUMENT;
    }
  }
  for (int i = 0; i < count; i++) batch->sentences[order[i]] = NULL;
  for (int i = 0; i < batch->count; i++)
    if (batch->sentences[i]) hmc_free_sentence(batch, batch->sentences[i]);
  free(batch->sentences);
  batch->sentences = kept;
  batch->count = count;
  return 0;
}

static int identity(const int32_t *parents, int rows) {
  for (int r = 0; r < rows; r++)
    if (parents[r] != r) return 0;
  return 1;
}

/* Row r continues row parents[r]; both of the sentence. */
void hmc_move(const hmc_batch *batch, sentence *s, const int32_t *parents) {
  if (identity(parents, batch->rows)) return;
  for (int r = 0; r < batch->rows; r++)
    memcpy(s->moved + (size_t)r * s->room, s->ancestors + (size_t)parents[r] * s->room, (size_t)s->position * 4);
  int32_t *spare = s->ancestors;
  s->ancestors = s->moved;
  s->moved = spare;
}

int hmc_reorder(hmc_batch *batch, const int32_t *parents) {
  if (!batch) return HMC_BAD_ARGUMENT;
  const int rows = batch->rows;
  for (int i = 0; i < batch->count * rows; i++)
    if (parents[i] / rows != i / rows || parents[i] < 0) return HMC_BAD_ARGUMENT;
  for (int i = 0; i < batch->count; i++) {
    int32_t own[HMC_MOST_ROWS];
    for (int r = 0; r < rows; r++) own[r] = parents[i * rows + r] - i * rows;
    hmc_move(batch, batch->sentences[i], own);
  }
  return 0;
}

/* ---- a step begins and ends ---- */

static uint8_t *new_page(hmc_batch *batch) {
  return batch->free_count ? batch->free_pages[--batch->free_count] : hmc_memory(batch->level->page_bytes);
}

int hmc_begin_step(hmc_batch *batch, const int32_t *tokens) {
  const int rows = batch->rows;
  if (hmc_make_room(batch, batch->count * rows)) return HMC_NO_MEMORY;
  for (int i = 0; i < batch->count; i++) {
    sentence *s = batch->sentences[i];
    if (s->position >= s->room) return HMC_BAD_ARGUMENT;
    while (s->page_count * PAGE < (s->position + 1) * rows) {
      uint8_t *page = new_page(batch);
      if (!page) return HMC_NO_MEMORY;
      s->pages[s->page_count++] = page;
    }
    for (int r = 0; r < rows; r++) {
      const int row = i * rows + r;
      const int32_t token = tokens ? tokens[row] : s->last[r];
      if (token < 0 || token >= batch->level->vocabulary) return HMC_BAD_ARGUMENT;
      batch->tokens[row] = token;
      batch->positions[row] = s->position;
      s->ancestors[(size_t)r * s->room + s->position] = s->position * rows + r;
    }
  }
  return 0;
}

void hmc_end_step(hmc_batch *batch) {
  for (int i = 0; i < batch->count; i++) batch->sentences[i]->position++;
}
