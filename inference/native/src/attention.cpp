// Attention over the paged cache: decoding rows and prefill chunks of a step in one call, nothing gathered or padded.
#include "attention.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

namespace blazr {
namespace {

constexpr int64_t kTileRows = 192;       // rows of a tile: packing a block of keys is spread over them
constexpr int64_t kSplitTokens = 32;     // sequences with at most so many new tokens are split over their context …
constexpr int64_t kSplitKeys = 256;      // … into parts of at least so many keys,
constexpr int64_t kWideRow = 1024;       // bytes of a token's keys from which on reading a head alone wastes pages;
constexpr int64_t kPartsPerThread = 8;   // with so many parts of contexts a thread takes all heads of one
constexpr int64_t kMaxSplits = 16;       // but not into more than this, for the partial results' memory

// One (kv head, tile of tokens, part of the context) of a sequence.
struct Item {
  int64_t first_row, num_tokens;  // rows of the step
  int64_t position;               // of the first row's token
  int64_t first_key, stop_key;    // keys to look at, the first a multiple of 64
  int64_t slots;                  // where the sequence's slots begin
  int64_t head;                   // kv head
  int64_t partial;                // index of its first row among the partial results, or -1
};

// Rows that were split, to be put together again.
struct Merge {
  int64_t first_row, num_tokens, head, partial, num_splits;
};

struct Plan {
  std::vector<Item> items;
  std::vector<Merge> merges;
  int64_t partial_rows = 0, work = 0;
};

struct Shape {
  int64_t heads, kv_heads, group, width, value_width, padded;
};

// How long the parts of a context are: a function of the sequence alone, so that its result is too.
int64_t split_length(int64_t keys) {
  int64_t length = kSplitKeys;
  while (length * kMaxSplits < keys) length *= 2;
  return length;
}

Plan make_plan(
    const int64_t* table, int64_t count, const Shape& shape, int64_t window, int64_t num_rows, int64_t num_slots) {
  Plan plan;
  int64_t covered = 0;
  const int64_t tile_tokens = std::clamp<int64_t>(kTileRows / shape.group, 1, kKeys);
  for (int64_t index = 0; index < count; ++index) {
    const int64_t row = table[4 * index], rows = table[4 * index + 1], total = table[4 * index + 2],
                  at = table[4 * index + 3];
    TORCH_CHECK(
        row == covered && rows > 0 && rows <= num_rows - row, "attention: sequence ", index,
        " does not go on where the one before it ends");
    TORCH_CHECK(
        total >= rows && at >= 0 && total <= num_slots && at <= num_slots - total, "attention: sequence ", index,
        " has ", total, " tokens from ", at, " of ", num_slots, " slots");
    covered += rows;
    const int64_t context = total - rows;
    const bool is_split = rows <= kSplitTokens;
    // Tiles with the longest contexts first: the short ones even out the threads' ends.
    for (int64_t tile = (rows - 1) / tile_tokens; tile >= 0; --tile) {
      const int64_t first = tile * tile_tokens, tokens = std::min(tile_tokens, rows - first);
      const int64_t position = context + first, stop = position + tokens;
      const int64_t seen = window ? std::max<int64_t>(0, position - window + 1) : 0;
      const int64_t begin = seen / kKeys * kKeys;
      const int64_t length = is_split ? split_length(stop - begin) : stop;
      const int64_t splits = (stop - begin + length - 1) / length;
      const int64_t tile_rows = tokens * shape.group, head_rows = splits * tile_rows;
      // Heads innermost: the rows of a token's heads lie side by side in memory.
      for (int64_t part = 0; part < splits; ++part) {
        const int64_t from = begin + part * length, to = std::min(stop, from + length);
        for (int64_t head = 0; head < shape.kv_heads; ++head) {
          const int64_t partial = splits > 1 ? plan.partial_rows + head * head_rows + part * tile_rows : -1;
          plan.items.push_back({row + first, tokens, position, from, to, at, head, partial});
        }
        plan.work += shape.kv_heads * (to - from) * (tile_rows + 2) * (shape.width + shape.value_width) / kLanes;
      }
      if (splits == 1) continue;
      for (int64_t head = 0; head < shape.kv_heads; ++head, plan.partial_rows += head_rows)
        plan.merges.push_back({row + first, tokens, head, plan.partial_rows, splits});
    }
  }
  TORCH_CHECK(covered == num_rows, "attention: the sequences have ", covered, " rows, the query has ", num_rows);
  return plan;
}

// One step's operands.
template <typename T>
struct Operands {
  const T *query, *key, *value;
  T* out;
  const int64_t* slots;
  CacheView keys, values;
  Shape shape;
  ScoreRule rule;
  float* partial;  // rows of (padded) values, then total, then highest

