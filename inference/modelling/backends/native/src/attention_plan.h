// How attention's work is cut: into items that a thread computes alone, and tasks of the items that are read together.
// The cut of a sequence follows from that sequence alone, but for items by matrix tiles, where a row's result is the
// same in each cut; which items make a task changes no result.
#pragma once

#include <vector>

#include "attention.h"

namespace blazr {

constexpr int64_t kTileRows = 192;       // rows of a tile: packing a block of keys is spread over them
constexpr int64_t kSplitTokens = 32;     // sequences with at most so many new tokens are split over their context …
constexpr int64_t kSplitKeys = 256;      // … into parts of at least so many keys,
constexpr int64_t kPartsPerThread = 4;   // with so many parts of contexts a thread takes the heads of one together,
constexpr int64_t kFewRows = 32;         // if a head has at most so many rows
constexpr int64_t kBlockBytes = 262144;  // and a block's keys and values leave room in the second cache
constexpr int64_t kMaxSplits = 16;       // but not into more than this, for the partial results' memory
constexpr int64_t kMatrixRows = 1024;    // rows of an item by matrix tiles, for which its keys are packed, at most …
constexpr int64_t kFewestRows = 128;     // … and at least, where shorter ones give each thread …
constexpr int64_t kItemsPerThread = 4;   // … so many

// One (kv head, tile of tokens, part of the context) of a sequence.
struct Item {
  int64_t first_row, num_tokens;  // rows of the step
  int64_t position;               // of the first row's token
  int64_t first_key, stop_key;    // keys to look at, the first a multiple of 64
  int64_t start;                  // where the sequence's blocks begin
  int64_t head;                   // kv head
  int64_t partial;                // index of its first row among the partial results, or -1
  bool by_tiles;                  // by matrix tiles (attention_amx.h)
};

// Rows that were split, to be put together again.
struct Merge {
  int64_t first_row, num_tokens, head, partial, num_splits;
};

// What a thread does at once: items of some heads that otherwise are the same.
struct Task {
  int64_t first_item, heads;
};

struct Plan {
  std::vector<Item> items;
  std::vector<Task> tasks;
  std::vector<Merge> merges;
  int64_t partial_rows = 0, work = 0;
  bool is_split = true;  // no sequence has more than kSplitTokens new tokens
};

struct Shape {
  int64_t heads, kv_heads, group, width, value_width, padded;
};

// How long the parts of a context are: a function of the sequence alone, so that its result is too.
inline int64_t split_length(int64_t keys) {
  int64_t length = kSplitKeys;
  while (length * kMaxSplits < keys) length *= 2;
  return length;
}

// Items to tasks. With enough parts for all threads, one thread takes the heads of a part together: the rows of a
// token's heads lie side by side, so that memory is read from end to end. `token_bytes`: of a token's keys and values;
// 0 if they don't lie so.
inline void make_tasks(Plan& plan, const Shape& shape, int64_t token_bytes) {
  const auto count = static_cast<int64_t>(plan.items.size());
  const bool is_enough = token_bytes > 0 && count / shape.kv_heads >= kPartsPerThread * at::get_num_threads();
  int64_t together = shape.kv_heads;
  while (together % 2 == 0 && kKeys * token_bytes * together / shape.kv_heads > kBlockBytes) together /= 2;
  plan.tasks.reserve(count);
  for (int64_t item = 0; item < count;) {
    const bool are_few = plan.items[item].num_tokens * shape.group <= kFewRows && !plan.items[item].by_tiles;
    const int64_t heads = is_enough && are_few ? together : 1;
    plan.tasks.push_back({item, heads});
    item += heads;
  }
}

// New tokens of an item by matrix tiles: the items of a sequence are of one size. A row's result is the same in each
// cut.
inline int64_t matrix_tokens(int64_t tokens, const Shape& shape) {
  const int64_t rows = tokens * shape.group, wanted = kItemsPerThread * at::get_num_threads();
  const int64_t most = std::clamp(rows * shape.kv_heads / wanted, kFewestRows, kMatrixRows);
  return ceil_div(tokens, ceil_div(rows, most));
}

// `use_tiles`: sequences with more new tokens than are split go by matrix tiles.
inline Plan make_plan(
    const Contexts& contexts, const Shape& shape, int64_t window, int64_t num_rows, int64_t token_bytes,
    bool use_tiles) {
  const int64_t count = contexts.starts.numel(), num_blocks = contexts.blocks.numel(), size = contexts.block_size;
  const int64_t *starts = contexts.starts.const_data_ptr<int64_t>(),
                *totals = contexts.lengths.const_data_ptr<int64_t>(),
                *first_rows = contexts.first_rows.const_data_ptr<int64_t>();
  Plan plan;
  plan.items.reserve(count * shape.kv_heads);
  TORCH_CHECK(
      first_rows[0] == 0 && first_rows[count] == num_rows, "attention: the sequences have rows ", first_rows[0], " to ",
      first_rows[count], ", the query has ", num_rows);
  for (int64_t index = 0; index < count; ++index) {
    const int64_t row = first_rows[index], rows = first_rows[index + 1] - row, total = totals[index],
                  start = starts[index];
    TORCH_CHECK(rows > 0 && rows <= num_rows, "attention: sequence ", index, " has ", rows, " rows");
    TORCH_CHECK(
        total >= rows && start >= 0 && start < num_blocks && (total - 1) / size < num_blocks - start,
        "attention: sequence ", index, " has ", total, " tokens from block ", start, " of ", num_blocks);
    const int64_t context = total - rows;
    const bool is_split = rows <= kSplitTokens;
    plan.is_split &= is_split;
    const bool by_tiles = use_tiles && !is_split;
    const int64_t tile_tokens =
        by_tiles ? matrix_tokens(rows, shape) : std::clamp<int64_t>(kTileRows / shape.group, 1, kKeys);
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
          plan.items.push_back({row + first, tokens, position, from, to, start, head, partial, by_tiles});
        }
        plan.work += shape.kv_heads * (to - from) * (tile_rows + 2) * (shape.width + shape.value_width) / kLanes;
      }
      if (splits == 1) continue;
      for (int64_t head = 0; head < shape.kv_heads; ++head, plan.partial_rows += head_rows)
        plan.merges.push_back({row + first, tokens, head, plan.partial_rows, splits});
    }
  }
  make_tasks(plan, shape, token_bytes);
  return plan;
}

}  // namespace blazr
