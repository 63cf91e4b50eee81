// Decoding with multi-head latent attention in the absorbed form: queries are multiplied into the space of the cached
// latents, attention runs over those as they lie, and only its result is expanded, head by head.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

#include "attention.h"

namespace blazr {
namespace {

// For each head h, rows times a matrix of its own: (B, H, in) to (B, H, ≥ out).
struct HeadRows {
  int64_t count, heads, in, out;
  int64_t from_row, from_head;  // strides of the rows
  int64_t to_row, to_head;      // and of the results
};

// `pack(head, first column, number of columns, packed)` lays 64 columns of a head's matrix out as
// [panel][unit][kPanelColumns].
template <typename T, typename Pack>
void multiply_heads(const HeadRows& on, const T* from, T* to, Pack&& pack) {
  const int64_t tiles = (on.out + kKeys - 1) / kKeys, units = units_of<T>(on.in);
  const int64_t work = on.heads * on.in * on.out * (on.count + 2) / kLanes;
  for_each_item(on.heads * tiles, work, [&](int64_t item, Scratch& scratch) {
    const int64_t head = item / tiles, column = item % tiles * kKeys;
    const int64_t columns = std::min<int64_t>(kKeys, on.out - column);
    auto* packed = reinterpret_cast<uint32_t*>(scratch.take((units + kRows) * kKeys + kRows * units));
    uint32_t* rows = packed + (units + kRows) * kKeys;
    pack(head, column, columns, packed);
    for (int64_t first = 0; first < on.count; first += kRows) {
      const auto here = static_cast<int>(std::min<int64_t>(kRows, on.count - first));
      for (int row = 0; row < here; ++row)
        pack_row(from + (first + row) * on.from_row + head * on.from_head, on.in, rows + row * units, units);
      with_constant<kRows>(here, [&](auto count) {
        constexpr int kCount = decltype(count)::value;
        vf sums[kCount][kKeyVectors];
        multiply<T, kCount>(rows, units, packed, sums);
        for (int row = 0; row < kCount; ++row) {
          T* target = to + (first + row) * on.to_row + head * on.to_head + column;
          for (int j = 0; j * kLanes < columns; ++j) {
            const int64_t left = columns - j * kLanes;
            if (left >= kLanes) {
              store(target + j * kLanes, sums[row][j]);
            } else {
              store_part(target + j * kLanes, sums[row][j], left);
            }
          }
        }
      });
    }
  });
}

// (B, H, N) times (H, N, r): the queries in the space of the latents.
template <typename T>
void absorb(const HeadRows& on, const T* from, const T* matrices, T* to) {
  multiply_heads(on, from, to, [&](int64_t head, int64_t column, int64_t columns, uint32_t* packed) {
    const T* matrix = matrices + head * on.in * on.out + column;
    const T* rows[kKeys];
    // 64 is even, so that pairs of rows stay together.
    for (int64_t first = 0; first < on.in; first += kKeys) {
      const auto here = static_cast<int>(std::min<int64_t>(kKeys, on.in - first));
      for (int i = 0; i < here; ++i) rows[i] = matrix + (first + i) * on.out;
      pack_values(rows, here, columns, units_of<T>(on.in), packed + units_of<T>(first) * kPanelColumns);
    }
  });
}

// (B, H, r) times (H, W, r) transposed: the mixed latents as values.
template <typename T>
void expand(const HeadRows& on, const T* from, const T* matrices, T* to) {
  multiply_heads(on, from, to, [&](int64_t head, int64_t column, int64_t columns, uint32_t* packed) {
    const T* rows[kKeys];
    for (int64_t i = 0; i < columns; ++i) rows[i] = matrices + (head * on.out + column + i) * on.in;
    pack_keys(rows, static_cast<int>(columns), on.in, packed);
  });
}

// q_nope: (B, H, N), its last axis contiguous; q_rope: (B, H, R) contiguous, rotated; k_b: (H · N, r); v_b: (H · W, r);
// cache: (S, r + R). Returns (B, H · W).
at::Tensor mla_decode(
    const at::Tensor& q_nope, const at::Tensor& q_rope, const at::Tensor& k_b, const at::Tensor& v_b,
    const at::Tensor& cache, const at::Tensor& blocks, const at::Tensor& starts, const at::Tensor& lengths,
    const at::Tensor& first_rows, int64_t block_size, double scale) {
  TORCH_CHECK(
      q_nope.dim() == 3 && q_nope.stride(2) == 1 && q_rope.dim() == 3 && q_rope.is_contiguous() &&
          q_rope.size(0) == q_nope.size(0) && q_rope.size(1) == q_nope.size(1),
      "attention: queries must be (B, heads, N) and (B, heads, R)");
  const int64_t count = q_nope.size(0), heads = q_nope.size(1), nope = q_nope.size(2), rope = q_rope.size(2);
  TORCH_CHECK(
      cache.dim() == 2 && cache.size(1) > rope && cache.is_contiguous(),
      "attention: the latents' cache must be (slots, r + R), contiguous");
  const int64_t rank = cache.size(1) - rope;
  TORCH_CHECK(
      k_b.dim() == 2 && k_b.is_contiguous() && k_b.size(0) == heads * nope && k_b.size(1) == rank && v_b.dim() == 2 &&
          v_b.is_contiguous() && v_b.size(0) % heads == 0 && v_b.size(0) > 0 && v_b.size(1) == rank,
      "attention: the heads' matrices must be (heads · width, ", rank, "), contiguous");
  for (const at::Tensor* part : {&q_rope, &k_b, &v_b, &cache})
    TORCH_CHECK(part->scalar_type() == q_nope.scalar_type(), "attention: two dtypes");
  const int64_t width = rank + rope, value_width = v_b.size(0) / heads;
  at::Tensor query = at::empty({count, heads, width}, q_rope.options());
  at::Tensor out = at::empty({count, heads * value_width}, q_rope.options());
  dispatch(query.scalar_type(), "attention", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T* to = query.data_ptr<T>();
    absorb(
        {count, heads, nope, rank, q_nope.stride(0), q_nope.stride(1), heads * width, width},
        q_nope.const_data_ptr<T>(), k_b.const_data_ptr<T>(), to);
    const T* rotated = q_rope.const_data_ptr<T>();
    for (int64_t row = 0; row < count * heads; ++row)
      std::memcpy(to + row * width + rank, rotated + row * rope, rope * sizeof(T));
  });
  const at::Tensor rows = cache.unsqueeze(1);
  const at::Tensor mixed =
      attend(query, rows, rows, {blocks, starts, lengths, first_rows, block_size}, rank, scale, 0, 0);
  dispatch(query.scalar_type(), "attention", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    expand(
        {count, heads, rank, value_width, heads * rank, rank, heads * value_width, value_width},
        mixed.const_data_ptr<T>(), v_b.const_data_ptr<T>(), out.data_ptr<T>());
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "mla_decode(Tensor q_nope, Tensor q_rope, Tensor k_b, Tensor v_b, Tensor cache, Tensor blocks, Tensor starts, "
      "Tensor lengths, Tensor first_rows, int block_size, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("mla_decode", mla_decode); }

}  // namespace blazr
