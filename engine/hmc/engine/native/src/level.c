/* Opening a level: its operations are checked, and room is planned for what its sentences remember. */
#include <stdlib.h>

#include "internal.h"

#define MOST (1 << 24) /* of any width or count */

int hmc_interface(void) { return HMC_INTERFACE; }

static int in_range(int64_t value, int64_t low, int64_t high) { return value >= low && value <= high; }

static int range_holds(hmc_range r) {
  if (!r.quantised) return 1;
  return r.scale > 0 && r.scale < INFINITY && (r.is_signed ? r.zero == 0 : in_range(r.zero, 0, 255));
}

/* ---- checks ---- */

static int is_value(const hmc_program *p, int32_t value, int64_t width) {
  return in_range(value, 0, p->values - 1) && p->widths[value] == width;
}

static int product_holds(const hmc_operation *o) {
  if (!in_range(o->matrices, 0, 64) || !in_range(o->activation, HMC_NONE, HMC_GELU) || !range_holds(o->range) || o->range.is_signed) return 0;
  if (o->matrices && (!in_range(o->inputs, 1, MOST) || !o->matrix)) return 0;
  int64_t outputs = 0;
  for (int m = 0; m < o->matrices; m++) {
    const hmc_matrix *matrix = o->matrix + m;
    if (!matrix->weight || !in_range(matrix->outputs, 1, MOST) || (o->range.quantised && !matrix->scales)) return 0;
    outputs += matrix->outputs;
  }
  /* int8: sums of up to `inputs` products of 8 bits fit 32 bits. */
  return outputs == o->outputs && (!o->range.quantised || o->inputs <= 65000);
}

static int linear_holds(const hmc_program *p, const hmc_operation *o) {
  const int32_t read = o->residual >= 0 ? o->residual : o->input;
  if (!in_range(read, 0, p->values - 1)) return 0;
  const int64_t width = p->widths[read];
  if (o->residual < 0 && (o->parts >= 0 || o->sum_bias || o->sum_output >= 0)) return 0;
  if (o->parts >= 0 && !is_value(p, o->parts, width)) return 0;
  if (o->sum_output >= 0 && !is_value(p, o->sum_output, width)) return 0;
  if (o->norm_output >= 0 && (!o->norm_weight || !is_value(p, o->norm_output, width))) return 0;
  if (o->norm_weight && !o->norm_bias) return 0;
  if (!product_holds(o)) return 0;
  return o->inputs == width && (o->matrices == 0 || is_value(p, o->output, o->outputs));
}

static int attention_holds(const hmc_program *p, const hmc_operation *o, int parts) {
  if (!in_range(o->heads, 1, 4096) || !in_range(o->width, 1, HMC_MOST_WIDTH)) return 0;
  if (!range_holds(o->query) || !range_holds(o->key) || !range_holds(o->value)) return 0;
  if (o->key.quantised != o->value.quantised) return 0;
  const int64_t width = (int64_t)o->heads * o->width;
  if (!is_value(p, o->input, parts * width)) return 0;
  return o->kind == HMC_STORE_SOURCE || (o->query.quantised == o->key.quantised && is_value(p, o->output, width));
}

static int holds(const hmc_program *p, const hmc_operation *o, int encode) {
  switch (o->kind) {
    case HMC_EMBED:
      return o->table && o->positions && is_value(p, o->output, o->outputs);
    case HMC_LINEAR:
      return linear_holds(p, o);
    case HMC_ATTEND_ENCODER:
      return encode && attention_holds(p, o, 3) && !o->query.quantised;
    case HMC_STORE_SOURCE:
      return encode && attention_holds(p, o, 2);
    case HMC_ATTEND_SELF:
      return !encode && attention_holds(p, o, 3);
    case HMC_ATTEND_SOURCE:
      return !encode && attention_holds(p, o, 1);
    case HMC_CANDIDATES:
      return !encode && in_range(o->input, 0, p->values - 1) && o->matrices > 0 && product_holds(o) &&
             o->inputs == p->widths[o->input] && o->outputs == p->vocabulary && in_range(o->block, 16, MOST) &&
             o->block % COLUMNS == 0;
    default:
      return 0;
  }
}

static int program_holds(const hmc_program *p) {
  if (!in_range(p->vocabulary, 1, MOST) || !in_range(p->source_vocabulary, 1, MOST)) return 0;
  if (!in_range(p->positions, 1, MOST) || !in_range(p->values, 1, 1 << 16)) return 0;
  if (!in_range(p->encode_count, 1, 1 << 16) || !in_range(p->step_count, 1, 1 << 16)) return 0;
  if (!in_range(p->pad, 0, p->vocabulary - 1) || !in_range(p->eos, 0, p->vocabulary - 1)) return 0;
  if (!in_range(p->start, 0, p->vocabulary - 1)) return 0;
  for (int i = 0; i < p->values; i++)
    if (!in_range(p->widths[i], 1, MOST)) return 0;
  for (int i = 0; i < p->encode_count; i++)
    if (!holds(p, p->encode + i, 1)) return 0;
  for (int i = 0; i < p->step_count; i++)
    if (!holds(p, p->step + i, 0)) return 0;
  return p->step[p->step_count - 1].kind == HMC_CANDIDATES;
}

