// Routed experts over a step's rows, each expert's weights read once, and the router's choice.
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <vector>

#include "activation.h"
#include "arguments.h"
#include "gemm.h"

namespace blazr {
namespace {

// The matrices of all experts, one behind the other.
struct Stack {
  Matrix first;
  int64_t experts;

  Matrix of(int64_t expert) const {
    Matrix w = first;
    w.data += expert * w.blocks() * w.block_bytes;
    if (w.scales) w.scales += expert * w.blocks() * w.block_scales();
    return w;
  }
};

Stack stack_of(
    const at::Tensor& data, const std::optional<at::Tensor>& scales, int64_t format, int64_t experts, int64_t outputs,
    int64_t inputs, int64_t group) {
  TORCH_CHECK(
      experts > 0 && data.dim() == 3 && data.size(0) == experts && data.is_contiguous(), "expert_mix: a stack of ",
      experts, " matrices is needed");
  const bool scaled = scales.has_value() && scales->numel() > 0;
  TORCH_CHECK(!scaled || (scales->size(0) == experts && scales->is_contiguous()), "expert_mix: the scales don't fit");
  std::optional<at::Tensor> of_first;
  if (scaled) of_first = scales->select(0, 0);
  return {packed_matrix(data.select(0, 0), of_first, format, outputs, inputs, group), experts};
}

// The rows of one expert: entries of (row, choice) pairs, in order.
struct Share {
  int64_t expert, begin, count;
};

struct PanelTask {
  int64_t share, panel;
};

struct ProductTask {
  int64_t share, panel_begin, panel_end, block_begin, block_end;
};

struct Work {
  std::vector<Share> shares;
  std::vector<int64_t> entries;  // flat (row, choice) numbers, expert by expert
};

Work divide(const int64_t* chosen, int64_t count, int64_t experts) {
  std::vector<int64_t> starts(experts + 1, 0);
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK(chosen[i] >= 0 && chosen[i] < experts, "expert_mix: expert ", chosen[i], " of ", experts);
    ++starts[chosen[i] + 1];
  }
  for (int64_t expert = 0; expert < experts; ++expert) starts[expert + 1] += starts[expert];
  Work work;
  work.entries.resize(count);
  for (int64_t expert = 0; expert < experts; ++expert)
    if (starts[expert + 1] > starts[expert])
      work.shares.push_back({expert, starts[expert], starts[expert + 1] - starts[expert]});
  for (int64_t i = 0; i < count; ++i) work.entries[starts[chosen[i]]++] = i;
  return work;
}

// One of the two products of all experts: rows in, float32 sums out, each at the place of its entry.
template <class F>
class GroupedProduct {
 public:
  GroupedProduct(const Stack& stack, const Work& work) : stack_(stack), work_(work) {
    const Matrix& w = stack.first;
    int64_t bytes = 0, blocks = 0;
    for (const Share& share : work.shares) {
      panels_.push_back(panels_for<F>(w, share.count));
      bytes += panels_.back().bytes();
      blocks += w.blocks() * ceil_div(panels_.back().count, panels_at_once(panels_.back()));
    }
    memory_ = at::empty({bytes}, at::kByte);
    uint8_t* place = memory_.data_ptr<uint8_t>();
    const int64_t blocks_each =
        std::min(kBlocksAtOnce, std::max<int64_t>(1, ceil_div(blocks, 8 * at::get_num_threads())));
    for (int64_t i = 0; i < static_cast<int64_t>(panels_.size()); ++i) {
      Panels& panels = panels_[i];
      panels.place(place);
      place += panels.bytes();
      for (int64_t panel = 0; panel < panels.count; ++panel) fills_.push_back({i, panel});
      const int64_t most = panels_at_once(panels);
      for (int64_t panel = 0; panel < panels.count; panel += most)
        for (int64_t block = 0; block < w.blocks(); block += blocks_each)
          products_.push_back(
              {i, panel, std::min(panel + most, panels.count), block, std::min(block + blocks_each, w.blocks())});
    }
  }

  // row_of(entry) is the row that goes in for an entry.
  template <typename RowOf>
  void fill(bool parallel, RowOf&& row_of) {
    share(fills_.size(), parallel, [&](int64_t task) {
      const auto [number, panel] = fills_[task];
      const Panels& panels = panels_[number];
      const int64_t first = work_.shares[number].begin + panels.start(panel);
      decltype(row_of(0)) rows[kMostRows];
      for (int column = 0; column < panels.size(panel); ++column) rows[column] = row_of(work_.entries[first + column]);
      fill_panel<F>(rows, stack_.first, panels, panel);
    });
  }

