// Reads memory as fast as it comes, in two ways, of which one processor or another gives more (docs/decisions/0036).
#include <cstdint>
#include <cstring>

namespace {

typedef uint64_t Line __attribute__((vector_size(64)));

constexpr int64_t kPiece = 128, kPage = 4096, kPages = 8, kWindow = kPages * kPage;

inline Line read(const char* at) {
  Line first, second;
  std::memcpy(&first, at, sizeof first);
  std::memcpy(&second, at + sizeof first, sizeof second);
  return first ^ second;
}

// From the first byte to the last; what lies a page ahead is asked for as read once.
Line in_line(const char* from, int64_t bytes) {
  Line sum{};
  for (const char* at = from; at < from + bytes; at += kPiece) {
    __builtin_prefetch(at + kPage, 0, 0);
    __builtin_prefetch(at + kPage + 64, 0, 0);
    sum ^= read(at);
  }
  return sum;
}

// The same, asked for from the pages of the next window in turn, each of which begins at a moment of its own.
Line in_pages(const char* from, int64_t bytes) {
  Line sum{};
  for (const char* window = from; window < from + bytes; window += kWindow) {
    const char* at = window;
    for (int64_t within = 0; within < kPage; within += kPiece) {
      for (int64_t page = 0; page < kPages; ++page, at += kPiece) {
        const int64_t moved = within + page * (kPage / kPages);
        const char* wanted = window + kWindow + page * kPage + moved + (moved < kPage ? 0 : kWindow - kPage);
        __builtin_prefetch(wanted, 0, 2);
        __builtin_prefetch(wanted + 64, 0, 2);
        sum ^= read(at);
      }
    }
  }
  return sum;
}

}  // namespace

// Reads a multiple of 32 KiB. The result keeps the compiler from leaving it out.
extern "C" uint64_t read_memory(const char* from, int64_t bytes, bool pages) {
  const Line sum = pages ? in_pages(from, bytes) : in_line(from, bytes);
  uint64_t all = 0;
  for (int i = 0; i < 8; ++i) all ^= sum[i];
  return all;
}
