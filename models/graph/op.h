// The op table: what an op reads and writes, what it costs, which letters its dimensions have.
//
// ops.def has one row per op; these are the queries on the rows. A forward op's row also names the rule that
// builds its backward in a graph (backward.h); an op's rules are in models/graph/ops/<family>.c. Kernels
// (kernels/kernels.h) receive the operands in the row's order.
#pragma once

#include "models/graph/attention_kernel.h"
#include "models/graph/route_score.h"
#include "runtime/base/access.h"
#include "runtime/base/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_op_kind {
#define FSDP_OP(KIND, name, PHASE, operands, RULES) FSDP_OP_##KIND,
#include "models/graph/ops.def"
  FSDP_OP_KIND_COUNT, // of those with kernels
  FSDP_OP_LAST_WITH_KERNEL = FSDP_OP_KIND_COUNT - 1,
#define FSDP_GRAPH_OP(KIND, name, PHASE, operands, RULES) FSDP_OP_##KIND,
#include "models/graph/ops.def"
  FSDP_OP_ROW_COUNT,

  // What others than models call ops that they use or add, by what these are for.
  FSDP_PLAN_OP_ZERO = FSDP_OP_ZERO,
  FSDP_PLAN_OP_SUM = FSDP_OP_SUM,
  FSDP_PLAN_OP_SUM_SQUARES = FSDP_OP_SUM_SQUARES, // weighted
  FSDP_PLAN_OP_CLIP = FSDP_OP_CLIP_FACTOR,        // the factor that the sum of squares gives
  FSDP_PLAN_OP_CHECKSUM = FSDP_OP_CHECKSUM,       // a digest
  FSDP_PLAN_OP_POISON = FSDP_OP_POISON,           // what tests fill free memory with
  FSDP_PLAN_OP_DROPOUT = FSDP_OP_DROPOUT,         // drops elements of an activation
  // One row of a matrix by its number, as an embedding's of a token: zeros if the matrix has fewer rows.
  FSDP_PLAN_OP_TAKE_ROW = FSDP_OP_EMBEDDING,
  // Moves of columns of wider rows, and zeros in what pads them.
  FSDP_PLAN_OP_TAKE_COLUMNS = FSDP_OP_TAKE_COLUMNS,
  FSDP_PLAN_OP_PUT_COLUMNS = FSDP_OP_PUT_COLUMNS,
  FSDP_PLAN_OP_JOIN_COLUMNS = FSDP_OP_JOIN_COLUMNS,
  FSDP_PLAN_OP_SPLIT_COLUMNS = FSDP_OP_SPLIT_COLUMNS,
  FSDP_PLAN_OP_MASK_COLUMNS = FSDP_OP_MASK_COLUMNS,
  // The head on a shard of the vocabulary: the rank's logits, then the loss, or the loss with gradients.
  FSDP_PLAN_OP_HEAD_LOGITS = FSDP_OP_HEAD_LOGITS,
  FSDP_PLAN_OP_HEAD_LOSS = FSDP_OP_HEAD_LOSS,
  FSDP_PLAN_OP_HEAD_BACKWARD = FSDP_OP_HEAD_BACKWARD,
  FSDP_PLAN_OP_ATTENTION = FSDP_OP_ATTENTION,
  FSDP_PLAN_OP_ATTENTION_BACKWARD = FSDP_OP_ATTENTION_BACKWARD,
  FSDP_PLAN_OP_ROUTE_COUNTS = FSDP_OP_ROUTE_COUNTS // of what rows of its first operand chose
} fsdp_op_kind;

// Which kernel makes products grouped by expert: a decision of the plan. On a GPU, from the one that always
// runs to the one to prefer.
typedef enum fsdp_grouped_kernel {
  FSDP_GROUPED_CPU, // a CPU's only one
  FSDP_GROUPED_GENERAL,
  FSDP_GROUPED_MMA,   // tensor cores, on every GPU: bf16, dimensions that are multiples of 8
  FSDP_GROUPED_WGMMA, // warpgroups, on compute capability 9.0 alone: the same
  FSDP_GROUPED_KERNEL_COUNT
} fsdp_grouped_kernel;