  // out: (entries, stride) float32.
  void multiply_into(bool parallel, float* out, int64_t stride) {
    // Of each thread's own tasks the next one follows: what it reads can be asked for.
    share_runs(products_.size(), 1, parallel, [&](int64_t task, int64_t) {
      const ProductTask& t = products_[task];
      const Panels& panels = panels_[t.share];
      const Share& part = work_.shares[t.share];
      const Matrix w = stack_.of(part.expert);
      const int64_t first = panels.start(t.panel_begin), count = panels.start(t.panel_end) - first;
      float* sums = thread_buffer(count * (t.block_end - t.block_begin) * kBlock);
      const uint8_t* end = w.data + t.block_end * w.block_bytes;
      const ReadOn on{end, task + 1 < std::ssize(products_) ? beginning_of(products_[task + 1]) : end};
      multiply<F>(w, panels, t.panel_begin, t.panel_end, t.block_begin, t.block_end, on, sums);
      for (int64_t row = 0; row < count; ++row) {
        float* to = out + work_.entries[part.begin + first + row] * stride;
        for (int64_t block = t.block_begin; block < t.block_end; ++block)
          std::memcpy(
              to + block * kBlock, sums + ((block - t.block_begin) * count + row) * kBlock,
              std::min(kBlock, w.outputs - block * kBlock) * sizeof(float));
      }
    });
  }

 private:
  const uint8_t* beginning_of(const ProductTask& task) const {
    const Matrix w = stack_.of(work_.shares[task.share].expert);
    return w.data + task.block_begin * w.block_bytes;
  }

  const Stack& stack_;
  const Work& work_;
  std::vector<Panels> panels_;
  std::vector<PanelTask> fills_;
  std::vector<ProductTask> products_;
  at::Tensor memory_;
};

constexpr int64_t kParallelWork = 1 << 15;  // values, below which one thread is faster

// (f) of one entry: act(gate) · up, or act(up).
template <typename T>
void activate_row(const float* from, T* to, int64_t width, bool gated, int64_t kind) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    const vf gate = left >= kLanes ? load(from + i) : load_part(from + i, left);
    vf value = activation(gate, kind);
    if (gated) value *= left >= kLanes ? load(from + width + i) : load_part(from + width + i, left);
    if (left >= kLanes)
      store(to + i, value);
    else
      store_part(to + i, value, left);
  }
}

// The experts' products with their rows, float32 sums (entries, stride); row_of(entry) makes a row.
template <typename T, typename RowOf>
void multiply_stack(
    const Stack& stack, int64_t format, const Work& work, bool parallel, RowOf&& row_of, float* sums, int64_t stride) {
  with_format_for<T>(format, "expert_mix", [&](auto f) {
    GroupedProduct<decltype(f)> product(stack, work);
    product.fill(parallel, row_of);
    product.multiply_into(true, sums, stride);
  });
}

template <typename T>
void mix(
    const T* x, int64_t rows, const float* weights, int64_t top_k, const Work& work, const Stack& up, int64_t up_format,
    const Stack& down, int64_t down_format, bool gated, int64_t kind, T* out) {
  const int64_t hidden = up.first.inputs, entries = rows * top_k, width = down.first.inputs, joint = up.first.outputs;
  const bool parallel = entries * hidden > kParallelWork;
  at::Tensor sums = at::empty({entries * std::max(joint, hidden)}, at::kFloat);
  at::Tensor inner = at::empty({entries * width}, c10::CppTypeToScalarType<T>::value);
  float* sum = sums.data_ptr<float>();
  T* activated = inner.data_ptr<T>();
  const auto outer_row = [&](int64_t entry) { return x + entry / top_k * hidden; };
  multiply_stack<T>(up, up_format, work, parallel, outer_row, sum, joint);
  const auto inner_row = [&](int64_t entry) -> const T* {
    activate_row(sum + entry * joint, activated + entry * width, width, gated, kind);
    return activated + entry * width;
  };
  multiply_stack<T>(down, down_format, work, parallel, inner_row, sum, hidden);
  parallel_for(0, rows, std::max<int64_t>(1, kParallelWork / (top_k * hidden)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float *parts = sum + row * top_k * hidden, *weight = weights + row * top_k;
      for (int64_t i = 0; i < hidden; i += kLanes) {
        const int64_t left = hidden - i;
        vf total = splat(0);
        for (int64_t choice = 0; choice < top_k; ++choice) {
          const float* from = parts + choice * hidden + i;
          total += (left >= kLanes ? load(from) : load_part(from, left)) * weight[choice];
        }
        if (left >= kLanes)
          store(out + row * hidden + i, total);
        else
          store_part(out + row * hidden + i, total, left);
      }
    }
  });
}

