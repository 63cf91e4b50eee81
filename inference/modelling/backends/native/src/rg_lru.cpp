// Griffin's recurrent block between its projections: convolution, gates, recurrence, output gate. De et al. 2024,
// https://arxiv.org/abs/2402.19427, section 2.4.
//
// Every sum is made in the order of its terms and every row for itself: a row has the same bits in a decode, in a
// prefill, and however a prefill is cut.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "activation.h"
#include "arguments.h"
#include "recurrent.h"
#include "ssm_tile.h"

namespace blazr {
namespace {

constexpr int64_t kColumns = 64;                       // columns of a block's matrices that a task multiplies by
constexpr int64_t kRows = 32 * kTileRows;              // rows of a task: the columns are put together once for them
constexpr int64_t kPanel = kTileVectors / 2 * kLanes;  // columns of both gates that make a tile
constexpr int64_t kScanVectors = 4;                    // of a row that are advanced together
constexpr int64_t kGrainValues = 16384;                // below which a second thread isn't woken

struct RgLruArguments {
  at::Tensor projected;                 // (T, 2W): what multiplies the result, then the recurrence's input
  at::Tensor runs;                      // read_runs
  at::Tensor conv_state;                // (slots, W, K-1)
  at::Tensor lru_state;                 // (slots, W)
  at::Tensor taps;                      // (K, W)
  std::optional<at::Tensor> conv_bias;  // (W,)
  at::Tensor input_weight, input_bias;  // (B, w, w) and (B, w), W = B w
  at::Tensor decay_weight, decay_bias;
  at::Tensor strength;  // (W,): the logarithm of a channel's strongest decay
  int64_t activation;   // of what multiplies the result
};

// The gates of all rows: from the convolved values to the decays and to what enters the state.
struct Gates {
  const float *input_weight, *input_bias, *decay_weight, *decay_bias, *strength;
  const float* values;      // (T, W), convolved
  float *decay, *entering;  // (T, W)
  const uint8_t* first;     // (T,): a sequence's first row, whose input enters as a whole
  int64_t blocks, block, width, rows;
};

inline vf square_root(vf x) {
  float lanes[kLanes];
  store(lanes, x);
  for (float& lane : lanes) lane = std::sqrt(lane);
  return load(lanes);
}

// One vector of a row, from the gates' products: decay a = e^(strength σ(r)), entering sqrt(1 - a²) σ(i) x. Not
// inlined: every tile has the same roundings here.
__attribute__((noinline)) void fill_gates(
    const Gates& gates, int64_t row, int64_t column, vf input, vf decay, int64_t left) {
  const int64_t at = row * gates.width + column;
  const vf x = load_some(gates.values + at, left);
  const vf log_decay =
      sigmoid(decay + load_some(gates.decay_bias + column, left)) * load_some(gates.strength + column, left);
  vf entering = x * sigmoid(input + load_some(gates.input_bias + column, left));
  if (!gates.first[row]) entering *= square_root(vmax(1.0f - exp(log_decay + log_decay), splat(0)));
  store_some(gates.decay + at, exp(log_decay), left);
  store_some(gates.entering + at, entering, left);
}

template <int... I>
inline vf repeated(float value, std::integer_sequence<int, I...>) {
  return vf{((void)I, value)...};  // a load; splat is a load and an addition
}

// kCount rows and the columns of a panel that are there, `left` of them. A panel's rows lie together: kPanel columns of
// the input's gate, then those of the decay's. So both sums of a channel are there at once, and no tile is a single
// vector: compilers add up a lone chain of sums with other roundings.
template <int kCount>
void multiply(const Gates& gates, int64_t row, int64_t block, int64_t column, const float* panel, int64_t left) {
  const float* values = gates.values + row * gates.width + block * gates.block;
  vf sums[kCount][kTileVectors] = {};
  for (int64_t k = 0; k < gates.block; ++k) {
    vf weights[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) weights[v] = load(panel + k * 2 * kPanel + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const vf factor = repeated(values[r * gates.width + k], Lanes{});
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) sums[r][v] += factor * weights[v];
    }
  }
  for (int r = 0; r < kCount; ++r)
    by_lanes(left, [&](int64_t i, int64_t count) {
      const int64_t v = i / kLanes;
      fill_gates(gates, row + r, column + i, sums[r][v], sums[r][v + kTileVectors / 2], count);
    });
}

// One row and kColumns columns, whose weights needn't be put together for it.
void multiply_one(
    const Gates& gates, int64_t row, int64_t block, int64_t column, const float* input_weight,
    const float* decay_weight) {
  const float* values = gates.values + row * gates.width + block * gates.block;
  Tile<1, kColumns / kLanes> input, decay;
  input.multiply(values, gates.width, 1, input_weight, gates.block, gates.block);
  decay.multiply(values, gates.width, 1, decay_weight, gates.block, gates.block);
  for (int64_t i = 0; i < kColumns; i += kLanes)
    fill_gates(gates, row, column + i, input.values[0][i / kLanes], decay.values[0][i / kLanes], kLanes);
}

// Some rows and up to kColumns columns of one block.
void multiply_part(
    const Gates& gates, int64_t first, int64_t count, int64_t block, int64_t column, int64_t columns, float* panel) {
  const int64_t size = gates.block, at = block * size * size + column, to = block * size + column;
  const float *input = gates.input_weight + at, *decay = gates.decay_weight + at;
  if (count == 1 && columns == kColumns) {
    multiply_one(gates, first, block, to, input, decay);
    return;
  }
  for (int64_t j = 0; j < columns; j += kPanel) {
    const int64_t left = std::min(kPanel, columns - j);
    for (int64_t k = 0; k < size; ++k) {
      float* to_row = panel + 2 * k * kPanel;
      for (int64_t i = 0; i < kPanel; i += kLanes) {
        const int64_t from = k * size + j + i, there = std::min<int64_t>(kLanes, left - i);
        store(to_row + i, there > 0 ? load_some(input + from, there) : splat(0));
        store(to_row + kPanel + i, there > 0 ? load_some(decay + from, there) : splat(0));
      }
    }
    for (int64_t i = 0; i < count; i += kTileRows)
      with_constant<kTileRows>(std::min<int64_t>(kTileRows, count - i), [&](auto rows) {
        multiply<rows.value>(gates, first + i, block, to + j, panel, left);
      });
  }
}

void fill_all_gates(const Gates& gates) {
  const int64_t parts = ceil_div(gates.block, kColumns), each = gates.blocks * parts;
  const int64_t chunks = ceil_div(gates.rows, kRows);
  share(chunks * each, true, [&](int64_t task) {
    Scratch scratch(2 * gates.block * kPanel);
    const int64_t first = task / each * kRows, block = task % each / parts, column = task % parts * kColumns;
    multiply_part(
        gates, first, std::min(kRows, gates.rows - first), block, column, std::min(kColumns, gates.block - column),
        scratch.begin());
  });
}

// Vectors of a run's channels from `column` on, the last one of `left`: s = a s + x, and s times the output's gate.
template <int kVectors, typename T>
void scan(
    const Gates& gates, const Run& run, int64_t column, int64_t left, const RgLruArguments& in, const States& states,
    T* out) {
  const int64_t first = run.slot * gates.width + column, channels = (kVectors - 1) * kLanes + left;
  float copy[kVectors * kLanes];
  float* stored = states.open(first, channels, run.fresh, copy);
  const T* gate = in.projected.const_data_ptr<T>() + column;
  vf state[kVectors];
  const auto count = [&](int v) { return v + 1 < kVectors ? kLanes : left; };
  for (int v = 0; v < kVectors; ++v) state[v] = run.fresh ? splat(0) : load_some(stored + v * kLanes, count(v));
  for (int64_t row = run.start; row < run.start + run.count; ++row) {
    const int64_t at = row * gates.width + column;
    for (int v = 0; v < kVectors; ++v) {
      const int64_t i = v * kLanes;
      state[v] = load_some(gates.decay + at + i, count(v)) * state[v] + load_some(gates.entering + at + i, count(v));
      const vf factor = activation(load_some(gate + 2 * row * gates.width + i, count(v)), in.activation);
      store_some(out + at + i, factor * state[v], count(v));
    }
  }
  for (int v = 0; v < kVectors; ++v) store_some(stored + v * kLanes, state[v], count(v));
  states.close(first, channels, stored);
}

template <typename T>
void scan_all(
    const Gates& gates, const std::vector<Run>& runs, const RgLruArguments& in, const States& states, T* out) {
  constexpr int64_t kChannels = kScanVectors * kLanes;
  const int64_t panels = ceil_div(gates.width, kChannels), num_runs = runs.size();
  const int64_t each = std::max<int64_t>(1, gates.rows / std::max<int64_t>(1, num_runs)) * kChannels;
  parallel_for(0, num_runs * panels, std::max<int64_t>(1, kGrainValues / each), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t column = task % panels * kChannels, count = std::min(kChannels, gates.width - column);
      with_constant<kScanVectors>(ceil_div(count, kLanes), [&](auto vectors) {
        const int64_t left = count - (vectors.value - 1) * kLanes;
        scan<vectors.value>(gates, runs[task / panels], column, left, in, states, out);
      });
    }
  });
}

