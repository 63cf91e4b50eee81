// The threads of one replayed step: they wait for its operators' work in a loop instead of being called together anew
// for each, and fetch the weights of the next product while they wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>

namespace blazr {

// The weights that the step will read next: `count` blocks one behind the other.
struct Upcoming {
  const uint8_t* data = nullptr;
  int64_t count = 0, block_bytes = 0;
};

class ThreadPool {
 public:
  // Run `body` on this thread while the others of OpenMP's pool help it. What it throws is thrown on. With one thread,
  // or within another parallel region, it runs alone.
  static void run(const std::function<void()>& body);

  // The pool whose step this thread runs; null for helpers, and outside of a step.
  static ThreadPool* current() { return current_; }

  // Run work(thread) on the leader and on each helper that is free, and wait for those who began.
  // A helper that the system has put aside is not waited for, so `work` must take its tasks from a shared counter.
  template <typename Work>
  void on_threads(Work& work) {
    run_job(
        [](void* context, int thread) { (*static_cast<Work*>(context))(thread); },
        const_cast<void*>(static_cast<const void*>(&work)));
  }

  // What helpers may fetch while they wait; it must outlive the step. Null: nothing.
  void prefetch(const Upcoming* upcoming) { upcoming_.store(upcoming, std::memory_order_relaxed); }
  const Upcoming* upcoming() const { return upcoming_.load(std::memory_order_relaxed); }

 private:
  using Call = void (*)(void*, int);

  void run_job(Call call, void* context);
  void work(int thread, int threads);
  void call_job(int thread) noexcept;

  // Helpers at work (low bits), whether the job is open to more of them, whether the step is over, and the job's
  // number.
  static constexpr uint64_t kActive = 0xffff, kOpen = 1 << 16, kOver = 1 << 17, kJob = uint64_t{1} << 32;

  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<const Upcoming*> upcoming_{nullptr};
  Call call_ = nullptr;
  void* context_ = nullptr;
  std::mutex error_lock_;
  std::exception_ptr error_;

  static thread_local ThreadPool* current_;
};

}  // namespace blazr
