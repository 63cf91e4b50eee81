// Multiplies and adds as fast as a core can, alone or with other instructions beside (docs/decisions/0101).
#include <cstdint>

namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
constexpr int kSums = 12;  // enough to hide an addition's latency, few enough for sixteen registers

typedef float Vector __attribute__((vector_size(4 * kLanes)));

template <bool kBeside>
float multiply_all(int64_t rounds) {
  Vector sums[kSums], factor = Vector{} + 0.5f, addend = Vector{} + 1.0f;
  for (int i = 0; i < kSums; ++i) sums[i] = Vector{} + static_cast<float>(i);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * factor + addend;
    // They take their place among the instructions that a core decodes in a cycle, and none of what computes.
    if constexpr (kBeside) asm volatile(".rept 20\n nop\n .endr");
  }
  float all = 0;
  for (int i = 0; i < kSums; ++i) all += sums[i][i % kLanes];
  return all;
}

}  // namespace

// Operations of a round.
extern "C" int64_t operations() { return 2 * kSums * kLanes; }

// The sums go to 2: what is returned keeps the compiler from leaving them out.
extern "C" float multiply(int64_t rounds, bool beside) {
  return beside ? multiply_all<true>(rounds) : multiply_all<false>(rounds);
}
