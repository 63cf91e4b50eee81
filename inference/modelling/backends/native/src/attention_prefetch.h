// Where the keys and values of a step's tokens lie, and a thread's way through them ahead of its arithmetic.
#pragma once

#include <utility>

#include "attention_plan.h"

namespace blazr {

// One step's operands.
template <typename T>
struct Operands {
  const T *query, *key, *value;
  T* out;
  const int32_t* blocks;
  int64_t block_size;
  CacheView keys, values;
  Shape shape;
  ScoreRule rule;
  float* partial;  // rows of (padded) values, then total, then highest

  int64_t partial_stride() const { return shape.padded + kLanes; }
};

// The slots of a sequence's tokens, in runs of neighbours.
class Slots {
 public:
  Slots() = default;

  // From the token at `position`, which exists.
  template <typename T>
  Slots(const Operands<T>& on, const Item& item, int64_t position)
      : block_(on.blocks + item.start + position / on.block_size), size_(on.block_size) {
    enter();
    take(position % size_);
  }

  // The next slot, and how many of the next `most` tokens lie from there on.
  std::pair<int64_t, int64_t> take(int64_t most) {
    if (left_ == 0) enter();
    const int64_t slot = slot_, count = std::min(most, left_);
    slot_ += count;
    left_ -= count;
    return {slot, count};
  }

 private:
  void enter() {
    slot_ = *block_++ * size_;
    left_ = size_;
  }

  const int32_t* block_ = nullptr;
  int64_t size_ = 0, slot_ = 0, left_ = 0;
};

// Where the keys and values of at most `most` tokens from `first` lie, of the item's head; returns their number.
template <typename T>
int find_rows(const Operands<T>& on, const Item& item, int64_t first, int most, const T** keys, const T** values) {
  const int64_t count = std::min<int64_t>(most, item.stop_key - first);
  Slots slots(on, item, first);
  for (int64_t i = 0; i < count;) {
    const auto [slot, length] = slots.take(count - i);
    TORCH_CHECK_INDEX(
        slot >= 0 && slot + length <= on.keys.slots, "attention: slot ", slot, " of a cache with ", on.keys.slots);
    const T* key = on.key + slot * on.keys.slot_stride + item.head * on.keys.head_stride;
    const T* value = on.value + slot * on.values.slot_stride + item.head * on.values.head_stride;
    for (const int64_t end = i + length; i < end; ++i) {
      keys[i] = key;
      values[i] = value;
      key += on.keys.slot_stride;
      value += on.values.slot_stride;
    }
  }
  return static_cast<int>(count);
}

// A thread's way through memory, a block of tokens before its arithmetic: tokens in the order of its tasks, of each the
// rows of the task's heads, which lie side by side. What comes next is prefetched by two lines with each two that are
// packed, by four where values aren't packed: bursts would fill all that a processor can wait for at once.
template <typename T>
class Prefetcher {
 public:
  // The thread begins a task. `call` is a number of its own for each call of the operator; `goes_on`: the tasks after
  // this one will most likely be this thread's, too.
  void begin(const Operands<T>& on, const Plan& plan, int64_t task, uint64_t call, bool goes_on) {
    const bool is_next = call == call_ && task == next_ && !is_over_;
    next_ = task + 1;
    if (is_next) return;
    on_ = &on;
    plan_ = &plan;
    call_ = call;
    last_ = goes_on ? static_cast<int64_t>(plan.tasks.size()) - 1 : task;
    is_over_ = false;
    at_ = end_ = nullptr;
    value_ = nullptr;
    num_prefetched_ = 0;
    num_needed_ = kKeys;
    enter(task);
    finish();
  }

  // `count` tokens are about to be packed.
  void move(int64_t count) { num_needed_ += count; }

  // Prefetches two lines.
  void prefetch() {
    if (at_ >= end_ && !next_row()) return;
    __builtin_prefetch(at_);
    __builtin_prefetch(at_ + kLine);
    at_ += 2 * kLine;
  }

  // Prefetches what is left before the next block: rows that don't begin with a line have one more than are packed, and
  // a task whose last block is short leaves most of the next one's.
  void finish() {
    while (at_ < end_ || next_row()) prefetch();
  }

 private:
  static constexpr int64_t kLine = 64;

  void enter(int64_t task) {
    task_ = task;
    const auto [first_item, heads] = plan_->tasks[task];
    const Item& item = plan_->items[first_item];
    slots_ = Slots(*on_, item, item.first_key);
    num_left_ = item.stop_key - item.first_key;
    keys_ = on_->key + item.head * on_->keys.head_stride;
    values_ = on_->value == on_->key ? nullptr : on_->value + item.head * on_->values.head_stride;
    key_count_ = (heads - 1) * on_->keys.head_stride + on_->keys.width;
    value_count_ = (heads - 1) * on_->values.head_stride + on_->values.width;
  }

  __attribute__((noinline)) bool next_row() {
    if (value_ != nullptr) {
      see(value_, value_count_);
      value_ = nullptr;
      return true;
    }
    if (num_prefetched_ >= num_needed_ || is_over_) return false;
    if (num_left_ == 0) {
      is_over_ = task_ >= last_;
      if (is_over_) return false;
      enter(task_ + 1);
    }
    const int64_t slot = slots_.take(1).first;
    --num_left_;
    ++num_prefetched_;
    if (slot < 0 || slot >= on_->keys.slots) return false;  // an error when it is packed
    if (values_ != nullptr) value_ = values_ + slot * on_->values.slot_stride;
    see(keys_ + slot * on_->keys.slot_stride, key_count_);
    return true;
  }

  void see(const T* row, int64_t count) {
    at_ = reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(row) / kLine * kLine);
    end_ = reinterpret_cast<const char*>(row + count);
  }

  const Operands<T>* on_ = nullptr;
  const Plan* plan_ = nullptr;
  uint64_t call_ = 0;
  int64_t next_ = 0, last_ = 0, task_ = 0;
  bool is_over_ = true;
  // Of the task: its next slots, how many are left, its first head's keys and values, and how many a token has.
  Slots slots_;
  int64_t num_left_ = 0;
  const T *keys_ = nullptr, *values_ = nullptr;
  int64_t key_count_ = 0, value_count_ = 0;
  int64_t num_prefetched_ = 0, num_needed_ = 0;  // tokens since the way began
  const char *at_ = nullptr, *end_ = nullptr;
  const T* value_ = nullptr;  // the row after this one
};

}  // namespace blazr
