// Plain C structs shared with Python. abi.py mirrors them field by field.
#pragma once

#include <cstdint>

namespace octavo {

// Formats of stored tensors (models/weights.py), up to GROUPS: pieces of models/groups.py. Packed matrices have the first
// two, and those from INT4 on (panels.h).
enum Format : int32_t {
  FORMAT_F32 = 0,
  FORMAT_BF16 = 1,
  FORMAT_Q4_0 = 2,
  FORMAT_Q4_1 = 3,
  FORMAT_Q8_0 = 4,
  FORMAT_Q5_0 = 5,
  FORMAT_Q5_1 = 6,
  FORMAT_Q4_K = 7,
  FORMAT_Q5_K = 8,
  FORMAT_Q6_K = 9,
  FORMAT_GROUPS = 10,
  FORMAT_INT4 = 16,
  FORMAT_INT6 = 17,
  FORMAT_INT8 = 18,
  FORMAT_INT4_16 = 19,
  FORMAT_INT4_SYMMETRIC = 20,
  FORMAT_INT4_SYMMETRIC_16 = 21,
  FORMAT_CODE4 = 22,
  FORMAT_CODE4_16 = 23,
  FORMAT_INT8_MINIMUM = 24,
  FORMAT_FP8 = 25,
};

struct Info {
  int32_t abi_version, vector_floats, panel, max_rows, activation_bytes, quantized_block_bytes;
};

// A tensor as stored in the file: rows of `cols` elements with a stride of `row_bytes`. GROUPS are bytes, with scales and
// minima [rows][cols / group]; minimum may be null.
struct Source {
  const void* data;
  const float *scale, *minimum;
  int64_t rows, cols, row_bytes, group;
  int32_t format;
};

// A packed matrix: panels of PANEL output columns; `rows` is padded to a multiple of PANEL. The layout of floats is
// [rows/PANEL][cols/GROUP][PANEL][GROUP]; panels.h has those of quantized weights. A fused matrix may consist of parts
// in formats of their own, whole panels each; then it has no data itself. Parts are not copied with the structures of a
// step: they must outlive the team, because a late thread may read them after the step.
struct Matrix {
  void* data;
  const float* bias;     // [rows] or null
  const float* factor;   // [rows], by which the products are multiplied, or null
  const int32_t* order;  // [cols] or null: column k of the matrix belongs to element order[k] of the input row
  const Matrix* parts;   // [part_count] or null
  int64_t rows, cols;
  int64_t span;       // blocks of 32 columns that share scales; 0 for floats
  int64_t first_row;  // of a part, in the fused matrix
  int32_t format, part_count;
  int8_t levels[16];  // of CODE4
};

// How a token's scores follow from the router's logits; see Experts in models/layers.py.
enum Scoring : int32_t {
  SCORING_SOFTMAX = 0,
  SCORING_SIGMOID = 1,
  SCORING_SOFTMAX_OF_CHOSEN = 2,
  SCORING_SOFTMAX_OF_NEAR = 3,
};

// How tokens choose among `count` experts. count 0: the model has none. A group's score is the sum of its `group_best`
// best experts. clamp 0: none.
struct Routing {
  int32_t count, chosen, scoring, normalized, groups, chosen_groups, group_best, input_scaled;
  float scale, clamp, near;
};

// A mixture of experts of one layer. The shared MLP is the last expert: each token uses it, and no router chooses it.
// Like parts of matrices it must outlive the team.
struct Experts {
  Matrix router;                 // of floats: a row for each expert, then the gate of the shared MLP, where it has one
  const float* correction;       // [count] or null: added to scores for the choice alone
  const Matrix *gate_up, *down;  // [count + shared]
  int64_t* tokens;               // [count]: tokens of each expert, summed over steps
  int32_t shared, shared_gate;
  int32_t integers, ordered;  // some matrix is of integers, some has an order of columns
};

enum Activation : int32_t {
  ACTIVATION_SILU = 0,
  ACTIVATION_GELU_TANH = 1,
  ACTIVATION_GELU = 2,
  ACTIVATION_RELU = 3,
  ACTIVATION_RELU2 = 4,
  ACTIVATION_XIELU = 5,
};

enum StateKind : int32_t { STATE_MAMBA2 = 0, STATE_GATED_DELTA = 1, STATE_SHORT_CONV = 2 };

// The sizes of a model's state layers (models/layers.py). Rows of their inputs, by head:
//   Mamba-2: z, x, B, C, dt    gated delta: queries, keys, values, z, b, a    short convolution: B, C, x
// A state has `rows` elements of B or a key, `columns` of x or a value. `key_heads` share them among `heads`.
struct StateSizes {
  int64_t channels, inner, elements;  // of the convolution, the outputs, a slot
  int32_t kind, taps, heads, key_heads, rows, columns;
  int32_t norm_group, norm_first;  // elements, 0: no norm; norm, then gate
  float step_least, step_most;
};

// A state layer. A slot has the last inputs of the convolution (conv_state.h), then the states of the heads
// (recurrence.h). `slots` is null where the layer has none of this.
struct StateLayer {
  const float *conv, *conv_bias;          // [taps][channels], [channels]
  const float *decay, *step_bias, *skip;  // [heads]; the rate of decay for a step of 1, in powers of 2
  const float* norm;                      // [inner]
  float* slots;
  Matrix inputs, output;
};

// RMSNorm, or LayerNorm, whose bias may be null. Without a weight there is no norm.
struct Norm {
  const float *weight, *bias;
};

// A pointer is null if the model does not have that tensor, and a matrix without rows is not there.
struct Layer {
  Norm input_norm, post_norm;                   // [hidden]
  Norm q_norm, k_norm;                          // [head_dim], [heads][head_dim], or over all heads
  Norm attention_output_norm, mlp_output_norm;  // [hidden]
  const float* rope;            // [max_positions][rotary_dim]: rotary_dim/2 cosines, then as many sines
  const float *sinks, *slopes;  // [heads]: logits that take part in softmax, slopes of ALiBi
  void* kv;                     // its part of the KV pool: [num_blocks] blocks; see KvLayer in layers.h
  Matrix qkv, output;
  Matrix gate_up, down;  // gate_up is interleaved, or only has rows of up
  int32_t heads, kv_heads;
  int32_t head_norm_stride;  // from the norm of one head of q or k to that of the next; 0: all heads have the same
  int32_t window;            // tokens that a token attends to, itself included; 0: no limit
  int32_t chunk;             // positions that only attend to each other; 0: no chunks
  int32_t group;             // its block table
  float xielu_positive, xielu_negative;
  StateLayer state;
  // With latent attention, qkv has the rows of q (or of the queries' latent), then those of the latent and shared key.
  Matrix query_up;          // from the queries' latent; no rows without one
  Matrix key_up, value_up;  // floats, head below head: [heads * rank][nope] and [heads * value][rank]
  const float *query_norm, *latent_norm;
  const Experts* experts;  // in the place of gate_up and down
};

// An adapter's change of a packed matrix (adapters.h): up * down, and a bias. `down` has the ranks of all parts of a fused
// matrix, one below the other, in blocks of HALF: [ranks / HALF][columns / GROUP][HALF][GROUP], as operands.h has panels.
// Each half of a panel reads its products from first[half] on, and as many rows of `up` [start[halves]][HALF], from
// start[half] on. Without any change all is null.
struct LowRank {
  const void *down, *up;
  const int32_t *first, *start;  // [halves], [halves + 1]
  const float* bias;             // [rows] or null
  int32_t ranks;                 // in whole blocks
};

// Rows of the embedding or of lm_head that take the place of the model's, changes of low rank included; count 0: none.
struct TokenRows {
  const int32_t* ids;  // [count], in ascending order
  const void* rows;    // [count][hidden], of the model's format
  const float* bias;   // [count], added to logits; null for none
  int32_t count;
};

// An adapter in a slot: its changes of ADAPTED_PARTS matrices of each layer, of lm_head, then of gate_up and down of each
// expert of each layer, the shared MLP last; null in an empty slot. The change of embeddings has rank 0 for none.
struct Adapter {
  const LowRank* parts;
  const float *embedding_down, *embedding_up;  // [vocab][rank], [rank][hidden]
  int32_t embedding_rank;
  TokenRows embedding_rows, head_rows;
};

// Sizes of latent attention (models/layers.py), and its buffers; rank 0: the model has none. by_head has the activation
// type: queries [heads][tokens][nope], then sums of latents [heads][tokens][rank].
struct Latent {
  void *by_head, *absorbed;  // absorbed: [tokens][heads][rank + rope]
  float* queries;            // rows of query_up, null without one
  int32_t heads, rank, nope, rope, value, query_rank;
  float norm_eps;
};

// The row stride of a scratch buffer is the padded row count of the matrix that writes it.
struct Model {
  const Layer* layers;
  Norm embedding_norm, final_norm;  // [hidden]
  const float* token_type;          // [hidden], added to embeddings
  const float* second_token_type;   // [hidden], in its place for tokens of the second type; null: there is none
  Source embedding, positions;      // positions: added to embeddings; data is null without them
  Matrix lm_head;
  float *hidden_state, *qkv, *projected, *logits;  // projected: null without output norms
  void *normed, *attended, *activated;  // activation type
  void* quantized;                      // rows of Int8Block: the input of a quantized linear
  float* scratch;                       // scratch_floats per thread
  float* partials;                      // partial_floats: partial sums of attention
  int64_t scratch_floats, partial_floats;
  int32_t format, num_layers, hidden, head_dim, rotary_dim, vocab, block_size, activation;
  int32_t layer_norm;           // norms are LayerNorm
  int32_t qk_norm_whole;        // norms of q and k are over all heads
  int32_t qk_norm_rotated;      // norms of q and k come after the rotation, in layers that have one
  int32_t post_residual_norms;  // output norms come after the sum with the residual stream
  int32_t parallel;             // attention and MLP read the same residual stream
  int32_t gated;                // MLPs have a gate
  int32_t bidirectional;        // tokens attend to those after them too, or to those half a window away
  float norm_eps, score_scale, attention_softcap, logit_softcap;  // softcap 0: none
  float embedding_scale, residual_scale, logit_scale;
  float qkv_clip;                               // limit of q, k and v; 0: none
  float temperature_floor, temperature_factor;  // of queries without rotation (models/config.py); factor 0: none
  float* state_inputs;  // [tokens][rows of a state layer's inputs]
  void* mixed;          // [tokens][inner], of the activation type
  StateSizes state;
  int32_t attention_gate;  // rows of qkv after v are those of a gate of attention's outputs
  Routing routing;
  float *router_input, *router_logits;  // router_input: null if the activation type is float
  void *expert_inputs, *expert_activated, *expert_quantized;  // rows by expert; see experts.h
  Latent latent;
  const Adapter* adapters;  // by slot
  float* low_rank;          // [rows of any product][low_rank_stride]: rows times `down`; see adapters.h
  int64_t low_rank_stride;
};

// slots [groups][num_tokens] and block_table [groups][num_seqs][table_width]: one for each group of layers. Entries of a
// table that a group's window has passed are arbitrary blocks, as are those after a sequence's last token: not to be read.
struct Batch {
  const int32_t *tokens, *positions, *slots, *query_start, *seq_len, *block_table;
  const int32_t* states;       // slot of each sequence's state
  const int32_t* token_types;  // 1 for tokens of the second type; null: there are none
  const int32_t* adapter;      // slot of each token's adapter, -1 for none; null: no token has one
  int32_t num_tokens, num_seqs, table_width, num_groups;
};

// Changes to one row of logits before sampling. A row without changes has empty arrays and neutral penalties
// (repetition 1, presence and frequency 0).
struct Adjust {
  const int32_t *prompt, *output, *banned;
  int64_t prompt_len, output_len, banned_len;
  // Bad word i is word_tokens[word_ends[i - 1] .. word_ends[i]).
  const int32_t *bias_ids, *word_ends, *word_tokens;
  const float* bias;
  const uint32_t* mask;  // bit n % 32 of word n / 32 is 1 if id n is allowed; null: all ids are
  int64_t bias_len, words;
  float presence, frequency, repetition;
};

// Sampling parameters of `count` rows of logits, and the output arrays; see core/model_input.py.
struct Sampling {
  const int32_t *row, *position;
  const uint64_t* seed;
  const float *temperature, *top_p;
  const int32_t* top_k;
  const float* min_p;
  const int32_t* logprobs;
  const Adjust* adjust;  // null if no row has changes
  const int32_t* const* report_ids;  // per row: ids to report instead of the best, or null; null if no row has any
  int32_t* tokens;
  float* logprob;
  int32_t *rank, *top_ids;  // top_ids, top_logprobs: [count][top_width]
  float* top_logprobs;
  const int32_t* adapter;  // of the token that each row follows, as in Batch
  int32_t count, top_width;
};

// Sums of hidden states, in fp32 and in token order: those of query tokens [first[i], end[i]) are added to row[i] of
// sums [rows][hidden]. The sum starts from zero if fresh[i]. See core/model_input.py.
struct Pooling {
  const int32_t *row, *first, *end, *fresh;
  float* sums;
  int32_t count;
};

// Several steps in one call; see DecodeRun in core/model_input.py.
struct DecodeRun {
  double seconds;
  const int32_t *end_ids, *end_start;
  int32_t steps, message_fd;
};

// Seconds per part, summed over steps: measured on the calling thread, waits for other threads included. Linears and
// lm_head include the norms and the rounding of their input rows, experts all of a mixture: router, products, sums,
// states the parts of state layers between their linears.
struct Profile {
  double linears, attention, lm_head, elementwise, sampling, experts, states;
};

}  // namespace octavo