struct ExpertArguments {
  at::Tensor input;            // (T, D)
  at::Tensor weights, chosen;  // (T, top_k): float32 and int64
  at::Tensor up_data;          // the experts' matrices, packed (gemm_layout.h)
  std::optional<at::Tensor> up_scales;
  int64_t up_format, up_group;
  at::Tensor down_data;
  std::optional<at::Tensor> down_scales;
  int64_t down_format, down_group;
  int64_t experts, width;  // their number, and the values between the two products
  bool gated;
  int64_t activation;
};

at::Tensor expert_mix(const ExpertArguments& in) {
  TORCH_CHECK(
      in.input.dim() == 2 && in.chosen.dim() == 2 && in.weights.sizes() == in.chosen.sizes(),
      "expert_mix: wrong shapes");
  TORCH_CHECK(in.chosen.size(0) == in.input.size(0), "expert_mix: a choice for each row is needed");
  TORCH_CHECK(
      in.weights.scalar_type() == at::kFloat && in.chosen.scalar_type() == at::kLong,
      "expert_mix: float32 weights and int64 experts are needed");
  const at::Tensor x = in.input.contiguous(), share_of = in.weights.contiguous(), numbers = in.chosen.contiguous();
  const int64_t rows = x.size(0), hidden = x.size(1), top_k = numbers.size(1);
  const Stack up = stack_of(
      in.up_data, in.up_scales, in.up_format, in.experts, in.gated ? 2 * in.width : in.width, hidden, in.up_group);
  const Stack down =
      stack_of(in.down_data, in.down_scales, in.down_format, in.experts, hidden, in.width, in.down_group);
  at::Tensor out = at::empty_like(x);
  const Work work = divide(numbers.const_data_ptr<int64_t>(), numbers.numel(), in.experts);
  if (rows == 0) return out;
  dispatch(x.scalar_type(), "expert_mix", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    mix<T>(
        x.const_data_ptr<T>(), rows, share_of.const_data_ptr<float>(), top_k, work, up, in.up_format, down,
        in.down_format, in.gated, in.activation, out.data_ptr<T>());
  });
  return out;
}

// --- the router's choice -----------------------------------------------------------------------------------------

struct Rules {
  int64_t top_k, groups, top_groups;
  bool is_softmax, normalise, sum_of_two;
  float eps, factor;
};

// Numbers of the `count` greatest of `size` values, best first, of equal ones the first; `taken` is scratch.
void best_of(const float* values, int64_t size, int64_t count, int64_t* found, std::vector<char>& taken) {
  taken.assign(size, 0);
  for (int64_t place = 0; place < count; ++place) {
    int64_t best = -1;
    for (int64_t i = 0; i < size; ++i)
      if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
    taken[best] = 1;
    found[place] = best;
  }
}

