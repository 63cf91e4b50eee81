// Work shared by threads: OpenMP's, or within a replayed step those of its pool.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "thread_pool.h"

namespace blazr {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whether a second thread can help here.
inline bool has_helpers() {
  if (ThreadPool::current() != nullptr) return true;
  return at::get_num_threads() > 1 && !at::in_parallel_region();
}

// Run work(thread) once on each thread that is there to help, this one included; `count` threads have something to do.
template <typename Work>
void on_threads(int64_t count, Work&& work) {
  if (ThreadPool* pool = ThreadPool::current()) {
    pool->on_threads(work);
    return;
  }
  at::parallel_for(0, std::min<int64_t>(at::get_num_threads(), count), 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) work(static_cast<int>(thread));
  });
}

// Run task(i) for 0 ≤ i < count: each thread takes the next one when it has done one, so that a thread which the
// system has put aside holds nobody up.
template <typename Task>
void share(int64_t count, bool parallel, Task&& task) {
  if (!parallel || count < 2 || !has_helpers()) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  std::atomic<int64_t> next{0};
  on_threads(count, [&](int) {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) task(i);
  });
}

// at::parallel_for, also by a pool: run(begin, end) for parts of at least `grain`.
template <typename Run>
void parallel_for(int64_t begin, int64_t end, int64_t grain, Run&& run) {
  const int64_t count = end - begin;
  if (count <= 0) return;
  if (ThreadPool::current() == nullptr) {
    at::parallel_for(begin, end, grain, run);
    return;
  }
  const int64_t parts = std::min<int64_t>(at::get_num_threads(), ceil_div(count, std::max<int64_t>(1, grain)));
  const int64_t each = ceil_div(count, parts);
  share(parts, true, [&](int64_t part) {
    const int64_t first = begin + part * each, last = std::min(end, first + each);
    if (first < last) run(first, last);
  });
}

// Where thread `thread` of `threads` begins when `count` things are dealt out in runs.
inline int64_t part_begin(int64_t count, int64_t thread, int64_t threads) { return count * thread / threads; }

// Run run(begin, end) over 0 … count, at most `most` at once: each thread has a part of its own, of which it takes half
// of what is left at a time; when it is done it helps the others, so that all end together and still read long runs of
// memory.
template <typename Run>
void share_runs(int64_t count, int64_t most, bool parallel, Run&& run) {
  if (!parallel || count < 2 || !has_helpers()) {
    for (int64_t at = 0; at < count; at += most) run(at, std::min(count, at + most));
    return;
  }
  constexpr int64_t kMostThreads = 64;
  struct alignas(64) Part {
    std::atomic<int64_t> next;
    int64_t end;
  };
  Part parts[kMostThreads];
  const int64_t threads = std::min({kMostThreads, static_cast<int64_t>(at::get_num_threads()), count});
  for (int64_t i = 0; i < threads; ++i) {
    parts[i].next.store(part_begin(count, i, threads), std::memory_order_relaxed);
    parts[i].end = part_begin(count, i + 1, threads);
  }
  on_threads(threads, [&](int thread) {
    for (int64_t turn = 0; turn < threads; ++turn) {
      Part& part = parts[(thread + turn) % threads];
      int64_t at = part.next.load(std::memory_order_relaxed);
      while (at < part.end) {
        const int64_t size = std::min(most, (part.end - at + 1) / 2);
        if (!part.next.compare_exchange_weak(at, at + size, std::memory_order_relaxed)) continue;
        run(at, at + size);
        at = part.next.load(std::memory_order_relaxed);
      }
    }
  });
}

}  // namespace blazr