// "cpu", "general", "mma", "wgmma"
const char *fsdp_grouped_kernel_name(fsdp_grouped_kernel kernel);

// What an op must know beside its operands. Fields that an op does not use are zero.
typedef struct fsdp_op_attrs {
  int64_t batch, seq;                // b, t; n = batch * seq
  int64_t channels;                  // c
  int64_t heads, kv_heads, head_dim; // h, g, d
  int64_t rotary_dim;                // RoPE: of a head, its first elements that are rotated; 0: all
  int64_t intermediate;              // f
  int64_t vocabulary;                // v
  int64_t padding_token;             // embedding: 1 + the token that trains no row; 0: none
  int64_t positions;                 // m
  int64_t in_features, out_features; // i, o: of one gemm
  int64_t out_stride, out_offset;    // row width of y (or d_y) and this gemm's first column, in elements; of
                                     // context_attention: of what q lies in, and q's first column
  bool weight_transposed;            // of a linear op: its weight (and d_weight) is stored (in, out)
  int64_t window;                    // attention: query q sees keys k with q - window < k <= q; 0: all k <= q
  int64_t head_parts;                // attention_backward: blocks that share a group's heads; 0: one
  bool rotates_back;                 // attention_backward: d_q and d_k as rope_backward leaves them
  int64_t chunk_rows;                // cross-entropy: rows of x whose logits exist at one time; 0 in a graph
  // Of an op that works on indices [first_index, first_index + n) of a larger range, n from its shapes. The
  // first index may depend on the rank. `extent` is the real end of the whole range (0: first_index + n);
  // indices at or above it are padding. Embedding: rows of the vocabulary, n = v. RoPE and learned positions:
  // positions, n = t; no extent. The order of routed rows: experts, n = e.
  int64_t first_index, extent;
  // Rows of activations. `seq` rows of each of `batch` sequences lie in pieces of `piece` rows (0: seq), all
  // sequences' first pieces before their second: index l of sequence b is row
  // (l / piece * batch + b) * piece + l % piece. Of positions, the first `chunk` indices (0: all) have those
  // from first_index on, the others those from second_index on.
  int64_t piece, chunk, second_index;
  // Keys and values with rows of their own (context_attention): kv_seq of each sequence, positions 0 to
  // kv_seq - 1. They lie in kv_parts parts one after the other, each in pieces of kv_piece rows as above. One
  // part (0 or 1) has the positions in order. Of C parts, part c has chunks c and 2C - 1 - c of the 2C equal
  // chunks of positions.
  int64_t kv_seq, kv_parts, kv_piece;
  // Positions of a whole sequence, padding included, for each of which `starts` has that of its document's
  // first token: a query sees no key before it, and positions count from there. They never decrease, and none
  // exceeds its own position. Sequence b's are starts[b * documents] and on, on whichever ranks its rows lie.
  // 0: a row is one document, and there is no such operand.
  int64_t documents;
  // Dropout (runtime/base/random.h) at a rate of `dropout`, of an op that `drop_key` names. `draws` has two
  // words for each of so many rows, all those of a rank; the op's first one is row first_row there
  // (attention: its first query's; dropout: with columns from first_index on). 0: nothing is dropped, and
  // there is no such operand.
  float dropout;
  uint64_t drop_key;
  int64_t draws, first_row;
  // Attention: of the whole model's query heads, head i here is first_head + i / group * head_group + i %
  // group, group = heads / kv_heads.
  int64_t first_head, head_group;
  fsdp_attention_kernel attention; // attention: which kernel runs
  int64_t ranks;                   // r: ranks whose parts lie one after the other; or that add up a loss
  int64_t experts, slots;          // e, q
  int64_t arrivals, routed;        // a, u; 0: n * q, and as many as a
  int64_t first_routed;            // the first of the routed rows of u
  // Of a block of experts: of the `held_experts` that a rank has, those from first_expert on are the op's. 0:
  // it has all of them.
  int64_t held_experts, first_expert;
  fsdp_grouped_kernel products; // grouped by expert: which kernel runs
  double load;                  // for prices: routed rows, as a multiple of the mean of all ranks; 0: 1
  // Route, as in model_config.h: how logits become scores, which groups experts are chosen in (0: one), and
  // what the chosen scores become.
  fsdp_route_score route_score;
  bool route_normalises;
  int64_t route_groups, route_groups_kept, route_group_best;
  float route_scale; // 0: 1
  // Route's losses: their coefficients, over the micro-batches of a step once a plan has said how many, and
  // whether each rank takes its own rows alone.
  float aux_weight, z_weight;
  bool aux_of_rank;
  const float *inv_freq; // RoPE, rotates_back: an inverse frequency for each pair that is rotated,
                         // owned by the graph
  float eps;             // RMSNorm, LayerNorm
  float norm_weight;     // sum of squares: its factor, so that each element counts once whatever its replicas
  float max_norm;        // clip: factor = min(1, max_norm / (norm + 1e-6)), 1 if max_norm is 0
  float norm_limit;      // clip: above it, or if the norm is NaN, factor = FSDP_FACTOR_SKIP
  double beta1, beta2;   // 1 - beta and the corrections are taken of these, then rounded
  float adam_eps, weight_decay;
  float balance_rate; // balance: how far a bias moves in a step
  bool decays_some;   // AdamW: weight decay only where the runs of parameters say so
  bool weight_frozen; // backward of the head: the last operand that it writes, d_weight, is left out
  // Head: the loss is a mean over documents of the means over their targets. `learned` has for each row how
  // many targets of its document count, and `count` is how many documents have one.
  bool loss_of_documents;
} fsdp_op_attrs;

