// Attention over the paged cache: decoding rows and prefill chunks of a step in one call, nothing gathered or padded.
#include "attention.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "attention_amx.h"
#include "attention_prefetch.h"

namespace blazr {
namespace {

// A thread's intermediate values for the items of one task, in one piece of memory.
struct TaskMemory {
  uint32_t *queries, *keys, *values, *probabilities;
  float* mixed;
  RowState* states;
};

template <typename T>
TaskMemory task_memory(const Shape& shape, int64_t all_rows, Scratch& scratch) {
  const int64_t units = units_of<T>(shape.width);
  static_assert(sizeof(RowState) % 64 == 0);
  const int64_t state_floats = static_cast<int64_t>(sizeof(RowState) / 4);
  const int64_t sizes[] = {
      round_up(all_rows * units, kLanes),
      units * kKeys,
      round_up(shape.padded, kPanelColumns) * kKeys,
      all_rows * shape.padded,
      all_rows * state_floats,
      kRows * kKeys};
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  float* parts[std::size(sizes)];
  float* memory = scratch.take(total);
  for (size_t i = 0; i < std::size(sizes); ++i) {
    parts[i] = memory;
    memory += sizes[i];
  }
  return {
      reinterpret_cast<uint32_t*>(parts[0]),
      reinterpret_cast<uint32_t*>(parts[1]),
      reinterpret_cast<uint32_t*>(parts[2]),
      reinterpret_cast<uint32_t*>(parts[5]),
      parts[3],
      reinterpret_cast<RowState*>(parts[4])};
}

// The rows of one head against one block of keys, as many at once as the tile has.
template <typename T, typename Values>
void advance_rows(
    const Operands<T>& on, const Item& item, int64_t block, int count, int64_t first_row, const TaskMemory& memory,
    const Values& values) {
  const Shape& shape = on.shape;
  const int64_t rows = item.num_tokens * shape.group, units = units_of<T>(shape.width);
  for (int64_t row = 0; row < rows; row += kRows) {
    const int here = static_cast<int>(std::min<int64_t>(kRows, rows - row));
    int64_t positions[kRows];
    for (int i = 0; i < here; ++i) positions[i] = item.position + (row + i) / shape.group - block;
    const int64_t first = positions[0], last = positions[here - 1], at = first_row + row;
    if (last < 0) continue;                                               // the block is in their future
    if (on.rule.window && first - on.rule.window >= count - 1) continue;  // or before their window
    const bool masked = count < kKeys || first < kKeys - 1 || (on.rule.window && last - on.rule.window >= 0);
    with_constant<kRows>(here, [&](auto rows_here) {
      advance<T, decltype(rows_here)::value>(
          memory.queries + at * units, units, memory.keys, values, shape.padded, count, positions, masked, on.rule,
          memory.states + at, memory.mixed + at * shape.padded, memory.probabilities);
    });
  }
}

// One row's weighted values, divided by the sum of its weights.
template <typename T>
void write_row(const float* from, float sum_of_weights, int64_t width, T* to) {
  const float share = 1.0f / sum_of_weights;
  for (int64_t i = 0; i < width; i += kLanes) {
    const vf part = load(from + i) * share;
    if (i + kLanes <= width)
      store(to + i, part);
    else
      store_part(to + i, part, width - i);
  }
}

// Items that differ in the head. Blocks outermost, so that the rows of a token's heads are read together. Neither
// inlined nor specialised for its caller (noipa): GCC would look up the thread_local prefetcher again for each line.
template <typename T>
__attribute__((noinline, noipa)) void run_task(
    const Operands<T>& on, const Item* items, int64_t heads, Prefetcher<T>& prefetcher, Scratch& scratch) {
  const Shape& shape = on.shape;
  const Item& item = items[0];
  const int64_t rows = item.num_tokens * shape.group, all_rows = heads * rows, units = units_of<T>(shape.width);
  const TaskMemory memory = task_memory<T>(shape, all_rows, scratch);

  // A row is one query head of one token; the heads of a token that share keys lie side by side.
  auto place_of = [&](int64_t row) {
    const int64_t own = row % rows, token = item.first_row + own / shape.group;
    return token * shape.heads + items[row / rows].head * shape.group + own % shape.group;
  };
  for (int64_t row = 0; row < all_rows; ++row) {
    pack_row(on.query + place_of(row) * shape.width, shape.width, memory.queries + row * units, units);
    memory.states[row] = {splat(0), kNone};
  }
  std::fill_n(memory.mixed, all_rows * shape.padded, 0.0f);

  // Values that at most two tiles of rows read aren't packed. Each call for the keys then prefetches the values' share,
  // too.
  const bool in_place = !kPairs<T> && rows <= 2 * kRows && shape.value_width == shape.padded;
  auto prefetch = [&prefetcher, in_place] {
    prefetcher.prefetch();
    if (in_place) prefetcher.prefetch();
  };
  for (int64_t block = item.first_key; block < item.stop_key; block += kKeys) {
    const T *keys[kKeys], *values[kKeys];
    const int count = find_rows(on, item, block, kKeys, keys, values);
    prefetcher.move(count);
    for (int64_t head = 0; head < heads; ++head) {
      pack_keys(keys, count, shape.width, memory.keys, prefetch);
      if (in_place) {
        // A unit of pairs joins values of two keys, which don't lie side by side: they are always packed.
        if constexpr (!kPairs<T>) advance_rows(on, item, block, count, head * rows, memory, ValueRows<T>{values});
      } else {
        pack_values(values, count, shape.value_width, kKeys, memory.values, prefetch);
        advance_rows(on, item, block, count, head * rows, memory, PackedValues{memory.values});
      }
      for (int i = 0; i < count; ++i) {
        keys[i] += on.keys.head_stride;
        values[i] += on.values.head_stride;
      }
    }
    prefetcher.finish();
  }

  for (int64_t row = 0; row < all_rows; ++row) {
    const float sum_of_weights = sum(memory.states[row].total);
    const float* from = memory.mixed + row * shape.padded;
    const int64_t partial = items[row / rows].partial;
    if (partial < 0) {
      const float sink = on.rule.weight_of_sink(place_of(row) % shape.heads, memory.states[row].highest);
      write_row(from, sum_of_weights + sink, shape.value_width, on.out + place_of(row) * shape.value_width);
      continue;
    }
    float* to = on.partial + (partial + row % rows) * on.partial_stride();
    std::memcpy(to, from, shape.padded * sizeof(float));
    to[shape.padded] = sum_of_weights;
    to[shape.padded + 1] = memory.states[row].highest;
  }
}

template <typename T>
void run_merge(const Operands<T>& on, const Merge& merge) {
  const Shape& shape = on.shape;
  const int64_t rows = merge.num_tokens * shape.group, stride = on.partial_stride();
  for (int64_t row = 0; row < rows; ++row) {
    const float* parts = on.partial + (merge.partial + row) * stride;
    const int64_t next = rows * stride;
    float highest = kNone, total = 0;
    for (int64_t part = 0; part < merge.num_splits; ++part)
      highest = std::max(highest, parts[part * next + shape.padded + 1]);
    float weights[kMaxSplits];
    for (int64_t part = 0; part < merge.num_splits; ++part) {
      weights[part] = std::exp2(parts[part * next + shape.padded + 1] - highest);
      total += weights[part] * parts[part * next + shape.padded];
    }
    const int64_t token = merge.first_row + row / shape.group, head = merge.head * shape.group + row % shape.group;
    total += on.rule.weight_of_sink(head, highest);
    T* to = on.out + (token * shape.heads + head) * shape.value_width;
    const float share = 1.0f / total;
    for (int64_t i = 0; i < shape.value_width; i += kLanes) {
      vf gathered = splat(0);
      for (int64_t part = 0; part < merge.num_splits; ++part) gathered += load(parts + part * next + i) * weights[part];
      gathered *= share;
      if (i + kLanes <= shape.value_width) {
        store(to + i, gathered);
      } else {
        store_part(to + i, gathered, shape.value_width - i);
      }
    }
  }
}

template <typename T>
void run_plan(const Operands<T>& on, const Plan& plan) {
  static std::atomic<uint64_t> calls{0};
  const uint64_t call = ++calls;
  const auto count = static_cast<int64_t>(plan.tasks.size());
  const bool parallel = plan.work >= kSerialWork;
  auto run = [&](int64_t index, bool goes_on) {
    static thread_local Scratch scratch;
    static thread_local Prefetcher<T> prefetcher;
    const Task& task = plan.tasks[index];
    if constexpr (std::is_same_v<T, bf16>) {
      if (plan.items[task.first_item].by_tiles) {
        run_by_tiles(on, plan.items[task.first_item], scratch);
        return;
      }
    }
    prefetcher.begin(on, plan, index, call, goes_on);
    run_task(on, plan.items.data() + task.first_item, task.heads, prefetcher, scratch);
  };
  if (plan.is_split) {
    // A thread's tasks follow each other, so that it knows what it will read next.
    share_runs(count, 1, parallel, [&](int64_t index, int64_t) { run(index, true); });
  } else {
    // Tiles begin with the longest: whoever is free takes the next.
    share(count, parallel, [&](int64_t index) { run(index, false); });
  }
  const auto merges = static_cast<int64_t>(plan.merges.size());
  const int64_t merge_work = plan.partial_rows * on.shape.padded;
  const int64_t grain = merge_work < kSerialWork ? merges : 1;
  parallel_for(0, merges, std::max<int64_t>(1, grain), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run_merge(on, plan.merges[i]);
  });
}

CacheView view_of(const at::Tensor& cache, const char* name, int64_t width) {
  TORCH_CHECK(
      cache.dim() == 3 && cache.size(2) >= width, "attention: ", name, " must be (slots, heads, ≥ ", width, ")");
  TORCH_CHECK(cache.stride(2) == 1 || width == 1, "attention: ", name, " must be contiguous along its last axis");
  return {cache.size(0), cache.size(1), width, cache.stride(0), cache.stride(1)};
}

void check_contexts(const Contexts& contexts) {
  const int64_t count = contexts.starts.numel();
  TORCH_CHECK(
      contexts.blocks.scalar_type() == at::kInt && contexts.blocks.dim() == 1 && contexts.blocks.is_contiguous() &&
          contexts.block_size > 0,
      "attention: blocks must be (n,) int32, of at least one token");
  using Part = std::pair<const at::Tensor*, int64_t>;
  for (const auto& [part, size] :
       {Part{&contexts.starts, count}, Part{&contexts.lengths, count}, Part{&contexts.first_rows, count + 1}})
    TORCH_CHECK(
        part->scalar_type() == at::kLong && part->dim() == 1 && part->is_contiguous() && part->size(0) == size,
        "attention: starts and lengths must be (B,) int64, first rows (B + 1,)");
}

at::Tensor paged_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& blocks,
    const at::Tensor& starts, const at::Tensor& lengths, const at::Tensor& first_rows, int64_t block_size,
    int64_t value_width, double scale, int64_t window, double softcap) {
  const Contexts contexts{blocks, starts, lengths, first_rows, block_size};
  return attend(query, key, value, contexts, value_width, scale, window, softcap);
}

}  // namespace

