// The activations of all layers; the numbers are those of inference/modelling/layers/mlp.py.
#pragma once

#include "simd.h"

namespace blazr {

enum Activation { kSilu, kGeluTanh, kRelu, kRelu2, kGelu, kNone };

inline vf activation(vf x, int64_t kind) {
  switch (kind) {
    case kSilu:
      return silu(x);
    case kGeluTanh:
      return 0.5f * x * (1.0f + tanh(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    case kRelu:
      return vmax(x, splat(0));
    case kRelu2: {
      vf positive = vmax(x, splat(0));
      return positive * positive;
    }
    case kNone:
      return x;
    default: {
      float lanes[kLanes];
      store(lanes, x);
      for (float& lane : lanes) lane = 0.5f * lane * (1.0f + std::erf(lane * 0.70710678f));
      return load(lanes);
    }
  }
}

}  // namespace blazr
