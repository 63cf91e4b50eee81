// Between a projection and attention, one pass over the rows: norms of queries and keys, rotation, and the new rows
// of the cache.
#include "rope.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "arguments.h"
#include "attention.h"

namespace blazr {
namespace {

constexpr int64_t kGrainValues = 16384;

// x[i ^ 1] for every lane.
inline vf swap_pairs(vf x) { return __builtin_shuffle(x, kLaneNumbers ^ 1); }

template <typename T>
void widen(const T* from, float* to, int64_t width) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(to + i, load(from + i));
  if (i < width) store(to + i, load_part(from + i, width - i));
}

template <typename T>
void narrow(const float* from, T* to, int64_t width) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(to + i, load(from + i));
  if (i < width) store_part(to + i, load(from + i), width - i);
}

// Σ x² of a head; the values beyond its width are 0 up to a whole vector.
float sum_of_squares(const float* head, int64_t width) {
  vf squares = splat(0);
  for (int64_t i = 0; i < width; i += kLanes) squares += load(head + i) * load(head + i);
  return sum(squares);
}

void scale_head(float* head, int64_t width, float scale, const float* weight, float offset) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const vf values = load(head + i) * scale;
    store(head + i, weight ? values * (load(weight + i) + offset) : values);
  }
  for (; i < width; ++i) head[i] = weight ? head[i] * scale * (weight[i] + offset) : head[i] * scale;
}

// `count` heads of `width` values, `stride` apart in `from`, to `to(head)`, normed and rotated.
template <typename T, typename Target>
void prepare_heads(
    const T* from, int64_t count, int64_t stride, int64_t width, const RowNorm& norm, const Rotation& rotation,
    int64_t row, float* scratch, Target&& to) {
  const float* weight = norm.weight.empty() ? nullptr : norm.weight.data();
  float* spare = scratch + round_up(width, kLanes) + kLanes;
  float shared_scale = 1;
  if (norm.over == RowNorm::kOverAll) {
    float squares = 0;
    for (int64_t head = 0; head < count; ++head) {
      widen(from + head * stride, scratch, width);
      squares += sum_of_squares(scratch, width);
    }
    shared_scale = 1.0f / std::sqrt(squares / static_cast<float>(count * width) + norm.eps);
  }
  for (int64_t head = 0; head < count; ++head) {
    widen(from + head * stride, scratch, width);
    if (norm.over == RowNorm::kPerHead) {
      const float scale = 1.0f / std::sqrt(sum_of_squares(scratch, width) / static_cast<float>(width) + norm.eps);
      scale_head(scratch, width, scale, weight, norm.offset);
    } else if (norm.over == RowNorm::kOverAll) {
      scale_head(scratch, width, shared_scale, weight ? weight + head * width : nullptr, norm.offset);
    }
    if (rotation.width) rotate_head(scratch, spare, rotation, row);
    narrow(scratch, to(head), width);
  }
}

int64_t checked_slot(const int64_t* slots, int64_t row, int64_t count) {
  TORCH_CHECK_INDEX(slots[row] >= 0 && slots[row] < count, "attention: slot ", slots[row], " of a cache with ", count);
  return slots[row];
}

void check_cache(const at::Tensor& cache, const at::Tensor& rows, int64_t heads, int64_t width) {
  TORCH_CHECK(
      cache.dim() == 3 && cache.size(1) == heads && cache.size(2) == width && cache.is_contiguous(),
      "attention: the cache must be (slots, ", heads, ", ", width, "), contiguous");
  TORCH_CHECK(cache.scalar_type() == rows.scalar_type(), "attention: the cache has another dtype than its new rows");
}

// The joint projection's rows (T, (H + 2V) · P) to queries (T, H, P); keys and values to their slots.
at::Tensor prepare_qkv(
    const at::Tensor& joint, const at::Tensor& key, const at::Tensor& value, const at::Tensor& slot_mapping,
    const RowNorm& q_norm, const RowNorm& k_norm, const Rotation& rotation) {
  const int64_t rows = joint.size(0), kv_heads = key.size(1), width = key.size(2);
  const int64_t heads = joint.size(1) / width - 2 * kv_heads;
  check_cache(key, joint, kv_heads, width);
  check_cache(value, joint, kv_heads, width);
  TORCH_CHECK(key.size(0) == value.size(0), "attention: caches of two lengths");
  check_slots(slot_mapping, rows);
  at::Tensor query = at::empty({rows, heads, width}, joint.options());
  dispatch(joint.scalar_type(), "attention", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = joint.const_data_ptr<T>();
    T *to_query = query.data_ptr<T>(), *to_key = key.data_ptr<T>(), *to_value = value.data_ptr<T>();
    const int64_t* slots = slot_mapping.const_data_ptr<int64_t>();
    const int64_t row_width = joint.size(1), kv_width = kv_heads * width;
    parallel_for(0, rows, std::max<int64_t>(1, kGrainValues / row_width), [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(2 * (round_up(width, kLanes) + kLanes));
      for (int64_t row = begin; row < end; ++row) {
        const T* here = from + row * row_width;
        const int64_t slot = checked_slot(slots, row, key.size(0));
        prepare_heads(here, heads, width, width, q_norm, rotation, row, scratch.data(), [&](int64_t head) {
          return to_query + (row * heads + head) * width;
        });
        here += heads * width;
        prepare_heads(here, kv_heads, width, width, k_norm, rotation, row, scratch.data(), [&](int64_t head) {
          return to_key + slot * kv_width + head * width;
        });
        std::memcpy(to_value + slot * kv_width, here + kv_width, kv_width * sizeof(T));
      }
    });
  });
  return query;
}

