#include "amx.h"

#include <torch/library.h>

#include <atomic>

#ifdef BLAZR_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace blazr {
namespace {

// The system gives a process the memory that tiles take in its threads' states once it asks for it (Linux 5.16).
bool is_permitted() {
#ifdef BLAZR_AMX
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // asm/prctl.h, asm/fpu/types.h
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::atomic<bool>& state() {
  static std::atomic<bool> used{is_permitted()};
  return used;
}

// Turns them off, or on again where they can be used. Results may differ in the last bits.
bool set_amx(bool wanted) {
  state() = wanted && is_permitted();
  return state();
}

}  // namespace

bool use_amx() { return state().load(std::memory_order_relaxed); }

}  // namespace blazr

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def("set_amx(bool wanted) -> bool", blazr::set_amx);
  library.def("use_amx() -> bool", blazr::use_amx);
}
