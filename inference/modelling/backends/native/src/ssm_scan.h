// The recurrence of Mamba-2 and Mamba-3 over the runs of a step, states in place.
#pragma once

#include "recurrent.h"

namespace blazr {

// y_t = s_t C_t + skip_t x_t with s_t = e^{log_decay_t} s_{t-1} + enter_t x_t ⊗ B_t, for T rows, H heads of width P, G
// groups, state size S. With `later` (Mamba-3) the token before a run still enters the state, before the first decay,
// with weight later_t; x_before and b_before take the run's last token.
struct Recurrence {
  const float* x;  // (T, H, P), rows x_stride apart
  int64_t x_stride;
  const float* enter;      // (T, H)
  const float* log_decay;  // (T, H)
  const float* skip;       // (T, H), or (H,) with a stride of 0
  int64_t skip_stride;
  const float *b, *c;  // (T, G, S), rows bc_stride apart
  int64_t bc_stride;
  States state;  // (slots, H, P, S)
  float* out;    // (T, H, P)
  int64_t heads, width, size, groups;
  const float* later = nullptr;  // (T, H)
  States x_before;               // (slots, H, P)
  States b_before;               // (slots, H, S), G = H
};

void recur(const Recurrence& layer, const std::vector<Run>& runs);

}  // namespace blazr
