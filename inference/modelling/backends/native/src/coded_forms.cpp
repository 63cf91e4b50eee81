// Forms of codes: their numbers, and codes that a file holds into the layout of gemm_layout.h, as they are.
#include <ATen/core/List.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

#include "gemm.h"

namespace blazr {
namespace {

constexpr int64_t kFirstForm = kFloat + 1;
constexpr int64_t kMostForms = 256;

CodedForm make_form(
    int64_t bits, const int32_t* levels, int32_t zero, bool has_offsets, bool has_halves, bool is_float = false,
    bool has_factors = false) {
  CodedForm form{};
  form.bits = bits;
  form.zero = bits <= 4 ? 128 : zero;
  form.has_offsets = has_offsets;
  form.has_halves = has_halves;
  form.is_float = is_float;
  form.has_factors = has_factors;
  if (bits <= 4)
    for (int i = 0; i < 64; ++i) form.levels[i] = static_cast<uint8_t>(levels[i % (1 << bits)] + 128);
  return form;
}

// A form once made stays where it is.
struct Forms {
  std::array<CodedForm, kMostForms> made;
  std::atomic<int64_t> count{kFirstForm};
  std::mutex adding;

  Forms() {
    made[kInt8] = make_form(8, nullptr, 128, false, false);
    made[kInt4] = make_form(4, kLevels, 0, false, false);
  }
};

Forms& forms() {
  static Forms all;
  return all;
}

int64_t add_form(
    int64_t bits, at::IntArrayRef levels, int64_t zero, bool has_offsets, bool has_halves, bool is_float,
    bool has_factors) {
  TORCH_CHECK((bits >= 2 && bits <= 6) || bits == 8, "add_form: codes of ", bits, " bits");
  TORCH_CHECK(bits > 4 || std::ssize(levels) == 1 << bits, "add_form: a level for each code is needed");
  TORCH_CHECK(zero >= 0 && zero <= 255, "add_form: a zero of ", zero);
  TORCH_CHECK(!is_float || (bits == 8 && !has_offsets), "add_form: floats have 8 bits and no offsets");
  TORCH_CHECK(!has_factors || (has_halves && !is_float), "add_form: factors are float16, of codes");
  int32_t table[16] = {};
  for (int64_t i = 0; bits <= 4 && i < std::ssize(levels); ++i) {
    TORCH_CHECK(levels[i] >= -128 && levels[i] <= 127, "add_form: a level of ", levels[i]);
    table[i] = static_cast<int32_t>(levels[i]);
  }
  const CodedForm form =
      make_form(bits, table, static_cast<int32_t>(zero), has_offsets, has_halves, is_float, has_factors);
  Forms& all = forms();
  const std::lock_guard lock(all.adding);
  const int64_t count = all.count.load();
  for (int64_t number = kFirstForm; number < count; ++number)
    if (all.made[number] == form) return number;
  TORCH_CHECK(count < kMostForms, "add_form: more than ", kMostForms, " forms");
  all.made[count] = form;
  all.count.store(count + 1);
  return count;
}

// The two fields of the codes of a chunk, a vector of outputs of it, into their lines.
template <class F>
void store_chunk(const vu* steps, uint8_t* to) {
  const auto store_fields = [&](uint8_t* lines, int width, int shift) {
    const int per_byte = 8 / width;
    const uint32_t mask = 0x01010101u * ((1u << width) - 1);
    for (int first = 0; first < F::kSteps; first += per_byte, lines += kLineBytes) {
      vu line = {};
      for (int i = 0; i < per_byte; ++i) line |= ((steps[first + i] >> shift) & mask) << (i * width);
      std::memcpy(lines, &line, sizeof line);
    }
  };
  store_fields(to, F::kLower, 0);
  if constexpr (F::kUpper > 0) store_fields(to + F::kLowerLines * kLineBytes, F::kUpper, F::kLower);
}

// One block from `count` rows of codes.
template <class F>
void pack_block(const uint8_t* codes, int64_t count, const Matrix& w, uint8_t* block) {
  constexpr int64_t kInputs = kLanes * 4;  // whole chunks
  for (int64_t first = 0; first < padded_inputs<F>(w.inputs); first += kInputs) {
    const int64_t here = std::min(kInputs, w.inputs - first);
    for (int64_t vector = 0; vector < kVectors; ++vector) {
      vu steps[kLanes] = {};
      for (int64_t lane = 0; lane < std::min<int64_t>(kLanes, count - vector * kLanes); ++lane)
        std::memcpy(&steps[lane], codes + (vector * kLanes + lane) * w.inputs + first, here);
      transpose(steps);
      if constexpr (kExpands<F>) {
        uint8_t* to = block + first * kBlock + vector * kLanes * 2;
        for (int64_t input = 0; input < here; input += 2, to += 2 * kBlock) {
          const vh pairs = __builtin_convertvector(steps[input / 4] >> (input % 4 * 8), vh);
          std::memcpy(to, &pairs, sizeof pairs);
        }
      } else {
        uint8_t* to = block + first / F::kAlign * F::kLines * kLineBytes + vector * kLanes * 4;
        for (int64_t step = 0; step < padded_inputs<F>(here) / 4; step += F::kSteps, to += F::kLines * kLineBytes)
          store_chunk<F>(steps + step, to);
      }
    }
  }
}

// Scales, or offsets, of the rows of a block: (rows, groups) to [groups][32] of the block's lines.
template <typename T>
void pack_scales(const T* from, int64_t count, int64_t groups, int64_t line, T* to) {
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t lane = 0; lane < kBlock; ++lane)
      to[group * line + lane] = lane < count ? from[lane * groups + group] : 0;
}

// Codes of rows, a byte each, to their place from row `first` on, which begins a block. On the caller's thread alone.
void pack_codes(
    const at::Tensor& codes, const at::Tensor& scales, const std::optional<at::Tensor>& offsets,
    const std::optional<at::Tensor>& factors, const at::Tensor& data, const at::Tensor& packed_scales, int64_t first,
    int64_t format, int64_t group) {
  TORCH_CHECK(
      codes.dim() == 2 && codes.is_contiguous() && codes.numel() > 0 && codes.scalar_type() == at::kByte,
      "pack_codes: contiguous rows of bytes are needed");
  const Matrix w = matrix_layout(format, codes.size(0), codes.size(1), group);
  TORCH_CHECK(w.form, "pack_codes: format ", format, " has no codes");
  const int64_t line = w.form->scale_line(), groups = w.groups(), begin = first / kBlock;
  const int64_t row_factors = ceil_div(w.inputs, kFactorInputs) * line / kBlock;
  const at::ScalarType stored = packed_scales.scalar_type(), type = w.form->has_factors ? at::kChar : stored;
  const auto fits = [&](const at::Tensor& values) {
    return values.is_contiguous() && values.scalar_type() == type && values.numel() == w.outputs * groups;
  };
  TORCH_CHECK(
      stored == (w.form->has_halves ? at::kHalf : at::kBFloat16) && fits(scales) &&
          offsets.has_value() == w.form->has_offsets && (!offsets.has_value() || fits(*offsets)),
      "pack_codes: the scales don't fit");
  TORCH_CHECK(
      factors.has_value() == w.form->has_factors &&
          (!factors.has_value() || (factors->is_contiguous() && factors->scalar_type() == at::kHalf &&
                                    factors->numel() == w.outputs * row_factors)),
      "pack_codes: the factors don't fit");
  TORCH_CHECK(
      first >= 0 && first % kBlock == 0 && data.is_contiguous() && packed_scales.is_contiguous() &&
          data.scalar_type() == at::kByte && (begin + w.blocks()) * w.block_bytes <= data.numel() &&
          (begin + w.blocks()) * w.block_scales() <= packed_scales.numel(),
      "pack_codes: rows from ", first, " on have no place");
  const auto pack = [&](int64_t row, int64_t count, auto* to) {
    using T = std::remove_pointer_t<decltype(to)>;
    pack_scales(static_cast<const T*>(scales.const_data_ptr()) + row * groups, count, groups, line, to);
    if (offsets)
      pack_scales(static_cast<const T*>(offsets->const_data_ptr()) + row * groups, count, groups, line, to + kBlock);
  };
  for (int64_t block = 0; block < w.blocks(); ++block) {
    const int64_t row = block * kBlock, count = std::min(kBlock, w.outputs - row);
    auto* to = static_cast<uint16_t*>(packed_scales.data_ptr()) + (begin + block) * w.block_scales();
    if (factors) {
      pack(row, count, reinterpret_cast<int8_t*>(to));
      const auto* from = static_cast<const uint16_t*>(factors->const_data_ptr()) + row * row_factors;
      pack_scales(from, count, row_factors, kBlock, to + w.byte_lines() * line);
    } else {
      pack(row, count, to);
    }
    with_format(format, [&](auto f) {
      using F = decltype(f);
      uint8_t* place = data.data_ptr<uint8_t>() + (begin + block) * w.block_bytes;
      if constexpr (F::kGrouped || kExpands<F>)
        pack_block<F>(codes.const_data_ptr<uint8_t>() + row * w.inputs, count, w, place);
    });
  }
}

}  // namespace

