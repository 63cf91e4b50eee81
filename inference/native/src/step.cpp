// What a step needs around the network: the slots of block tables, and each row's greatest logit.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "simd.h"
#include "work.h"

namespace blazr {
namespace {

// (B, W) int32 block tables and (B,) context lengths to (B · L) slots of tokens, 0 beyond each context.
at::Tensor block_slots(const at::Tensor& tables, const at::Tensor& lengths, int64_t longest, int64_t block_size) {
  TORCH_CHECK(
      tables.dim() == 2 && tables.scalar_type() == at::kInt && tables.is_contiguous(), "block_slots: (B, W) int32 needed");
  TORCH_CHECK(
      lengths.scalar_type() == at::kLong && lengths.is_contiguous() && lengths.numel() == tables.size(0),
      "block_slots: a length for each table needed");
  const int64_t count = tables.size(0), width = tables.size(1);
  TORCH_CHECK(block_size > 0 && longest >= 0 && longest <= width * block_size, "block_slots: tables too short");
  at::Tensor out = at::empty({count * longest}, lengths.options());
  const int32_t* blocks = tables.const_data_ptr<int32_t>();
  const int64_t* limits = lengths.const_data_ptr<int64_t>();
  int64_t* slots = out.data_ptr<int64_t>();
  for (int64_t row = 0; row < count; ++row) {
    const int64_t length = std::min(limits[row], longest);
    for (int64_t at = 0; at < longest; at += block_size) {
      const int64_t first = blocks[row * width + at / block_size] * block_size;
      const int64_t end = std::min(block_size, longest - at), seen = std::clamp<int64_t>(length - at, 0, end);
      for (int64_t i = 0; i < seen; ++i) slots[row * longest + at + i] = first + i;
      for (int64_t i = seen; i < end; ++i) slots[row * longest + at + i] = 0;
    }
  }
  return out;
}

// Where a value that is there is first.
int64_t first_of(const float* from, int64_t width, float value) {
  constexpr int64_t kStretch = 16 * kLanes;
  int64_t i = 0;
  for (; i + kStretch <= width; i += kStretch) {
    vi hits{};
    for (int64_t at = i; at < i + kStretch; at += kLanes) hits |= load(from + at) == splat(value);
    bool is_here = false;
    for (int lane = 0; lane < kLanes; ++lane) is_here |= hits[lane] != 0;
    if (is_here) break;
  }
  return std::find(from + i, from + width, value) - from;
}

// Each row's maximum and where it is first; the maximum of a row with a NaN is NaN, its place 0.
std::tuple<at::Tensor, at::Tensor> row_maxima(const at::Tensor& rows) {
  TORCH_CHECK(
      rows.dim() == 2 && rows.size(1) > 0 && rows.scalar_type() == at::kFloat && rows.is_contiguous(),
      "row_maxima: (n, V) contiguous float32 needed");
  const int64_t count = rows.size(0), width = rows.size(1);
  at::Tensor places = at::empty({count}, rows.options().dtype(at::kLong)), maxima = at::empty({count}, rows.options());
  const float* values = rows.const_data_ptr<float>();
  int64_t* place = places.data_ptr<int64_t>();
  float* maximum = maxima.data_ptr<float>();
  parallel_for(0, count, std::max<int64_t>(1, 65536 / width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = values + row * width;
      vf best = splat(-std::numeric_limits<float>::infinity());
      vi unordered{};
      int64_t i = 0;
      for (; i + kLanes <= width; i += kLanes) {
        const vf next = load(from + i);
        best = next > best ? next : best;
        unordered |= next != next;
      }
      float most = best[0];
      bool has_nan = false;
      for (int lane = 0; lane < kLanes; ++lane) {
        most = std::max(most, best[lane]);
        has_nan |= unordered[lane] != 0;
      }
      for (; i < width; ++i) {
        has_nan |= std::isnan(from[i]);
        if (from[i] > most) most = from[i];
      }
      maximum[row] = has_nan ? std::numeric_limits<float>::quiet_NaN() : most;
      place[row] = has_nan ? 0 : first_of(from, width, most);
    }
  });
  return {places, maxima};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def("block_slots(Tensor tables, Tensor lengths, int longest, int block_size) -> Tensor");
  library.def("row_maxima(Tensor rows) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) {
  library.impl("block_slots", block_slots);
  library.impl("row_maxima", row_maxima);
}

}  // namespace blazr
