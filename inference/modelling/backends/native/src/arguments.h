// Operators with many arguments: the kernel takes one struct, whose fields are the arguments in the schema's order.
#pragma once

#include <torch/library.h>

#include <optional>
#include <tuple>
#include <utility>

namespace blazr {

// One argument on the operator's stack. It converts to the type of the field that it initialises.
class Argument {
 public:
  explicit Argument(c10::IValue& value) : value_(value) {}
  operator at::Tensor() && { return std::move(value_).toTensor(); }
  operator std::optional<at::Tensor>() && { return std::move(value_).toOptional<at::Tensor>(); }
  operator int64_t() && { return value_.toInt(); }
  operator double() && { return value_.toDouble(); }
  operator bool() && { return value_.toBool(); }

 private:
  c10::IValue& value_;
};

template <typename Arguments, size_t... kIndex>
constexpr bool has_fields(std::index_sequence<kIndex...>) {
  return requires(Argument (*argument)(size_t)) { Arguments{argument(kIndex)...}; };
}

// The number of fields of an aggregate.
template <typename Arguments, size_t kCount = 24>
constexpr size_t num_fields() {
  static_assert(kCount > 0);
  if constexpr (has_fields<Arguments>(std::make_index_sequence<kCount>{}))
    return kCount;
  else
    return num_fields<Arguments, kCount - 1>();
}

template <auto kKernel>
struct BoxedKernel;

template <typename Result, typename Arguments, Result (*kKernel)(const Arguments&)>
struct BoxedKernel<kKernel> {
  static void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    constexpr size_t kCount = num_fields<Arguments>();
    TORCH_INTERNAL_ASSERT(
        op.schema().arguments().size() == kCount, op.schema().name(), ": the struct differs from the schema");
    Result result = call_kernel(stack->data() + stack->size() - kCount, std::make_index_sequence<kCount>{});
    torch::jit::drop(*stack, kCount);
    push(*stack, std::move(result));
  }

 private:
  template <size_t... kIndex>
  static Result call_kernel(c10::IValue* values, std::index_sequence<kIndex...>) {
    return kKernel(Arguments{Argument(values[kIndex])...});
  }

  static void push(torch::jit::Stack& stack, at::Tensor result) { stack.emplace_back(std::move(result)); }

  template <typename... Results>
  static void push(torch::jit::Stack& stack, std::tuple<Results...> results) {
    std::apply([&stack](auto&&... result) { (stack.emplace_back(std::move(result)), ...); }, std::move(results));
  }
};

// For `library.impl`: a kernel `Result kernel(const Arguments&)`.
template <auto kKernel>
torch::CppFunction with_arguments() {
  return torch::CppFunction::makeFromBoxedFunction<&BoxedKernel<kKernel>::call>();
}

}  // namespace blazr
