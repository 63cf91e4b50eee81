#include "thread_pool.h"

#include <ATen/Parallel.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>

#include "work.h"

namespace blazr {
namespace {

constexpr int64_t kFetchBytes = 320 << 10;  // of a thread's share: what its second cache keeps beside other things
constexpr int64_t kFetchAtOnce = 512;       // between two looks for work
constexpr int kSpins = 4000;                // before a waiting thread lets others have the processor for a moment

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A thread's way through the beginning of its own part of what comes next, and the first helper's through the leader's,
// who is busy.
class Fetcher {
 public:
  Fetcher(int thread, int threads) : thread_(thread), threads_(threads) {}

  // A little more; false if there is nothing left to fetch.
  bool fetch(const Upcoming* upcoming) {
    if (upcoming != seen_) {
      seen_ = upcoming;
      is_leaders_ = false;
      if (seen_) begin(thread_);
    }
    if (!seen_) return false;
    if (at_ >= end_) {
      if (is_leaders_ || thread_ != 1) return false;
      is_leaders_ = true;
      begin(0);
    }
    const uint8_t* stop = std::min(end_, at_ + kFetchAtOnce);
    for (; at_ < stop; at_ += 64) __builtin_prefetch(at_, 0, 2);
    return true;
  }

 private:
  void begin(int thread) {
    const int64_t first = part_begin(seen_->count, thread, threads_),
                  last = part_begin(seen_->count, thread + 1, threads_);
    at_ = seen_->data + first * seen_->block_bytes;
    end_ = at_ + std::min(kFetchBytes, (last - first) * seen_->block_bytes);
  }

  int thread_, threads_;
  const Upcoming* seen_ = nullptr;
  bool is_leaders_ = false;
  const uint8_t *at_ = nullptr, *end_ = nullptr;
};

}  // namespace

thread_local ThreadPool* ThreadPool::current_ = nullptr;

void ThreadPool::run(const std::function<void()>& body) {
  const int threads = at::get_num_threads();
  if (threads < 2 || at::in_parallel_region() || current_ != nullptr) {
    body();
    return;
  }
  ThreadPool pool;
  std::exception_ptr error;
#pragma omp parallel num_threads(threads)
  {
    if (omp_get_thread_num() == 0) {
      current_ = &pool;
      try {
        body();
      } catch (...) {
        error = std::current_exception();
      }
      current_ = nullptr;
      pool.state_.fetch_or(kOver, std::memory_order_release);
    } else {
      pool.work(omp_get_thread_num(), threads);
    }
  }
  if (error) std::rethrow_exception(error);
}

void ThreadPool::run_job(Call call, void* context) {
  call_ = call;
  context_ = context;
  const uint64_t job = (state_.load(std::memory_order_relaxed) / kJob + 1) * kJob;
  state_.store(job | kOpen, std::memory_order_release);
  current_ = nullptr;  // what the work itself shares, it does alone
  call_job(0);
  current_ = this;
  state_.fetch_and(~kOpen, std::memory_order_relaxed);
  for (int spins = 0; state_.load(std::memory_order_acquire) & kActive; ++spins) {
    relax();
    if (spins > kSpins) sched_yield();
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::work(int thread, int threads) {
  Fetcher fetcher(thread, threads);
  uint64_t last = 0;
  for (int spins = 0;;) {
    uint64_t state = state_.load(std::memory_order_acquire);
    if (state & kOver) return;
    if ((state & kOpen) && state / kJob != last) {
      if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) continue;
      last = state / kJob;
      call_job(thread);
      state_.fetch_sub(1, std::memory_order_release);
      spins = 0;
    } else if (!fetcher.fetch(upcoming_.load(std::memory_order_relaxed))) {
      relax();
      if (++spins > kSpins) sched_yield();
    }
  }
}

void ThreadPool::call_job(int thread) noexcept {
  try {
    call_(context_, thread);
  } catch (...) {
    const std::lock_guard<std::mutex> guard(error_lock_);
    error_ = std::current_exception();
  }
}

}  // namespace blazr