// The factor of a skipped step: AdamW leaves master, m, v and the copy as they are.
#define FSDP_FACTOR_SKIP (-1.0f)

// The rule by which a step is skipped, for the clip factor on the device and for the host, which sees the
// same norm: infinity and NaN are above every limit. `limit` is FLT_MAX if none is given.
#define FSDP_NORM_SKIPS(norm, limit) (!((norm) <= (limit)))

// Indices into the fp32 step scalars that a step receives from the host (FSDP_OP_ADAMW's second operand).
enum {
  FSDP_SCALAR_LR,          // learning rate of this step
  FSDP_SCALAR_CORRECTION1, // 1 - beta1^t, t the update's number from 1: skipped steps do not count
  FSDP_SCALAR_CORRECTION2, // 1 - beta2^t
  FSDP_SCALAR_STEP,        // t (exact up to 2^24), the counter of stochastic rounding
  FSDP_SCALAR_ONE,         // 1.0: the factor of an update that nothing clips
  FSDP_SCALAR_COUNT
};

#define FSDP_OP_MAX_OPERANDS 10
#define FSDP_TARGET_IGNORED  (-100) // a target that the loss does not count

// ---- Letters: the operands of an op as data (op_letters.c)

#define FSDP_OP_MAX_LETTERS 8
#define FSDP_OP_MAX_DIMS    4
#define FSDP_OP_MAX_BLOCKS  3

// When a launch has an operand.
typedef enum fsdp_op_given {
  FSDP_GIVEN_ALWAYS,
  FSDP_GIVEN_BY_DOCUMENTS, // if attrs.documents is not 0
  FSDP_GIVEN_BY_LEARNED,   // if attrs.loss_of_documents says so
  FSDP_GIVEN_BY_DRAWS      // if attrs.draws is not 0
} fsdp_op_given;

// Part of a dimension: a product of letters ("hd": the first is the slowest) or, without letters, a constant.
typedef struct fsdp_op_block {
  char letters[4];
  int64_t constant; // if there is no letter
} fsdp_op_block;

// A dimension: its blocks side by side (q|k|v).
typedef struct fsdp_op_dim {
  fsdp_op_block blocks[FSDP_OP_MAX_BLOCKS];
  int block_count;
  bool is_slice; // columns [out_offset, out_offset + size) of a row of out_stride
} fsdp_op_dim;