void choose_row(
    const float* logits, const float* bias, int64_t experts, const Rules& rules, float* weights, int64_t* chosen) {
  thread_local std::vector<float> scores, ranking, group_scores;
  thread_local std::vector<int64_t> kept;
  thread_local std::vector<char> taken;
  const int64_t padded = ceil_div(experts, kLanes) * kLanes;
  scores.assign(padded, 0.0f);
  float greatest = 0.0f;
  if (rules.is_softmax) greatest = *std::max_element(logits, logits + experts);
  for (int64_t i = 0; i < experts; i += kLanes) {
    const int64_t left = std::min<int64_t>(kLanes, experts - i);
    const vf values = left == kLanes ? load(logits + i) : load_part(logits + i, left);
    store(scores.data() + i, rules.is_softmax ? exp(values - greatest) : sigmoid(values));
  }
  if (rules.is_softmax) {
    float total = 0.0f;
    for (int64_t i = 0; i < experts; ++i) total += scores[i];
    for (int64_t i = 0; i < experts; ++i) scores[i] /= total;
  }
  ranking.assign(scores.begin(), scores.begin() + experts);
  if (bias)
    for (int64_t i = 0; i < experts; ++i) ranking[i] += bias[i];
  if (rules.groups > 1) {
    const int64_t size = experts / rules.groups;
    group_scores.resize(rules.groups);
    for (int64_t group = 0; group < rules.groups; ++group) {
      float first = -INFINITY, second = -INFINITY;
      for (int64_t i = group * size; i < (group + 1) * size; ++i) {
        if (ranking[i] > first) {
          second = first;
          first = ranking[i];
        } else if (ranking[i] > second) {
          second = ranking[i];
        }
      }
      group_scores[group] = rules.sum_of_two ? first + second : first;
    }
    kept.resize(rules.top_groups);
    best_of(group_scores.data(), rules.groups, rules.top_groups, kept.data(), taken);
    for (int64_t group = 0; group < rules.groups; ++group)
      if (std::find(kept.begin(), kept.end(), group) == kept.end())
        std::fill(ranking.begin() + group * size, ranking.begin() + (group + 1) * size, -INFINITY);
  }
  best_of(ranking.data(), experts, rules.top_k, chosen, taken);
  float total = 0.0f;
  for (int64_t i = 0; i < rules.top_k; ++i) total += weights[i] = scores[chosen[i]];
  for (int64_t i = 0; i < rules.top_k; ++i)
    weights[i] = (rules.normalise ? weights[i] / (total + rules.eps) : weights[i]) * rules.factor;
}

std::tuple<at::Tensor, at::Tensor> choose_experts(
    const at::Tensor& logits, const std::optional<at::Tensor>& bias, int64_t top_k, bool is_softmax, bool normalise,
    double eps, double factor, int64_t groups, int64_t top_groups, bool sum_of_two) {
  TORCH_CHECK(logits.dim() == 2 && logits.scalar_type() == at::kFloat, "choose_experts: float32 (T, E) is needed");
  const at::Tensor values = logits.contiguous();
  const int64_t rows = values.size(0), experts = values.size(1);
  TORCH_CHECK(
      groups > 0 && experts % groups == 0 && top_groups > 0 && top_groups <= groups && top_k > 0 &&
          top_k <= (groups > 1 ? top_groups * (experts / groups) : experts),
      "choose_experts: ", top_k, " of ", experts, " experts in ", groups, " groups");
  TORCH_CHECK(!sum_of_two || groups == 1 || experts / groups >= 2, "choose_experts: groups of one have no two best");
  if (bias.has_value())
    TORCH_CHECK(
        bias->numel() == experts && bias->scalar_type() == at::kFloat && bias->is_contiguous(),
        "choose_experts: the correction bias doesn't fit");
  const Rules rules{top_k,
                    groups,
                    top_groups,
                    is_softmax,
                    normalise,
                    sum_of_two,
                    static_cast<float>(eps),
                    static_cast<float>(factor)};
  at::Tensor weights = at::empty({rows, top_k}, values.options());
  at::Tensor chosen = at::empty({rows, top_k}, values.options().dtype(at::kLong));
  const float* from = values.const_data_ptr<float>();
  const float* correction = bias.has_value() ? bias->const_data_ptr<float>() : nullptr;
  float* to = weights.data_ptr<float>();
  int64_t* numbers = chosen.data_ptr<int64_t>();
  parallel_for(0, rows, std::max<int64_t>(1, 16384 / (experts * top_k)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      choose_row(from + row * experts, correction, experts, rules, to + row * top_k, numbers + row * top_k);
  });
  return {weights, chosen};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.def(
      "expert_mix(Tensor x, Tensor weights, Tensor chosen, Tensor up, Tensor? up_scales, int up_format, int up_group, "
      "Tensor down, Tensor? down_scales, int down_format, int down_group, int experts, int width, bool gated, "
      "int activation) -> Tensor");
  library.def(
      "choose_experts(Tensor logits, Tensor? bias, int top_k, bool is_softmax, bool normalise, float eps, float "
      "factor, "
      "int groups, int top_groups, bool sum_of_two) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(blazr, CPU, library) {
  library.impl("expert_mix", with_arguments<expert_mix>());
  library.impl("choose_experts", choose_experts);
}

}  // namespace blazr