  int64_t partial_stride() const { return shape.padded + kLanes; }
};

// Where the keys and values of a block lie.
template <typename T>
struct Rows {
  const T *key[kKeys], *value[kKeys];
  int count;
};

// The rows of the block from `first`; asks the memory for them. `for_all_heads`: the other heads of these tokens come
// next on this thread, so their rows, which lie beside, are fetched too, while the memory has the page open.
template <typename T>
Rows<T> find_rows(const Operands<T>& on, const Item& item, int64_t first, bool for_all_heads) {
  constexpr int64_t kLine = 64 / sizeof(T);
  Rows<T> rows;
  rows.count = static_cast<int>(std::min<int64_t>(kKeys, item.stop_key - first));
  const int64_t* slots = on.slots + item.slots + first;
  for (int i = 0; i < rows.count; ++i) {
    const int64_t slot = slots[i];
    TORCH_CHECK_INDEX(slot >= 0 && slot < on.keys.slots, "attention: slot ", slot, " of a cache with ", on.keys.slots);
    rows.key[i] = on.key + slot * on.keys.slot_stride + item.head * on.keys.head_stride;
    rows.value[i] = on.value + slot * on.values.slot_stride + item.head * on.values.head_stride;
    for (int64_t at = 0; at < on.keys.width; at += kLine) __builtin_prefetch(rows.key[i] + at);
    if (on.value != on.key)
      for (int64_t at = 0; at < on.values.width; at += kLine) __builtin_prefetch(rows.value[i] + at);
    if (!for_all_heads) continue;
    const int64_t others = (on.keys.heads - 1) * on.keys.head_stride;
    for (int64_t at = 0; at < others; at += kLine) {
      __builtin_prefetch(rows.key[i] + on.keys.width + at, 0, 2);
      __builtin_prefetch(rows.value[i] + on.values.width + at, 0, 2);
    }
  }
  return rows;
}

template <typename T>
void run_item(const Operands<T>& on, const Item& item, bool for_all_heads, Scratch& scratch) {
  const Shape& shape = on.shape;
  const int64_t rows = item.num_tokens * shape.group, units = units_of<T>(shape.width);
  constexpr int64_t kProbabilities = kRows * kKeys;
  static_assert(sizeof(RowState) % 64 == 0);
  const int64_t state_floats = static_cast<int64_t>(sizeof(RowState) / 4);
  const int64_t sizes[] = {
      round_up(rows * units, kLanes), units * kKeys, shape.padded * kKeys, rows * shape.padded, rows * state_floats,
      kProbabilities};
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  float* memory = scratch.take(total);
  auto carve = [&memory](int64_t count) {
    float* part = memory;
    memory += count;
    return part;
  };
  auto* queries = reinterpret_cast<uint32_t*>(carve(sizes[0]));
  auto* keys = reinterpret_cast<uint32_t*>(carve(sizes[1]));
  auto* values = reinterpret_cast<uint32_t*>(carve(sizes[2]));
  float* mixed = carve(sizes[3]);
  auto* states = reinterpret_cast<RowState*>(carve(sizes[4]));
  auto* probabilities = reinterpret_cast<uint32_t*>(carve(sizes[5]));

  // A row is one query head of one token; the heads of a token lie side by side.
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t token = item.first_row + row / shape.group, head = item.head * shape.group + row % shape.group;
    pack_row(on.query + (token * shape.heads + head) * shape.width, shape.width, queries + row * units, units);
    states[row] = {splat(0), kNone};
  }
  std::fill_n(mixed, rows * shape.padded, 0.0f);

  // Two sets of pointers: while a block is computed the next one's rows are on their way from memory.
  Rows<T> rows_of[2];
  int turn = 0;
  rows_of[0] = find_rows(on, item, item.first_key, for_all_heads);
  for (int64_t block = item.first_key; block < item.stop_key; block += kKeys, turn ^= 1) {
    if (block + kKeys < item.stop_key) rows_of[turn ^ 1] = find_rows(on, item, block + kKeys, for_all_heads);
    const Rows<T>& found = rows_of[turn];
    const int count = found.count;
    pack_keys(found.key, count, shape.width, keys);
    pack_values(found.value, count, shape.value_width, shape.padded, values);
    for (int64_t row = 0; row < rows; row += kRows) {
      const int here = static_cast<int>(std::min<int64_t>(kRows, rows - row));
      int64_t positions[kRows];
      for (int i = 0; i < here; ++i) positions[i] = item.position + (row + i) / shape.group - block;
      const int64_t first = positions[0], last = positions[here - 1];
      if (last < 0) continue;                                                 // the block is in their future
      if (on.rule.window && first - on.rule.window >= count - 1) continue;    // or before their window
      const bool masked = count < kKeys || first < kKeys - 1 || (on.rule.window && last - on.rule.window >= 0);
      with_constant<kRows>(here, [&](auto rows_here) {
        advance<T, decltype(rows_here)::value>(
            queries + row * units, units, keys, values, shape.padded, count, positions, masked, on.rule, states + row,
            mixed + row * shape.padded, probabilities);
      });
    }
  }

