#include "read_ahead.h"

#include <torch/library.h>

#include <atomic>

namespace blazr {
namespace {

constexpr ReadOrder make_plain() { return {}; }

// Each of a window's pages has its turn; the pages' beginnings are spread over the window, because the second cache
// has to learn anew where each one leads. The whole is a window ahead.
constexpr ReadOrder make_paged() {
  ReadOrder order{true, {}};
  for (int64_t piece = 0; piece < kOrderLength; ++piece) {
    const int64_t page = piece % kPages, within = piece / kPages + page * (kPieces / kPages);
    const int64_t wanted = (within / kPieces * kPages + page) * kPieces + within % kPieces;
    order.offsets[piece] = static_cast<uint32_t>(kWindow + (wanted - piece) * kPiece);
  }
  return order;
}

constexpr ReadOrder kPlain = make_plain(), kPaged = make_paged();

// Measured on an Intel Xeon with AMX (decision 36; all of Intel's are taken to be like it) and on a Zen 3 (decision
// 97). A Zen 5 is as fast in line; a Zen 4, which some compilers take for a Zen 3, wasn't measured.
bool are_pages_faster() {
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_cpu_is("intel") || (__builtin_cpu_is("znver3") && !__builtin_cpu_supports("avx512f"));
#else
  return false;
#endif
}

std::atomic<bool>& in_pages() {
  static std::atomic<bool> used{are_pages_faster()};
  return used;
}

// For comparing both orders; results are the same. Returns what was used before.
bool read_in_pages(bool wanted) { return in_pages().exchange(wanted); }

}  // namespace

const ReadOrder& read_order() { return in_pages().load(std::memory_order_relaxed) ? kPaged : kPlain; }

}  // namespace blazr

TORCH_LIBRARY_FRAGMENT(blazr, library) { library.def("read_in_pages(bool wanted) -> bool", blazr::read_in_pages); }