typedef struct fsdp_op_operand {
  char name[16];
  fsdp_access access; // READ, WRITE or UPDATE
  bool may_add;       // WRITE, but UPDATE is allowed too
  bool optional;
  bool transposable; // its dimensions are stored in reverse if attrs.weight_transposed
  bool is_linear;    // the outputs are linear in it: it may be a partial sum, and they are then
  fsdp_op_given given;
  bool repeated;  // stands for any number of operands, each with a p of its own
  bool has_dtype; // else any
  fsdp_dtype dtype;
  fsdp_op_dim dims[FSDP_OP_MAX_DIMS];
  int dim_count;
} fsdp_op_operand;

typedef struct fsdp_op_letter {
  char name;
  bool is_whole; // no mesh axis may shard it
  bool may_part; // of a letter that is whole: a plan makes other ops, which work on its shards
  bool is_even;  // shards divide its smallest dimension: heads of queries, as those of keys are
  char with;     // the letter that it is sharded together with, or 0
} fsdp_op_letter;

typedef struct fsdp_op_letters {
  fsdp_op_operand operands[FSDP_OP_MAX_OPERANDS];
  int operand_count; // workspaces are not among them
  fsdp_op_letter letters[FSDP_OP_MAX_LETTERS];
  int letter_count;
} fsdp_op_letters;

// The row's operands, parsed; static.
const fsdp_op_letters *fsdp_op_letters_of(fsdp_op_kind kind);

// NULL: the op has no such letter.
const fsdp_op_letter *fsdp_op_letter_find(const fsdp_op_letters *op, char letter);

// Whether the operand has the letter in one of its dimensions.
bool fsdp_op_operand_has(const fsdp_op_operand *operand, char letter);

// Whether the op sums over the letter on its way to output `operand`: if the letter is sharded, that output
// is a partial sum. False for a letter that is whole, and for inputs.
bool fsdp_op_contracts(const fsdp_op_letters *op, int operand, char letter);

// Of an op that works on a slice of columns: the operand whose rows these columns come from (the weight of a
// linear layer, or its gradient). -1: the op has no weight.
int fsdp_op_slice_weight(const fsdp_op_letters *op);

// The operand with one number for each of these columns (the bias, or its gradient). -1: the op has none.
int fsdp_op_slice_bias(const fsdp_op_letters *op);

// Items of a letter; `flat_elems` is p's.
int64_t fsdp_op_letter_size(const fsdp_op_attrs *attrs, char letter, int64_t flat_elems);

// Elements of a dimension, and of an operand as a kernel receives it: a slice counts as the whole rows.
int64_t fsdp_op_dim_size(const fsdp_op_attrs *attrs, const fsdp_op_dim *dim, int64_t flat_elems);
int64_t fsdp_op_operand_numel(const fsdp_op_attrs *attrs, const fsdp_op_operand *operand, int64_t flat_elems);

// ---- What the rows say

// "linear", "attention_backward", ...
const char *fsdp_op_name(fsdp_op_kind kind);

// The phase of a step that an op belongs to.
typedef enum fsdp_op_phase {
  FSDP_OP_IN_FORWARD,
  FSDP_OP_IN_BACKWARD,
  FSDP_OP_IN_UPDATE,
  FSDP_OP_IN_ANY // moves state
} fsdp_op_phase;
fsdp_op_phase fsdp_op_phase_of(fsdp_op_kind kind);

// Whether the op runs gemms through the device's library, and so uses that library's scratch.
bool fsdp_op_makes_gemms(fsdp_op_kind kind);

// The device whose kernels run an op. Instruction lists differ between devices only by this.
typedef enum fsdp_op_device { FSDP_OP_CPU, FSDP_OP_CUDA, FSDP_OP_DEVICE_COUNT } fsdp_op_device;

// Whether the device has a kernel of the op.
bool fsdp_op_runs_on(fsdp_op_device device, fsdp_op_kind kind);

