// Exported functions of the native CPU backend. Built once per instruction set; see build.py.
#include "abi.h"
#include "decode_loop.h"
#include "forward.h"
#include "pack.h"

using namespace octavo;

namespace {

template <class P>
void run_forward(Team& team, const Model& model, const Batch& batch, const Sampling& sampling, const Pooling& pooling,
                 Task task, Profile& profile) {
  team.run(std::make_shared<Forward<P>>(model, batch, sampling, pooling, task, team.size(), profile));
}

void run_task(Team& team, const Model& model, const Batch& batch, const Sampling& sampling, const Pooling& pooling,
              Task task, Profile& profile) {
  if (model.format == FORMAT_F32)
    run_forward<F32>(team, model, batch, sampling, pooling, task, profile);
  else
    run_forward<Bf16>(team, model, batch, sampling, pooling, task, profile);
}

template <class P>
void run_linear(Team& team, const Matrix& matrix, const Input& input, int64_t rows, float* out) {
  const StoreFloats epilogue{out, matrix.rows, matrix.bias};
  const Product<P, StoreFloats> product(matrix, input, rows, epilogue);
  team.share(product.pieces(), [&](i64 i, int) { product.piece(i); });
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void octavo_info(Info* info) {
  *info = Info{19, W, PANEL, MAX_ROWS, int32_t(sizeof(Bf16::Act)), ROUNDS_ACTIVATIONS ? int32_t(sizeof(Int8Block)) : 0};
}

EXPORT Team* octavo_team_create(int32_t threads) { return new Team(threads); }
EXPORT void octavo_team_destroy(Team* team) { delete team; }

// Packs rows of stored tensors into `panels` panels of a matrix from `first` on. The caller allocated and zeroed its data.
EXPORT void octavo_pack(Team* team, const Matrix* matrix, const Source* sources, int32_t count, int32_t arrangement,
                        int64_t first, int64_t panels) {
  const Packing packing{*matrix, sources, count, static_cast<Arrangement>(arrangement), first};
  team->share(panels, [&](i64 panel, int) { pack_panel(packing, first + panel); });
}

// Quantizes rows of the activation type, as input of quantized linears.
EXPORT void octavo_quantize(const void* a, int64_t rows, int64_t cols, void* out) {
  for (int64_t r = 0; r < rows; r++)
    quantize_row(static_cast<const Bf16::Act*>(a) + r * cols, cols, static_cast<Int8Block*>(out) + r * (cols / BLOCK));
}

// A single linear: out [rows, matrix->rows] in fp32; `a` has rows of the activation type, `rounded` the same rows as
// octavo_quantize writes them. A pointer may be null where the matrix's kernel does not read it.
EXPORT void octavo_linear(Team* team, const Matrix* matrix, const void* a, const void* rounded, int64_t rows, float* out) {
  const Input input{a, static_cast<const Int8Block*>(rounded)};
  if (matrix->format == FORMAT_F32)
    run_linear<F32>(*team, *matrix, input, rows, out);
  else
    run_linear<Bf16>(*team, *matrix, input, rows, out);
}

// The choice of a mixture alone: logits [rows, count] become scores in place; ids and weights are [rows, chosen].
EXPORT void octavo_route(const Routing* routing, const float* correction, float* logits, int64_t rows, int32_t* ids,
                         float* weights) {
  for (int64_t r = 0; r < rows; r++)
    route(*routing, correction, logits + r * routing->count, ids + r * routing->chosen, weights + r * routing->chosen);
}

EXPORT int64_t octavo_attention_scratch(int32_t head_dim) { return attention_scratch(head_dim); }

EXPORT int64_t octavo_latent_scratch(int32_t rank) { return latent_scratch(rank); }

// Runs the decoder over a batch. Afterwards model->logits [count, padded vocab] has the logits of sampling->row. With
// `choose` they are adjusted, and the sampling results are filled. If all rows are greedy and need at most a mask, no
// logits are written. No query token is both sampled and pooled.
EXPORT void octavo_step(Team* team, const Model* model, const Batch* batch, const Sampling* sampling,
                        const Pooling* pooling, int32_t choose, Profile* profile) {
  run_task(*team, *model, *batch, *sampling, *pooling, choose ? Task::SAMPLE : Task::LOGITS, *profile);
}

// Runs decode steps until the run ends: query token i, sequence i and sample row i are the same. sampling->tokens is
// [run->steps, count]. Returns the number of steps.
EXPORT int32_t octavo_decode(Team* team, const Model* model, const Batch* batch, const Sampling* sampling,
                             const DecodeRun* run, Profile* profile) {
  return decode_loop(*run, *batch, *sampling, model->block_size, [&](const Batch& step, const Sampling& chosen) {
    run_task(*team, *model, step, chosen, Pooling{}, Task::SAMPLE, *profile);
  });
}

// Tokens sampled after query tokens sampling->row of the last octavo_step, which had no sample rows itself: the same as
// from one call with `choose`. Masks may be filled while that step runs.
EXPORT void octavo_choose(Team* team, const Model* model, const Sampling* sampling, Profile* profile) {
  run_task(*team, *model, Batch{}, *sampling, Pooling{}, Task::CHOOSE, *profile);
}

// Log-probabilities of the given sampling->tokens after query tokens sampling->row of the last step: at most as many as
// the model has rows of logits.
EXPORT void octavo_score(Team* team, const Model* model, const Sampling* sampling, Profile* profile) {
  run_task(*team, *model, Batch{}, *sampling, Pooling{}, Task::SCORE, *profile);
}

// Sampling alone: logits [count, stride] are adjusted in place; stride is a multiple of the vector width.
EXPORT void octavo_sample(const Sampling* sampling, float* logits, int64_t stride, int64_t vocab) {
  std::vector<float> scratch(static_cast<size_t>(stride));
  for (int64_t row = 0; row < sampling->count; row++)
    sample_row(*sampling, row, logits + row * stride, stride, vocab, scratch.data());
}
