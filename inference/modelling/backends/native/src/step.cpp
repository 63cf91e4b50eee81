// What a step needs after the network: each row's greatest logit.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "simd.h"
#include "work.h"

namespace blazr {
namespace {

// Where a value that is there is first.
int64_t first_of(const float* from, int64_t width, float value) {
  constexpr int64_t kStretch = 16 * kLanes;
  int64_t i = 0;
  for (; i + kStretch <= width; i += kStretch) {
    vi hits{};
    for (int64_t at = i; at < i + kStretch; at += kLanes) hits |= load(from + at) == splat(value);
    if (any(hits)) break;
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
      float most = max(best);
      bool has_nan = any(unordered);
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

TORCH_LIBRARY_FRAGMENT(blazr, library) { library.def("row_maxima(Tensor rows) -> (Tensor, Tensor)"); }

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("row_maxima", row_maxima); }

}  // namespace blazr