const CodedForm& coded_form(int64_t format) {
  const Forms& all = forms();
  TORCH_CHECK(
      format >= 0 && format < all.count.load(std::memory_order_acquire) && all.made[format].bits > 0,
      "packed weights: format ", format, " is unknown");
  return all.made[format];
}

Matrix matrix_layout(int64_t format, int64_t outputs, int64_t inputs, int64_t group) {
  TORCH_CHECK(outputs > 0 && inputs > 0, "packed weights: no outputs or inputs");
  Matrix w{nullptr, nullptr, outputs, inputs, kPlainUnit, 0, nullptr, 1};
  with_format(format, [&](auto f) {
    using F = decltype(f);
    w.block_bytes = block_bytes_of<F>(inputs);
    if constexpr (F::kGrouped || kExpands<F>) {
      w.form = &coded_form(format);
      TORCH_CHECK(
          group > 0 && group % kLeastUnit == 0 && (!w.form->has_factors || kFactorInputs % group == 0),
          "packed weights: a group of ", group);
      // The activations of a unit share a scale: as many as keep their precision.
      w.unit = F::kMostUnit;
      while (group % w.unit) w.unit /= 2;
      w.units_per_scale = group / w.unit;
    }
  });
  return w;
}

}  // namespace blazr

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "add_form(int bits, int[] levels, int zero, bool has_offsets, bool has_halves, bool is_float=False, "
      "bool has_factors=False) -> int",
      blazr::add_form);
  library.def(
      "pack_codes(Tensor codes, Tensor scales, Tensor? offsets, Tensor? factors, Tensor(a!) data, "
      "Tensor(b!) packed_scales, int first, int format, int group) -> ()");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) { library.impl("pack_codes", blazr::pack_codes); }