struct GqaArguments {
  at::Tensor joint;                                // (T, (H + 2V) · P): queries, keys and values of each row
  at::Tensor key, value;                           // the caches (slots, V, P)
  at::Tensor slot_mapping;                         // (T,): each row's slot in the caches
  at::Tensor blocks, starts, lengths, first_rows;  // `Contexts`
  int64_t block_size;
  std::optional<at::Tensor> cos, sin;  // (T, 1, D)
  bool interleaved;
  std::optional<at::Tensor> q_norm, k_norm;
  int64_t norm_over;  // RowNorm::Over
  double eps, offset, scale;
  int64_t window;
  double softcap;
  std::optional<at::Tensor> sinks;  // (H,)
};

at::Tensor gqa_attention(const GqaArguments& in) {
  const at::Tensor &joint = in.joint, &key = in.key;
  TORCH_CHECK(joint.dim() == 2 && joint.is_contiguous(), "attention: the joint rows must be (T, width), contiguous");
  TORCH_CHECK(key.dim() == 3 && key.size(1) > 0 && key.size(2) > 0, "attention: keys must be (slots, heads, width)");
  const int64_t width = key.size(2), kv_heads = key.size(1), all_heads = joint.size(1) / width;
  TORCH_CHECK(
      joint.size(1) == all_heads * width && all_heads > 2 * kv_heads, "attention: rows of ", joint.size(1),
      " values are not the heads of ", width, " of a query beside ", kv_heads, " of keys and of values");
  const int64_t heads = all_heads - 2 * kv_heads;
  const bool per_head = in.norm_over == RowNorm::kPerHead;
  const RowNorm q_norm = row_norm_of(in.q_norm, in.norm_over, in.eps, in.offset, per_head ? width : heads * width);
  const RowNorm k_norm = row_norm_of(in.k_norm, in.norm_over, in.eps, in.offset, per_head ? width : kv_heads * width);
  const Rotation rotation = rotation_of(in.cos, in.sin, in.interleaved, joint.size(0), width);
  const at::Tensor query = prepare_qkv(joint, key, in.value, in.slot_mapping, q_norm, k_norm, rotation);
  const Contexts contexts{in.blocks, in.starts, in.lengths, in.first_rows, in.block_size};
  return attend(query, key, in.value, contexts, width, in.scale, in.window, in.softcap, in.sinks);
}

struct MlaArguments {
  at::Tensor q_rope;  // (T, H, R), its last axis contiguous
  at::Tensor rows;    // (T, r + R), contiguous
  at::Tensor cache;   // (slots, r + R)
  at::Tensor slot_mapping;
  std::optional<at::Tensor> cos, sin;
  bool interleaved;
  std::optional<at::Tensor> norm;
  bool is_normed;
  double eps, offset;
};

// The rows of MLA's cache: the latent, normed, and the shared key, rotated; returns the queries' rotated parts.
at::Tensor mla_prepare(const MlaArguments& in) {
  const at::Tensor &q_rope = in.q_rope, &rows = in.rows, &cache = in.cache;
  TORCH_CHECK(q_rope.dim() == 3 && q_rope.stride(2) == 1, "attention: rotated queries must be (T, heads, R)");
  const int64_t count = q_rope.size(0), heads = q_rope.size(1), width = q_rope.size(2), row_width = cache.size(-1);
  const int64_t rank = row_width - width;
  TORCH_CHECK(
      cache.dim() == 2 && cache.is_contiguous() && rank > 0 && rows.dim() == 2 && rows.is_contiguous() &&
          rows.size(0) == count && rows.size(1) == row_width,
      "attention: the latents' cache must be (slots, r + R), their rows (T, r + R), contiguous");
  TORCH_CHECK(
      cache.scalar_type() == rows.scalar_type() && q_rope.scalar_type() == rows.scalar_type(),
      "attention: latents and queries of two dtypes");
  check_slots(in.slot_mapping, count);
  const int64_t norm_over = in.is_normed ? RowNorm::kPerHead : RowNorm::kNone;
  const RowNorm norm = row_norm_of(in.norm, norm_over, in.eps, in.offset, rank);
  const Rotation rotation = rotation_of(in.cos, in.sin, in.interleaved, count, width);
  at::Tensor out = at::empty({count, heads, width}, rows.options());
  dispatch(rows.scalar_type(), "attention", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T *queries = q_rope.const_data_ptr<T>(), *from = rows.const_data_ptr<T>();
    T *to = cache.data_ptr<T>(), *to_query = out.data_ptr<T>();
    const int64_t* slots = in.slot_mapping.const_data_ptr<int64_t>();
    const int64_t grain = std::max<int64_t>(1, kGrainValues / (row_width + heads * width));
    parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(2 * (round_up(std::max(rank, width), kLanes) + kLanes));
      for (int64_t row = begin; row < end; ++row) {
        T* cached = to + checked_slot(slots, row, cache.size(0)) * row_width;
        const T* here = from + row * row_width;
        prepare_heads(here, 1, rank, rank, norm, {}, row, scratch.data(), [&](int64_t) { return cached; });
        prepare_heads(
            here + rank, 1, width, width, {}, rotation, row, scratch.data(), [&](int64_t) { return cached + rank; });
        prepare_heads(
            queries + row * q_rope.stride(0), heads, q_rope.stride(1), width, {}, rotation, row, scratch.data(),
            [&](int64_t head) { return to_query + (row * heads + head) * width; });
      }
    });
  });
  return out;
}

}  // namespace

