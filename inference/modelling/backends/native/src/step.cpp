// What a step needs around the network: the inputs of decodes, and each row's greatest logit.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "simd.h"
#include "work.h"

namespace blazr {
namespace {

// What a step of decodes reads: token ids (D), positions (D), the new tokens' slots (D), the slots of all tokens of
// each context, one sequence after the other in the longest one's length L (D · L), 0 beyond its end, and the (D, 4)
// table of `PagedSequences`. `tables`: (request_indices, W) int32; `request_indices`: (D) int64. A block size of 0:
// nothing is paged, all slots are 0.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> decode_inputs(
    const at::Tensor& tables, const at::Tensor& request_indices, at::IntArrayRef token_ids, at::IntArrayRef positions,
    int64_t block_size) {
  const int64_t count = request_indices.numel();
  TORCH_CHECK(
      tables.dim() == 2 && tables.scalar_type() == at::kInt && tables.is_contiguous(),
      "decode_inputs: (S, W) int32 needed");
  TORCH_CHECK(
      request_indices.scalar_type() == at::kLong && request_indices.is_contiguous() &&
          static_cast<int64_t>(token_ids.size()) == count && static_cast<int64_t>(positions.size()) == count,
      "decode_inputs: a token and a position for each request_index needed");
  const int64_t width = tables.size(1);
  const int64_t longest = count ? *std::max_element(positions.begin(), positions.end()) + 1 : 0;
  const bool is_paged = block_size > 0;
  TORCH_CHECK(!is_paged || longest <= width * block_size, "decode_inputs: tables too short");
  const auto options = request_indices.options();
  at::Tensor ids = at::empty({count}, options), places = at::empty({count}, options),
             mapping = at::empty({count}, options);
  at::Tensor slots = at::empty({is_paged ? count * longest : 0}, options), table = at::empty({count, 4}, options);
  const int32_t* blocks = tables.const_data_ptr<int32_t>();
  const int64_t* request_index = request_indices.const_data_ptr<int64_t>();
  int64_t *id = ids.data_ptr<int64_t>(), *place = places.data_ptr<int64_t>(), *new_slot = mapping.data_ptr<int64_t>();
  int64_t *slot = slots.data_ptr<int64_t>(), *entry = table.data_ptr<int64_t>();
  for (int64_t row = 0; row < count; ++row) {
    TORCH_CHECK(
        request_index[row] >= 0 && request_index[row] < tables.size(0) && positions[row] >= 0,
        "decode_inputs: no such request index");
    id[row] = token_ids[row];
    place[row] = positions[row];
    new_slot[row] = 0;
    const int64_t length = positions[row] + 1, begin = row * longest;
    const int64_t sequence[4] = {row, 1, length, begin};
    std::copy_n(sequence, 4, entry + 4 * row);
    if (!is_paged) continue;
    const int32_t* block = blocks + request_index[row] * width;
    for (int64_t at = 0; at < length; at += block_size) {
      const int64_t first = *block++ * block_size, end = std::min(block_size, length - at);
      for (int64_t i = 0; i < end; ++i) slot[begin + at + i] = first + i;
    }
    new_slot[row] = slot[begin + length - 1];
    std::fill(slot + begin + length, slot + begin + longest, 0);
  }
  return {ids, places, mapping, slots, table};
}

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

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "decode_inputs(Tensor tables, Tensor request_indices, int[] token_ids, int[] positions, int block_size) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def("row_maxima(Tensor rows) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) {
  library.impl("decode_inputs", decode_inputs);
  library.impl("row_maxima", row_maxima);
}

}  // namespace blazr