/* ---- caches ---- */

/* The planes of one kind are numbered from 0 on, and what writes one agrees with what reads it. */
static int find_planes(const operation *list, int count, int kind, plane **planes, int32_t *found) {
  int many = 0;
  for (int i = 0; i < count; i++) many += list[i].is.kind == kind;
  *found = many;
  *planes = calloc((size_t)many + 1, sizeof(plane));
  if (!*planes) return HMC_NO_MEMORY;
  for (int i = 0; i < count; i++) {
    const hmc_operation *o = &list[i].is;
    if (o->kind != kind) continue;
    if (!in_range(o->plane, 0, many - 1) || (*planes)[o->plane].heads) return HMC_BAD_ARGUMENT;
    (*planes)[o->plane] = (plane){
      .heads = o->heads, .width = o->width, .key_bytes = o->key.quantised ? 1 : 4,
      .value_bytes = o->value.quantised ? 1 : 4,
    };
  }
  return 0;
}

static int same_planes(const hmc_level *level) {
  for (int i = 0; i < level->step_count; i++) {
    const hmc_operation *o = &level->step[i].is;
    if (o->kind != HMC_ATTEND_SOURCE) continue;
    if (!in_range(o->plane, 0, level->source_count - 1)) return 0;
    const plane *p = level->source + o->plane;
    if (p->heads != o->heads || p->width != o->width || p->key_bytes != (o->key.quantised ? 1 : 4)) return 0;
  }
  return 1;
}

static int make_caches(hmc_level *level) {
  int error = find_planes(level->encode, level->encode_count, HMC_STORE_SOURCE, &level->source, &level->source_count);
  if (error) return error;
  error = find_planes(level->step, level->step_count, HMC_ATTEND_SELF, &level->own, &level->own_count);
  if (error) return error;
  for (int i = 0; i < level->own_count; i++) {
    plane *p = level->own + i;
    const size_t numbers = (size_t)p->heads * PAGE * p->width;
    p->keys = level->page_bytes;
    p->values = ROUND_UP(p->keys + numbers * p->key_bytes, 64);
    level->page_bytes = ROUND_UP(p->values + numbers * p->value_bytes, 64);
  }
  return same_planes(level) ? 0 : HMC_BAD_ARGUMENT;
}

/* ---- opening ---- */

static int copy_list(hmc_level *level, const hmc_operation *from, int32_t count, operation **list) {
  *list = calloc((size_t)count, sizeof(operation));
  if (!*list) return HMC_NO_MEMORY;
  for (int i = 0; i < count; i++) {
    (*list)[i].is = from[i];
    if (from[i].matrices && (from[i].kind == HMC_LINEAR || from[i].kind == HMC_CANDIDATES)) {
      packed *p = &(*list)[i].product;
      const int error = hmc_pack(p, from + i, level->listed && from[i].kind == HMC_CANDIDATES);
      if (error) return error;
      level->bytes += (int64_t)hmc_packed_bytes(p) + 12 * (int64_t)p->padded_outputs;
      if (p->range.quantised && p->padded_inputs > level->most_inputs) level->most_inputs = p->padded_inputs;
    }
  }
  return 0;
}

static int fill(hmc_level *level, const hmc_program *p) {
  level->strides = calloc((size_t)p->values, sizeof(int32_t));
  if (!level->strides) return HMC_NO_MEMORY;
  for (int i = 0; i < p->values; i++) {
    level->strides[i] = ROUND_UP(p->widths[i], COLUMNS) + COLUMNS; /* no power of 2: rows share no line of a cache */
    if (level->strides[i] > level->widest) level->widest = level->strides[i];
  }
  int error = copy_list(level, p->encode, p->encode_count, &level->encode);
  level->encode_count = level->encode ? p->encode_count : 0;
  if (error) return error;
  error = copy_list(level, p->step, p->step_count, &level->step);
  level->step_count = level->step ? p->step_count : 0;
  return error ? error : make_caches(level);
}

int hmc_open(const hmc_program *p, hmc_level **opened) {
  if (!program_holds(p)) return HMC_BAD_ARGUMENT;
  hmc_level *level = calloc(1, sizeof *level);
  if (!level) return HMC_NO_MEMORY;
  level->vocabulary = p->vocabulary;
  level->source_vocabulary = p->source_vocabulary;
  level->positions = p->positions;
  level->pad = p->pad;
  level->eos = p->eos;
  level->start = p->start;
  level->listed = p->listed != 0;
  level->values = p->values;
  const int error = fill(level, p);
  if (error) {
    hmc_close(level);
    return error;
  }
  *opened = level;
  return 0;
}

static void free_list(operation *list, int count) {
  for (int i = 0; i < count; i++) hmc_free_packed(&list[i].product);
  free(list);
}

void hmc_close(hmc_level *level) {
  if (!level) return;
  free_list(level->encode, level->encode_count);
  free_list(level->step, level->step_count);
  free(level->own);
  free(level->source);
  free(level->strides);
  free(level);
}

int64_t hmc_level_bytes(const hmc_level *level) { return level->bytes; }