// What a row says of its op by a word alone.
typedef enum fsdp_op_trait {
  FSDP_TRAIT_SLICED,
  FSDP_TRAIT_BY_ROW,       // the access trace needs room for n rows
  FSDP_TRAIT_NORM,         // rows of its input may be sharded where the residual stream's are
  FSDP_TRAIT_JUST_WRITTEN, // for measurements
  FSDP_TRAIT_CHOOSES,
  FSDP_TRAIT_OVER_TOKENS, // its first operand is one (attrs.ranks: how many have rows of their own), unless
                          // attrs.aux_of_rank says that it is of one rank's
  FSDP_TRAIT_SHRINKS,     // for measurements
  FSDP_TRAIT_COUNT
} fsdp_op_trait;
bool fsdp_op_has(fsdp_op_kind kind, fsdp_op_trait trait);

// The operand that the op adds to the residual stream (operand 0) before anything else; -1: none.
int fsdp_op_added(fsdp_op_kind kind);

// The operand that is the residual stream, which the op's gemm adds to what it makes; -1: none.
int fsdp_op_residual(fsdp_op_kind kind);

// Whether the op is attention over the rows of its input, which gathers keys where a plan shards positions.
bool fsdp_op_gathers_keys(fsdp_op_kind kind);

// What users call the op: "linear" also with a bias, "attention" also over keys of other ranks.
const char *fsdp_op_family(fsdp_op_kind kind);

// What a gemm of a linear layer makes, and so how its operands lie: x * weight^T, d_y * weight, d_y^T * x.
typedef enum fsdp_op_product_form {
  FSDP_PRODUCT_FORWARD,
  FSDP_PRODUCT_INPUT,
  FSDP_PRODUCT_WEIGHT,
  FSDP_PRODUCT_FORM_COUNT
} fsdp_op_product_form;

// c (m,n) = a (m,k) * b (k,n). `count`: how often; the last chunk of the head's rows may be a part of one.
typedef struct fsdp_op_product {
  fsdp_op_product_form form;
  int64_t m, n, k;
  double count;
} fsdp_op_product;

#define FSDP_OP_PRODUCTS_MAX 3

// The gemms of a launch; returns their number.
int fsdp_op_products(fsdp_op_kind kind, const fsdp_op_attrs *attrs,
                     fsdp_op_product products[FSDP_OP_PRODUCTS_MAX]);

// Whether the op makes a product for each of attrs.experts experts, with as many rows as the routing says:
// fsdp_op_products tells of experts that have as many each.
bool fsdp_op_is_grouped(fsdp_op_kind kind);

// The operand that says where the rows of the op's experts begin, one number for each and the end; -1: the op
// does not work on the rows of its experts alone.
int fsdp_op_offsets_operand(fsdp_op_kind kind);

// Routed rows of each wave but the first, which has attrs.routed of at most attrs.arrivals.
int64_t fsdp_op_later_wave_rows(const fsdp_op_attrs *attrs);

// The op that is one such gemm.
fsdp_op_kind fsdp_op_product_kind(fsdp_op_product_form form);

// Multiply-add work of the op's gemms as 2*m*n*k FLOPs (attention counted causally), for rates and prices.
double fsdp_op_flops(fsdp_op_kind kind, const fsdp_op_attrs *attrs);

// What is known about an operand of one launch.
typedef struct fsdp_op_extent {
  fsdp_dtype dtype;
  fsdp_access access;
  int64_t bytes;
} fsdp_op_extent;

// The least work of a launch.
typedef struct fsdp_op_work {
  double flops; // of its gemms, attention counted causally
  double bytes; // operands read once and written once; for the head also each chunk's pass over the weight's
                // gradient, which the gemms themselves read and write
  double row_bytes;   // moved by a kernel that runs between gemms and not under them: the rows of logits
  double added_bytes; // of `bytes`: read by gemms which add to what they make
} fsdp_op_work;

// `operands` in the row's order; a workspace at their end does not count. Of places for routed rows those
// count that have one, if experts get attrs.load times as many as in the mean.
fsdp_op_work fsdp_op_work_of(fsdp_op_kind kind, const fsdp_op_attrs *attrs, const fsdp_op_extent *operands,
                             int operand_count);

