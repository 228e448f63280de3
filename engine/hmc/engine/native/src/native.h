/* The native executor: step programs in C, for levels in int8. What it computes is what hmc/engine/reference.py
   computes, bit for bit.

   Functions that can fail return 0, or a negative number of `enum hmc_error`. Nothing here keeps a pointer beyond a
   call, except the weights of `hmc_open`, which must live as long as the level. A level may be used by several threads
   at once, a batch by one. */
#ifndef HMC_NATIVE_H
#define HMC_NATIVE_H

#include <stdint.h>

#define HMC_INTERFACE 6
#define HMC_MOST_ROWS 16 /* hypotheses of a sentence */
#define HMC_MOST_WIDTH 256 /* of a head */

enum hmc_error { HMC_NO_MEMORY = -1, HMC_BAD_ARGUMENT = -2 };

enum hmc_kind { HMC_EMBED, HMC_LINEAR, HMC_ATTEND_ENCODER, HMC_STORE_SOURCE, HMC_ATTEND_SELF, HMC_ATTEND_SOURCE, HMC_CANDIDATES };
enum hmc_activation { HMC_NONE, HMC_RELU, HMC_SWISH, HMC_GELU };

/* real = scale · (q − zero); without: the value stays a float. */
typedef struct {
  int32_t quantised, zero, is_signed;
  float scale;
} hmc_range;

/* y = x Wᵀ + b. Floats [outputs, inputs]; int8 [inputs, outputs] with scales that hold that of the input too. */
typedef struct {
  const void *weight;
  const float *scales, *bias;
  int32_t outputs;
} hmc_matrix;

/* One operation of a program. Values are numbered; −1: none. */
typedef struct {
  int32_t kind;
  int32_t input, output;
  /* linear */
  int32_t parts, residual, sum_output, norm_output;
  const float *sum_bias, *norm_weight, *norm_bias;
  float epsilon;
  int32_t matrices, inputs, outputs, activation;
  const hmc_matrix *matrix;
  hmc_range range;
  /* embed */
  int32_t table_is_int8;
  const void *table;
  const float *table_scales, *positions;
  float factor;
  /* attention */
  int32_t heads, width, plane;
  float scale; /* of scores of floats */
  float score_factor, value_factor; /* of integers: of scores, and of sums of values */
  hmc_range query, key, value;
  /* candidates */
  int32_t block;
} hmc_operation;

typedef struct {
  int32_t vocabulary, positions; /* rows of both tables */
  int32_t source_vocabulary;
  int32_t pad, eos, start;
  int32_t listed; /* whether each sentence has a list of tokens, which are all that there is for it */
  int32_t values; /* numbered values */
  const int32_t *widths; /* of each */
  int32_t encode_count, step_count;
  const hmc_operation *encode, *step;
} hmc_program;

/* When the search of a sentence ends. */
typedef struct {
  int32_t limit, min_length, enough; /* tokens, EOS counted; enough: 0 for none */
  const double *penalties; /* [limit + 1] n ** length penalty, of n from 0 on; 1 for n = 0 */
} hmc_rules;

typedef struct hmc_level hmc_level;
typedef struct hmc_batch hmc_batch;

int hmc_interface(void);

/* Whether the kernels of this build compute what plain loops do, for a few products with the largest numbers that there
   are. For builds that run on a processor on which they were never tested. */
int hmc_check(void);

/* Copies the weights into the layout of its kernels. */
int hmc_open(const hmc_program *program, hmc_level **level);
void hmc_close(hmc_level *level);
int64_t hmc_level_bytes(const hmc_level *level);

/* rows: hypotheses of each sentence. threads: those that divide each call among them. */
int hmc_batch_open(const hmc_level *level, int32_t rows, int32_t threads, hmc_batch **batch);
void hmc_batch_close(hmc_batch *batch);

/* Encodes `count` sentences and appends them. starts [count + 1]: where each begins in `tokens`. rules [count].
   list_starts [count + 1], listed: in a level with lists, the ids of each sentence's list, ascending; else NULL. */
int hmc_admit(hmc_batch *batch, int32_t count, const int32_t *starts, const int32_t *tokens, const hmc_rules *rules,
              const int32_t *list_starts, const int32_t *listed);

/* Sentence i becomes what sentence order[i] was; the others go. What has ended has been collected before. */
int hmc_keep(hmc_batch *batch, int32_t count, const int32_t *order);

/* Runs up to `steps` steps with their search. A sentence that ends leaves the batch, the others close up behind it, and
   what it has found is kept for `hmc_collect`, which has to be called before the next run. The run returns early when
   `many` sentences have ended, when the first of them has waited for `held` further steps, and when none is left.
   Returns the steps. ended [2]: how many sentences have ended, and the most tokens that one of them has. */
int hmc_run(hmc_batch *batch, int32_t steps, int32_t held, int32_t many, int32_t *ended);

/* Takes what the sentences that have ended have found, in the order of their ends; returns their number n. places [n]:
   of each in the batch when the run began. failed [n]: 1 where the model gave a number that is none. `hypotheses`
   entries of each, best first; those behind its last have the rank −∞ and the length 0. lengths: tokens, EOS counted
   where complete is 1. tokens, scores: each token and its log-probability, of one hypothesis after the other; room:
   that both arrays have. */
int hmc_collect(hmc_batch *batch, int32_t hypotheses, int32_t room, int32_t *places, int32_t *failed, double *ranks,
                int32_t *lengths, int32_t *complete, int32_t *tokens, float *scores);

/* One step whose search is the host's: the last token of every row → logits [rows of all, width]. width: the vocabulary;
   in a level with lists at least the longest list, and logits are of a row's list, −∞ behind its end. attention: weights
   over source positions of every AttendSource in order, [rows of all, heads, longest]; NULL: not wanted. */
int hmc_step(hmc_batch *batch, const int32_t *tokens, float *logits, int32_t width, float *attention, int32_t longest);

/* Of each row of logits [rows, width], in blocks: the places of the `wanted` largest, the largest first and of equal ones
   the first → ids [rows, wanted]; and the log of the sum of exponentials → sums [rows]. */
int hmc_rank(const float *logits, int32_t rows, int32_t width, int32_t block, int32_t wanted, int32_t *ids, float *sums);

/* Each value becomes its exponential. */
void hmc_exp(float *values, int64_t count);

/* Row r continues row parents[r] of the same sentence; numbers of the rows of all. */
int hmc_reorder(hmc_batch *batch, const int32_t *parents);

#endif
