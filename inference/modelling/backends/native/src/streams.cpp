// Sinkhorn and Knopp's normalisation of the matrices that mix residual streams (https://arxiv.org/abs/2512.24880).
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "work.h"

namespace blazr {
namespace {

// A row's softmax + eps, in place.
void softmax_plus_eps(float* row, int64_t count, float eps) {
  const float greatest = *std::max_element(row, row + count);
  float total = 0;
  for (int64_t i = 0; i < count; ++i) total += row[i] = std::exp(row[i] - greatest);
  for (int64_t i = 0; i < count; ++i) row[i] = row[i] / total + eps;
}

// Each row, divided by its sum + eps.
void divide_rows(float* matrix, int64_t count, float eps) {
  for (int64_t i = 0; i < count; ++i) {
    float* row = matrix + i * count;
    float total = 0;
    for (int64_t j = 0; j < count; ++j) total += row[j];
    for (int64_t j = 0; j < count; ++j) row[j] /= total + eps;
  }
}

// Each column, divided by its sum + eps.
void divide_columns(float* matrix, int64_t count, float eps, std::vector<float>& totals) {
  totals.assign(count, 0.0f);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < count; ++j) totals[j] += matrix[i * count + j];
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < count; ++j) matrix[i * count + j] /= totals[j] + eps;
}

// (T, P, P) to matrices whose columns, and nearly whose rows, sum to 1: columns `iterations` times, rows once less.
at::Tensor balance_streams(const at::Tensor& logits, int64_t iterations, double eps) {
  TORCH_CHECK(
      logits.dim() == 3 && logits.size(1) == logits.size(2) && logits.scalar_type() == at::kFloat,
      "balance_streams: float32 (T, P, P) is needed");
  at::Tensor out = at::empty_like(logits, at::MemoryFormat::Contiguous);
  out.copy_(logits);
  const int64_t rows = out.size(0), count = out.size(1);
  if (count == 0) return out;
  const float added = static_cast<float>(eps);
  float* matrices = out.data_ptr<float>();
  const int64_t cost = std::max<int64_t>(1, count * count * 2 * iterations);
  parallel_for(0, rows, std::max<int64_t>(1, 16384 / cost), [&](int64_t begin, int64_t end) {
    std::vector<float> totals;
    for (int64_t row = begin; row < end; ++row) {
      float* matrix = matrices + row * count * count;
      for (int64_t i = 0; i < count; ++i) softmax_plus_eps(matrix + i * count, count, added);
      divide_columns(matrix, count, added, totals);
      for (int64_t turn = 1; turn < iterations; ++turn) {
        divide_rows(matrix, count, added);
        divide_columns(matrix, count, added, totals);
      }
    }
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def("balance_streams(Tensor logits, int iterations, float eps) -> Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("balance_streams", balance_streams); }

}  // namespace blazr
