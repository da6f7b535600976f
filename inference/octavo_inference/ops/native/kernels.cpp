// The native CPU backend: exported functions. Built once per instruction set; see build.py.
#include "abi.h"
#include "forward.h"
#include "pack.h"

using namespace octavo;

namespace {

template <class P>
void run_forward(Team& team, const Model& model, const Batch& batch, const Sampling& sampling, bool choose,
                 Profile& profile) {
  team.run(std::make_shared<Forward<P>>(model, batch, sampling, choose, team.size(), profile));
}

template <class P>
void run_linear(Team& team, const Matrix& matrix, const void* a, int64_t rows, float* out) {
  const StoreFloats epilogue{out, matrix.rows, matrix.bias};
  const Gemm<P, StoreFloats> work(matrix, static_cast<const typename P::Act*>(a), rows, epilogue, team.size());
  team.share(work.pieces(), [&](i64 i, int) { work.piece(i); });
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void octavo_info(Info* info) { *info = Info{3, W, PANEL, MAX_ROWS, int32_t(sizeof(Bf16::Act))}; }

EXPORT Team* octavo_team_create(int32_t threads) { return new Team(threads); }
EXPORT void octavo_team_destroy(Team* team) { delete team; }

// Fills `matrix.data` from stored tensors; the caller allocated rows * cols elements.
EXPORT void octavo_pack(Team* team, const Matrix* matrix, const Source* sources, int32_t count, int32_t arrangement) {
  const auto kind = static_cast<Arrangement>(arrangement);
  team->share(matrix->rows / PANEL, [=](i64 panel, int) {
    if (matrix->format == FORMAT_F32)
      pack_panel<F32::Elem, F32::GROUP>(*matrix, sources, count, kind, panel);
    else
      pack_panel<Bf16::Elem, Bf16::GROUP>(*matrix, sources, count, kind, panel);
  });
}

// One linear on its own, out [rows, matrix.rows] in fp32; `a` is in the activation type of the matrix's format.
EXPORT void octavo_linear(Team* team, const Matrix* matrix, const void* a, int64_t rows, float* out) {
  if (matrix->format == FORMAT_F32)
    run_linear<F32>(*team, *matrix, a, rows, out);
  else
    run_linear<Bf16>(*team, *matrix, a, rows, out);
}

EXPORT int64_t octavo_attention_scratch(int32_t head_dim) { return attention_scratch(head_dim); }

// The decoder over a batch. Afterwards model->logits [count, padded vocab] holds the logits of sampling->row; with
// `choose` they are adjusted and the sampling results filled.
EXPORT void octavo_step(Team* team, const Model* model, const Batch* batch, const Sampling* sampling, int32_t choose,
                        Profile* profile) {
  if (model->format == FORMAT_F32)
    run_forward<F32>(*team, *model, *batch, *sampling, choose != 0, *profile);
  else
    run_forward<Bf16>(*team, *model, *batch, *sampling, choose != 0, *profile);
}

// Sampling on its own: logits [count, stride] are adjusted in place; stride is a multiple of the vector width.
EXPORT void octavo_sample(const Sampling* sampling, float* logits, int64_t stride, int64_t vocab) {
  std::vector<float> scratch(static_cast<size_t>(stride));
  for (int64_t row = 0; row < sampling->count; row++)
    sample_row(*sampling, row, logits + row * stride, stride, vocab, scratch.data());
}
