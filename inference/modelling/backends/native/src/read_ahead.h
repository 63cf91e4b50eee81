// In which order a thread asks for the weights that it reads next.
//
// A product reads them from the first byte to the last. Zen 5 gives its whole bandwidth to lines that are asked for in
// that order, too, some KiB ahead. Intel's processors and Zen 3 don't: what a core can wait for by its own requests is
// too little, and its second cache, which goes on by itself where lines follow each other, does so for each page of 4
// KiB apart. Asked for from eight pages in turn the same weights come up to 1.7 times as fast (decisions 36 and 97).
#pragma once

#include <cstdint>

namespace blazr {

constexpr int64_t kPiece = 128;  // bytes, two lines, that the order moves together
constexpr int64_t kPage = 4096, kPages = 8, kPieces = kPage / kPiece;
constexpr int64_t kWindow = kPages * kPage;
constexpr int64_t kOrderLength = kPages * kPieces;  // pieces, after which the order repeats
constexpr int64_t kAhead =
    4096;  // bytes in advance, where they are asked for as they lie and by a product with one row

// What is asked for where reading is at an address: the piece so many bytes further on.
struct ReadOrder {
  bool in_pages;
  uint32_t offsets[kOrderLength];  // by the address' piece
};

// This processor's.
const ReadOrder& read_order();

// Where a thread reads on behind its part of a product: at `next` instead of at `end`.
struct ReadOn {
  const uint8_t* end;
  const uint8_t* next;
};

// A thread's way through memory ahead of its reading.
struct WeightsAhead {
  const uint8_t* at;
  const uint32_t* offsets;  // of a ReadOrder; null: as the addresses come, without a look at `end`
  const uint8_t* end;       // as of a ReadOn
  int64_t jump;             // from there to what is next

  // Prefetches the piece that has its turn `further` bytes on; or, if not kWhole, a line of it, where the caller moves
  // `at` line by line. kOnce: as read once, so that it passes through the first cache and doesn't push what the
  // operators and Python between the products need out of the others; else into the second cache. Inlined always: GCC
  // takes a function that only prefetches for one without effects, and drops calls of it.
  template <bool kOnce, bool kWhole = true>
  __attribute__((always_inline)) void prefetch(int64_t further = 0) const {
    const uint8_t* piece = at + further;
    if (offsets) {
      piece += offsets[reinterpret_cast<uintptr_t>(piece) / kPiece % kOrderLength];
      if (piece >= end) piece += jump;
    }
    __builtin_prefetch(piece, 0, kOnce ? 0 : 2);
    if constexpr (kWhole) __builtin_prefetch(piece + 64, 0, kOnce ? 0 : 2);
  }
};

}  // namespace blazr
