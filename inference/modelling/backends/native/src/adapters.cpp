// LoRA adapters added to the rows of a product: y += scale · B (A x), for each row with the adapter of its slot.
//
// The factors lie where the table of the module says, so that a replayed step serves whatever adapters are resident.
// A row's result depends on the row and its adapter alone.
#include <torch/library.h>

#include <bit>
#include <vector>

#include "simd.h"
#include "work.h"

namespace blazr {
namespace {

constexpr int64_t kSlotFields = 2, kTermFields = 6;  // as in modelling/adapters/products.py
constexpr int kRows = 4;                             // of one adapter that are computed together
constexpr int kRanks = 4;                            // of A that are multiplied together

// Some rows of one slot, one behind the other.
struct Run {
  int64_t first, count;
};

template <typename T>
struct Term {
  const T* a;
  const T* b;
  int64_t rank, first_row, num_rows;
  float scale;

  explicit Term(const int64_t* fields)
      : a(reinterpret_cast<const T*>(fields[0])),
        b(reinterpret_cast<const T*>(fields[1])),
        rank(fields[2]),
        first_row(fields[3]),
        num_rows(fields[4]),
        scale(static_cast<float>(std::bit_cast<double>(fields[5]))) {}
};

// low[row][j] = scale · A_j x_row for kCount rows and kWidth of the ranks from `first` on.
template <int kCount, int kWidth, typename T>
void shrink(const Term<T>& term, const T* x, int64_t inputs, int64_t first, float* low) {
  vf sums[kCount][kWidth] = {};
  const T* a = term.a + first * inputs;
  const auto add = [&](auto&& read) {
    vf weights[kWidth];
    for (int j = 0; j < kWidth; ++j) weights[j] = read(a + j * inputs);
    for (int row = 0; row < kCount; ++row) {
      const vf values = read(x + row * inputs);
      for (int j = 0; j < kWidth; ++j) sums[row][j] += values * weights[j];
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= inputs; i += kLanes) add([&](const T* from) { return load(from + i); });
  if (i < inputs) add([&](const T* from) { return load_part(from + i, inputs - i); });
  for (int row = 0; row < kCount; ++row)
    for (int j = 0; j < kWidth; ++j) low[row * term.rank + first + j] = sum(sums[row][j]) * term.scale;
}

// y_row += Σ low[row][j] · B_j for kCount rows and kVectors vectors of outputs from i on.
template <int kCount, int kVectors, typename T, typename Out>
void expand_block(const Term<T>& term, const float* low, Out* y, int64_t outputs, int64_t i) {
  vf sums[kCount][kVectors];
  for (int row = 0; row < kCount; ++row)
    for (int v = 0; v < kVectors; ++v) sums[row][v] = load(y + row * outputs + i + v * kLanes);
  const T* b = term.b + i;
  for (int64_t j = 0; j < term.rank; ++j, b += term.num_rows) {
    vf weights[kVectors];
    for (int v = 0; v < kVectors; ++v) weights[v] = load(b + v * kLanes);
    for (int row = 0; row < kCount; ++row)
      for (int v = 0; v < kVectors; ++v) sums[row][v] += weights[v] * low[row * term.rank + j];
  }
  for (int row = 0; row < kCount; ++row)
    for (int v = 0; v < kVectors; ++v) store(y + row * outputs + i + v * kLanes, sums[row][v]);
}

// y_row += Σ low[row][j] · B_j for kCount rows.
template <int kCount, typename T, typename Out>
void expand(const Term<T>& term, const float* low, Out* out, int64_t outputs) {
  constexpr int kVectors = kCount <= 2 ? 4 : 2;  // as many sums as are computed while one is waited for
  Out* y = out + term.first_row;
  int64_t i = 0;
  for (; i + kVectors * kLanes <= term.num_rows; i += kVectors * kLanes)
    expand_block<kCount, kVectors>(term, low, y, outputs, i);
  for (; i + kLanes <= term.num_rows; i += kLanes) expand_block<kCount, 1>(term, low, y, outputs, i);
  if (i == term.num_rows) return;
  const int64_t left = term.num_rows - i;
  for (int row = 0; row < kCount; ++row) {
    vf total = load_part(y + row * outputs + i, left);
    for (int64_t j = 0; j < term.rank; ++j)
      total += load_part(term.b + j * term.num_rows + i, left) * low[row * term.rank + j];
    store_part(y + row * outputs + i, total, left);
  }
}

// y += gain · (y - bias) + offset.
template <typename T, typename Out>
void shift(const float* gain, const float* offset, const T* bias, Out* y, int64_t outputs) {
  for (int64_t i = 0; i < outputs; ++i) {
    float value = static_cast<float>(y[i]);
    if (gain) value += gain[i] * (value - (bias ? static_cast<float>(bias[i]) : 0.0f));
    if (offset) value += offset[i];
    y[i] = static_cast<Out>(value);
  }
}

template <typename T, typename Out>
void add_run(
    const int64_t* slot, int64_t num_terms, const T* x, int64_t inputs, const T* bias, Out* out, int64_t outputs,
    int64_t count) {
  const auto* gain = reinterpret_cast<const float*>(slot[0]);
  const auto* offset = reinterpret_cast<const float*>(slot[1]);
  if (gain || offset)
    for (int64_t row = 0; row < count; ++row) shift(gain, offset, bias, out + row * outputs, outputs);
  std::vector<float> low;
  for (int64_t number = 0; number < num_terms; ++number) {
    const Term<T> term(slot + kSlotFields + number * kTermFields);
    if (!term.rank) continue;
    low.resize(kRows * term.rank);
    with_constant<kRows>(count, [&](auto rows) {
      constexpr int kCount = decltype(rows)::value;
      int64_t first = 0;
      for (; first + kRanks <= term.rank; first += kRanks) shrink<kCount, kRanks>(term, x, inputs, first, low.data());
      for (; first < term.rank; ++first) shrink<kCount, 1>(term, x, inputs, first, low.data());
      expand<kCount>(term, low.data(), out, outputs);
    });
  }
}

std::vector<Run> runs_of(const int64_t* slots, int64_t count) {
  std::vector<Run> runs;
  for (int64_t row = 0; row < count;) {
    int64_t end = row + 1;
    while (end < count && end - row < kRows && slots[end] == slots[row]) ++end;
    if (slots[row]) runs.push_back({row, end - row});
    row = end;
  }
  return runs;
}

at::Tensor add_adapters(
    at::Tensor out, const at::Tensor& hidden, const at::Tensor& table, const at::Tensor& slots,
    const std::optional<at::Tensor>& bias, int64_t num_terms) {
  const int64_t rows = out.size(0), outputs = out.size(1), inputs = hidden.size(1), fields = table.size(1);
  TORCH_CHECK(out.is_contiguous() && table.is_contiguous(), "add_adapters: contiguous rows are needed");
  TORCH_CHECK(hidden.size(0) == rows && slots.numel() == rows, "add_adapters: as many slots as rows are needed");
  TORCH_CHECK(fields == kSlotFields + num_terms * kTermFields, "add_adapters: a table of another width");
  TORCH_CHECK(slots.scalar_type() == at::kLong && table.scalar_type() == at::kLong, "add_adapters: int64 is needed");
  const at::Tensor read = hidden.contiguous(), numbers = slots.contiguous();
  const int64_t *entries = table.const_data_ptr<int64_t>(), *slot_of = numbers.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows; ++row)
    TORCH_CHECK(slot_of[row] >= 0 && slot_of[row] < table.size(0), "add_adapters: there is no slot ", slot_of[row]);
  const std::vector<Run> runs = runs_of(slot_of, rows);
  dispatch(read.scalar_type(), "add_adapters", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* x = read.const_data_ptr<T>();
    at::Tensor shift_bias;
    if (bias.has_value()) shift_bias = bias->to(read.scalar_type()).contiguous();
    const T* offsets = bias.has_value() ? shift_bias.const_data_ptr<T>() : nullptr;
    dispatch(out.scalar_type(), "add_adapters", [&](auto* result) {
      using Out = std::remove_pointer_t<decltype(result)>;
      Out* to = out.data_ptr<Out>();
      share(static_cast<int64_t>(runs.size()), true, [&](int64_t number) {
        const Run run = runs[number];
        const int64_t* slot = entries + slot_of[run.first] * fields;
        add_run<T, Out>(
            slot, num_terms, x + run.first * inputs, inputs, offsets, to + run.first * outputs, outputs, run.count);
      });
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "add_adapters(Tensor(a!) out, Tensor hidden, Tensor table, Tensor slots, Tensor? bias, int num_terms) -> "
      "Tensor(a!)");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("add_adapters", add_adapters); }

}  // namespace blazr