at::Tensor rg_lru_mix(const RgLruArguments& in) {
  TORCH_CHECK(
      in.lru_state.dim() == 2 && in.input_bias.dim() == 2 && in.taps.dim() == 2 && in.projected.dim() == 2,
      "rg_lru_mix: rows (T, 2W), states (slots, W), taps (K, W) and biases (B, w) are needed");
  const int64_t slots = in.lru_state.size(0), width = in.lru_state.size(1), rows = in.projected.size(0);
  const int64_t blocks = in.input_bias.size(0), block = in.input_bias.size(1), kernel = in.taps.size(0);
  TORCH_CHECK(blocks * block == width, "rg_lru_mix: ", blocks, " blocks of ", block, " channels aren't ", width);
  TORCH_CHECK(
      in.projected.size(1) == 2 * width && in.projected.is_contiguous(), "rg_lru_mix: contiguous rows of ", 2 * width,
      " values are needed");
  const auto found = read_runs(in.runs, rows, slots);
  const Convolution conv{
      States(in.conv_state, {slots, width, kernel - 1}, "conv_state"),
      checked(in.taps, {kernel, width}, "taps"),
      in.conv_bias ? checked(*in.conv_bias, {width}, "conv bias") : nullptr,
      width,
      kernel,
      kNone,
  };
  const States states(in.lru_state, {slots, width}, "lru_state");
  std::vector<uint8_t> first(rows);
  for (const Run& run : found) first[run.start] = run.fresh;
  Scratch scratch(3 * rows * width);
  float* values = scratch.begin();
  const Gates gates{
      checked(in.input_weight, {blocks, block, block}, "input weight"),
      checked(in.input_bias, {blocks, block}, "input bias"),
      checked(in.decay_weight, {blocks, block, block}, "decay weight"),
      checked(in.decay_bias, {blocks, block}, "decay bias"),
      checked(in.strength, {width}, "strength"),
      values,
      values + rows * width,
      values + 2 * rows * width,
      first.data(),
      blocks,
      block,
      width,
      rows,
  };
  at::Tensor out = at::empty({rows, width}, in.projected.options());
  dispatch(in.projected.scalar_type(), "rg_lru_mix", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    convolve(conv, found, in.projected.const_data_ptr<T>() + width, 2 * width, values);
    fill_all_gates(gates);
    scan_all(gates, found, in, states, out.data_ptr<T>());
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "rg_lru_mix(Tensor projected, Tensor runs, Tensor(a!) conv_state, Tensor(b!) lru_state, Tensor taps, "
      "Tensor? conv_bias, Tensor input_weight, Tensor input_bias, Tensor decay_weight, Tensor decay_bias, "
      "Tensor strength, int activation) -> Tensor");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("rg_lru_mix", with_arguments<rg_lru_mix>()); }

}  // namespace blazr
