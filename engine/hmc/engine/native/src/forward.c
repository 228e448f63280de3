/* The two lists of a program: its operations, one after the other. */
#include "internal.h"

int hmc_encode_sentences(hmc_batch *batch, sentence **sentences, int32_t count, const int32_t *const *tokens) {
  int rows = 0;
  for (int i = 0; i < count; i++) rows += sentences[i]->source;
  if (hmc_make_room(batch, rows)) return HMC_NO_MEMORY;
  rows = 0;
  for (int i = 0; i < count; i++)
    for (int t = 0; t < sentences[i]->source; t++, rows++) {
      batch->tokens[rows] = tokens[i][t];
      batch->positions[rows] = t;
    }
  const hmc_level *level = batch->level;
  for (int i = 0; i < level->encode_count; i++) {
    const operation *op = level->encode + i;
    int first = 0;
    switch (op->is.kind) {
      case HMC_EMBED:
        hmc_embed(batch, op, rows);
        break;
      case HMC_LINEAR:
        hmc_linear(batch, op, rows);
        break;
      case HMC_ATTEND_ENCODER:
        for (int j = 0; j < count; first += sentences[j++]->source)
          if (hmc_attend_encoder(batch, &op->is, first, sentences[j]->source)) return HMC_NO_MEMORY;
        break;
      default:
        for (int j = 0; j < count; first += sentences[j++]->source) hmc_store_source(batch, &op->is, sentences[j], first);
    }
  }
  return 0;
}

int hmc_forward(hmc_batch *batch, float *attention, int32_t longest) {
  const hmc_level *level = batch->level;
  const int rows = batch->count * batch->rows;
  for (int i = 0; i + 1 < level->step_count; i++) {
    const operation *op = level->step + i;
    int error = 0;
    switch (op->is.kind) {
      case HMC_EMBED:
        hmc_embed(batch, op, rows);
        break;
      case HMC_LINEAR:
        hmc_linear(batch, op, rows);
        break;
      case HMC_ATTEND_SELF:
        error = hmc_attend_self(batch, &op->is);
        break;
      default:
        error = hmc_attend_source(batch, &op->is, attention, longest);
        if (attention) attention += (size_t)rows * op->is.heads * longest;
    }
    if (error) return error;
  }
  return 0;
}