// The operands that a launch with these attributes has, but a workspace.
int fsdp_op_operand_count(const fsdp_op_letters *op, const fsdp_op_attrs *attrs);
// The row's entry for operand `index` of such a launch; NULL: a workspace.
const fsdp_op_operand *fsdp_op_operand_row(const fsdp_op_letters *op, const fsdp_op_attrs *attrs, int index);

// Whether a launch has the operands that the row names, with their element counts, accesses and dtypes, and
// behind them this device's workspace or nothing; a slice inside its rows, rows of whole pieces, and factors
// of one dtype. False: `message` says what is wrong.
#define FSDP_OP_MESSAGE_BYTES 200
bool fsdp_op_operands_fit(fsdp_op_device device, fsdp_op_kind kind, const fsdp_op_attrs *attrs,
                          const fsdp_op_extent *operands, int count, char *message, size_t message_bytes);

// Bytes of the workspace that the device's kernel takes as an additional last operand (written, fp32): a
// multiple of 4; 0: it takes none. A function of the shape alone; `flat_elems` is p.
int64_t fsdp_op_workspace_bytes(fsdp_op_device device, fsdp_op_kind kind, const fsdp_op_attrs *attrs,
                                int64_t flat_elems);

// ---- Attention's backward on a GPU: the heads of a group cut over blocks

// Keys whose gradients a block of the tensor-core kernels makes.
#define FSDP_ATTENTION_MMA_KEYS   64
#define FSDP_ATTENTION_WGMMA_KEYS 128

// How many blocks share the heads of a group, for attrs.head_parts: 1 if a multiprocessor has at least four
// blocks without that, so that the longest is at most half of what each multiprocessor has to do; else the
// fewest that divide the group and make as many blocks, or all its heads. By attrs.attention, which must be
// known; the general kernel's are one.
int64_t fsdp_op_attention_choose_parts(const fsdp_op_attrs *attrs, int64_t multiprocessors);

// Whether the kernel of attrs.attention can do rope_backward's work too: elements i and i + d/2 of a row are
// in one thread's registers if the heads fill a tile.
bool fsdp_op_attention_can_rotate(const fsdp_op_attrs *attrs);

// At least 1. Bytes of the parts of d_k and d_v, fp32, with which the workspace begins; 0: there is one part.
int64_t fsdp_op_attention_head_parts(const fsdp_op_attrs *attrs);
int64_t fsdp_op_attention_parts_bytes(const fsdp_op_attrs *attrs);

// The op that writes the elements of a range into another one (FSDP_WRITE), or adds them to it (FSDP_UPDATE).
fsdp_op_kind fsdp_op_move(fsdp_access destination);

// ---- Recomputation

// A smaller op that makes what is still needed of a recomputed op. Its operands are some of that op's.
typedef struct fsdp_op_remainder {
  fsdp_op_kind kind;
  int operands[FSDP_OP_MAX_OPERANDS]; // indices into the recomputed op's; a kept one is read
  int operand_count;
} fsdp_op_remainder;

// What remains to do of a recomputed op. kept[i]: its operand i is an output that was kept. False: all of it.
bool fsdp_op_remainder_of(fsdp_op_kind kind, const bool *kept, fsdp_op_remainder *remainder);

// Sets the attributes that depend on the device and on the dtypes of the op's operands. `gpu` is not read for
// a CPU.
void fsdp_op_complete_attrs(fsdp_op_device device, const fsdp_op_gpu *gpu, fsdp_op_kind kind,
                            fsdp_op_attrs *attrs, const fsdp_dtype *dtypes);

// Rows whose logits exist at one time (attrs.chunk_rows). `gradient` is the dtype of the head's weight
// gradient; FSDP_F32 if there is none.
int64_t fsdp_op_chunk_rows(fsdp_op_device device, int64_t rows, int64_t vocabulary, fsdp_dtype gradient);

#ifdef __cplusplus
}
#endif