at::Tensor attend(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Contexts& contexts,
    int64_t value_width, double scale, int64_t window, double softcap, const std::optional<at::Tensor>& sinks) {
  TORCH_CHECK(
      query.dim() == 3 && query.is_contiguous(), "attention: the query must be (rows, heads, width), contiguous");
  TORCH_CHECK(
      key.scalar_type() == query.scalar_type() && value.scalar_type() == query.scalar_type(),
      "attention: query, keys and values must have one dtype");
  check_contexts(contexts);
  TORCH_CHECK(
      !sinks || (sinks->scalar_type() == at::kFloat && sinks->is_contiguous() && sinks->numel() == query.size(1)),
      "attention: the sinks must be (heads,) float32");
  TORCH_CHECK(value_width > 0 && query.size(2) > 0, "attention: empty heads");
  TORCH_CHECK(window >= 0 && softcap >= 0, "attention: a negative window or softcap");
  const CacheView keys = view_of(key, "the keys", query.size(2)), values = view_of(value, "the values", value_width);
  TORCH_CHECK(
      keys.heads == values.heads && keys.slots == values.slots && keys.heads > 0 && query.size(1) % keys.heads == 0,
      "attention: ", query.size(1), " query heads over ", keys.heads, " of keys, ", values.heads, " of values");
  const Shape shape{query.size(1), keys.heads,  query.size(1) / keys.heads,
                    query.size(2), value_width, round_up(value_width, kLanes)};
  const bool is_dense = keys.head_stride == key.size(2) && values.head_stride == value.size(2);
  at::Tensor out = at::empty({query.size(0), shape.heads, value_width}, query.options());
  const Plan plan = make_plan(
      contexts, shape, window, query.size(0),
      is_dense ? (keys.width + values.width) * keys.heads * static_cast<int64_t>(query.element_size()) : 0,
      query.scalar_type() == at::kBFloat16 && !sinks && use_amx());
  at::Tensor partial;
  if (plan.partial_rows)
    partial = at::empty({plan.partial_rows, shape.padded + kLanes}, query.options().dtype(at::kFloat));
  dispatch(query.scalar_type(), "attention", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    run_plan(
        Operands<T>{
            query.const_data_ptr<T>(),
            key.const_data_ptr<T>(),
            value.const_data_ptr<T>(),
            out.data_ptr<T>(),
            contexts.blocks.const_data_ptr<int32_t>(),
            contexts.block_size,
            keys,
            values,
            shape,
            {static_cast<float>(scale), static_cast<float>(softcap), window,
             sinks ? sinks->const_data_ptr<float>() : nullptr},
            plan.partial_rows ? partial.data_ptr<float>() : nullptr},
        plan);
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "paged_attention(Tensor query, Tensor key, Tensor value, Tensor blocks, Tensor starts, Tensor lengths, "
      "Tensor first_rows, int block_size, int value_width, float scale, int window, float softcap) -> Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("paged_attention", paged_attention); }

}  // namespace blazr