  for (int64_t row = 0; row < rows; ++row) {
    const float sum_of_weights = sum(states[row].total);
    const float* from = mixed + row * shape.padded;
    if (item.partial >= 0) {
      float* to = on.partial + (item.partial + row) * on.partial_stride();
      std::memcpy(to, from, shape.padded * sizeof(float));
      to[shape.padded] = sum_of_weights;
      to[shape.padded + 1] = states[row].highest;
      continue;
    }
    const int64_t token = item.first_row + row / shape.group, head = item.head * shape.group + row % shape.group;
    T* to = on.out + (token * shape.heads + head) * shape.value_width;
    const float share = 1.0f / sum_of_weights;
    for (int64_t i = 0; i < shape.value_width; i += kLanes) {
      const vf part = load(from + i) * share;
      if (i + kLanes <= shape.value_width) {
        store(to + i, part);
      } else {
        store_part(to + i, part, shape.value_width - i);
      }
    }
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
  // The items of a part's heads follow each other. With enough of them for all threads, one thread takes all heads of
  // a part, so that the lines of a token are read from memory together.
  const auto count = static_cast<int64_t>(plan.items.size());
  const int64_t heads = on.shape.kv_heads;
  const bool is_wide = on.keys.slot_stride * static_cast<int64_t>(sizeof(T)) >= kWideRow;
  const int64_t together = is_wide && count / heads >= kPartsPerThread * at::get_num_threads() ? heads : 1;
  for_each_item(count / together, plan.work, [&](int64_t part, Scratch& scratch) {
    for (int64_t i = part * together; i < (part + 1) * together; ++i) {
      const Item& item = plan.items[i];
      const bool is_first = together > 1 && item.head == 0 && item.num_tokens <= kSplitTokens;
      run_item(on, item, is_first, scratch);
    }
  });
  const auto merges = static_cast<int64_t>(plan.merges.size());
  const int64_t merge_work = plan.partial_rows * on.shape.padded;
  const int64_t grain = merge_work < kSerialWork ? merges : 1;
  parallel_for(0, merges, std::max<int64_t>(1, grain), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run_merge(on, plan.merges[i]);
  });
}

CacheView view_of(const at::Tensor& cache, const char* name, int64_t width) {
  TORCH_CHECK(cache.dim() == 3 && cache.size(2) >= width, "attention: ", name, " must be (slots, heads, ≥ ", width, ")");
  TORCH_CHECK(cache.stride(2) == 1 || width == 1, "attention: ", name, " must be contiguous along its last axis");
  return {cache.size(0), cache.size(1), width, cache.stride(0), cache.stride(1)};
}

}  // namespace

at::Tensor paged_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& slots,
    const at::Tensor& sequences, int64_t value_width, double scale, int64_t window, double softcap) {
  TORCH_CHECK(query.dim() == 3 && query.is_contiguous(), "attention: the query must be (rows, heads, width), contiguous");
  TORCH_CHECK(
      key.scalar_type() == query.scalar_type() && value.scalar_type() == query.scalar_type(),
      "attention: query, keys and values must have one dtype");
  TORCH_CHECK(
      slots.scalar_type() == at::kLong && slots.dim() == 1 && slots.is_contiguous(), "attention: slots must be (N,) int64");
  TORCH_CHECK(
      sequences.scalar_type() == at::kLong && sequences.dim() == 2 && sequences.size(1) == 4 && sequences.is_contiguous(),
      "attention: sequences must be (B, 4) int64");
  TORCH_CHECK(value_width > 0 && query.size(2) > 0, "attention: empty heads");
  TORCH_CHECK(window >= 0 && softcap >= 0, "attention: a negative window or softcap");
  const CacheView keys = view_of(key, "the keys", query.size(2)), values = view_of(value, "the values", value_width);
  TORCH_CHECK(
      keys.heads == values.heads && keys.slots == values.slots && keys.heads > 0 && query.size(1) % keys.heads == 0,
      "attention: ", query.size(1), " query heads over ", keys.heads, " of keys, ", values.heads, " of values");
  const Shape shape{
      query.size(1), keys.heads,  query.size(1) / keys.heads, query.size(2), value_width, round_up(value_width, kLanes)};
  at::Tensor out = at::empty({query.size(0), shape.heads, value_width}, query.options());
  const Plan plan = make_plan(
      sequences.const_data_ptr<int64_t>(), sequences.size(0), shape, window, query.size(0), slots.size(0));
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
            slots.const_data_ptr<int64_t>(),
            keys,
            values,
            shape,
            {static_cast<float>(scale), static_cast<float>(softcap), window},
            plan.partial_rows ? partial.data_ptr<float>() : nullptr},
        plan);
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "paged_attention(Tensor query, Tensor key, Tensor value, Tensor slots, Tensor sequences, int value_width, "
      "float scale, int window, float softcap) -> Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("paged_attention", paged_attention); }

}  // namespace blazr