void check_slots(const at::Tensor& slots, int64_t rows) {
  TORCH_CHECK(
      slots.scalar_type() == at::kLong && slots.dim() == 1 && slots.size(0) == rows && slots.is_contiguous(),
      "attention: one int64 slot for each row is needed");
}

Rotation rotation_of(
    const std::optional<at::Tensor>& cos, const std::optional<at::Tensor>& sin, bool interleaved, int64_t rows,
    int64_t head_width) {
  TORCH_CHECK(cos.has_value() == sin.has_value(), "rotation: cosines without sines");
  if (!cos.has_value()) return {};
  for (const at::Tensor* part : {&*cos, &*sin})
    TORCH_CHECK(
        part->scalar_type() == at::kFloat && part->is_contiguous() && part->dim() == 3 && part->size(0) == rows &&
            part->size(1) == 1 && part->size(2) == cos->size(2),
        "rotation: cosines and sines must be (", rows, ", 1, D) float32, contiguous");
  const int64_t width = cos->size(2);
  TORCH_CHECK(width > 0 && width % 2 == 0 && width <= head_width, "rotation: ", width, " of ", head_width, " values");
  return {cos->const_data_ptr<float>(), sin->const_data_ptr<float>(), width, interleaved};
}

RowNorm row_norm_of(const std::optional<at::Tensor>& weight, int64_t over, double eps, double offset, int64_t width) {
  TORCH_CHECK(over >= RowNorm::kNone && over <= RowNorm::kOverAll, "norm: unknown form ", over);
  RowNorm norm;
  norm.over = static_cast<decltype(norm.over)>(over);
  norm.eps = static_cast<float>(eps);
  norm.offset = static_cast<float>(offset);
  if (weight.has_value()) {
    TORCH_CHECK(
        over != RowNorm::kNone && weight->numel() == width && weight->is_contiguous(),
        "norm: weight of another width than ", width);
    norm.weight.resize(round_up(width, kLanes));
    dispatch(weight->scalar_type(), "norm", [&](auto* type) {
      using W = std::remove_pointer_t<decltype(type)>;
      widen(weight->const_data_ptr<W>(), norm.weight.data(), width);
    });
  }
  return norm;
}

void rotate_head(float* head, float* scratch, const Rotation& rotation, int64_t row) {
  const int64_t width = rotation.width, half = width / 2;
  const float *cos = rotation.cos + row * width, *sin = rotation.sin + row * width;
  if (rotation.interleaved) {
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      const vf x = load(head + i);
      store(head + i, x * load(cos + i) + swap_pairs(x) * load(sin + i));
    }
    for (; i < width; i += 2) {
      const float first = head[i], second = head[i + 1];
      head[i] = first * cos[i] + second * sin[i];
      head[i + 1] = second * cos[i + 1] + first * sin[i + 1];
    }
    return;
  }
  std::memcpy(scratch, head, width * sizeof(float));
  auto turn = [&](int64_t to, int64_t partner) {
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes)
      store(
          head + to + i,
          load(scratch + to + i) * load(cos + to + i) + load(scratch + partner + i) * load(sin + to + i));
    for (; i < half; ++i) head[to + i] = scratch[to + i] * cos[to + i] + scratch[partner + i] * sin[to + i];
  };
  turn(0, half);
  turn(half, 0);
}

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "gqa_attention(Tensor joint, Tensor(a!) key, Tensor(b!) value, Tensor slot_mapping, Tensor blocks, "
      "Tensor starts, Tensor lengths, Tensor first_rows, int block_size, Tensor? cos, Tensor? sin, bool interleaved, "
      "Tensor? q_norm, Tensor? k_norm, int norm_over, float eps, float offset, float scale, int window, "
      "float softcap, Tensor? sinks) -> Tensor");
  library.def(
      "mla_prepare(Tensor q_rope, Tensor rows, Tensor(a!) cache, Tensor slot_mapping, Tensor? cos, Tensor? sin, "
      "bool interleaved, Tensor? norm, bool normed, float eps, float offset) -> Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) {
  library.impl("gqa_attention", with_arguments<gqa_attention>());
  library.impl("mla_prepare", with_arguments<mla_prepare>());
}

}  // namespace blazr
