// What the operators of attention share.
#pragma once

#include <ATen/core/Tensor.h>

#include "attention_tile.h"
#include "work.h"

namespace blazr {

constexpr int64_t kSerialWork = 20000;  // vector operations below which a second thread costs more than it saves

// `run(i, scratch)` for i < count. Items differ in size, so each thread takes the next one that is left; which thread
// computes an item changes nothing.
template <typename Run>
void for_each_item(int64_t count, int64_t work, Run&& run) {
  static thread_local Scratch scratch;
  share(count, work >= kSerialWork, [&](int64_t i) { run(i, scratch); });
}

// Rows of keys or values in a cache: element (slot, head, i) lies at slot · slot_stride + head · head_stride + i.
struct CacheView {
  int64_t slots, heads, width, slot_stride, head_stride;
};

// Which cached tokens each sequence attends to, the tensors of `AttentionMetadata`.
struct Contexts {
  const at::Tensor &blocks, &starts, &lengths, &first_rows;
  int64_t block_size;
};

// Attention of each row over the cached tokens of its sequence, read in place.
//
// query: (T, H, D) contiguous; key: (S, V, D); value: (S, V, ≥ value_width); last axes contiguous. sinks: (H,) float32,
// scores of a position without a value beside the others.
// Returns (T, H, value_width).
at::Tensor attend(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Contexts& contexts,
    int64_t value_width, double scale, int64_t window, double softcap,
    const std::optional<at::Tensor>& sinks = std::nullopt);

}  // namespace blazr
