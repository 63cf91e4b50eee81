// Matrix tiles (Intel AMX): whether they may be used, and their configuration.
//
// Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18 (the programming model),
// and volume 2 (LDTILECFG, TDPBF16PS, TDPBSUD); Linux, Documentation/arch/x86/xstate.rst (asking for permission).
#pragma once

#include <cstdint>

#include "simd.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__) && \
    defined(__AVX512VNNI__) && defined(__linux__)
#define BLAZR_AMX 1
#endif

namespace blazr {

constexpr int kAmxRows = 16;      // at most
constexpr int64_t kAmxLine = 64;  // bytes of a row at most

// Whether this processor has tiles, the system lets this process use them, and nobody has turned them off.
bool use_amx();

#ifdef BLAZR_AMX

// Rows of each tile, and their bytes: all that there may be.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t line[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t count) {
    rows[tile] = static_cast<uint8_t>(count);
    line[tile] = kAmxLine;
  }
};

// The tiles of this thread while it lives. Other libraries configure them too, so nothing is taken over from before;
// afterwards they are in their initial state, which the system needn't save.
class Tiles {
 public:
  Tiles() = default;
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  ~Tiles() { _tile_release(); }

  // All tiles are zero afterwards.
  void configure(const TileConfig& config) { _tile_loadconfig(&config); }
};

// GCC's tile loads don't tell the compiler that they read memory: what was stored before stays before.
inline void stored_before() { asm volatile("" ::: "memory"); }

#endif

}  // namespace blazr
