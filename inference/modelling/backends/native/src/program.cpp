// A recorded sequence of operator calls, run again without Python between them.
#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <set>
#include <string>

#include "thread_pool.h"

namespace blazr {
namespace {

constexpr int64_t kSmallMatrix = 1 << 18;  // elements, such as a router's

// Values live in registers. Those of constants are filled once; the others are filled by a run and emptied after
// their last use, so that a run holds no more memory than the calls themselves would.
class Program : public torch::CustomClassHolder {
 public:
  int64_t add_register() {
    constants_.emplace_back();
    return static_cast<int64_t>(constants_.size()) - 1;
  }

  int64_t add_constant(c10::IValue value) {
    constants_.push_back(std::move(value));
    return static_cast<int64_t>(constants_.size()) - 1;
  }

  // A call of an operator; every argument of its schema and every result has a register.
  void add_call(
      const std::string& name, const std::string& overload, std::vector<int64_t> arguments,
      std::vector<int64_t> results) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
    TORCH_CHECK(
        op.schema().arguments().size() == arguments.size() && op.schema().returns().size() == results.size(),
        "program: ", name, " takes another number of arguments or gives another number of results");
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::IValue& value = constants_.at(arguments[i]);
      const bool takes_tensor = op.schema().arguments()[i].type()->kind() == c10::TypeKind::TensorType;
      if (takes_tensor && value.isScalar()) arguments[i] = add_constant(as_tensor(value.toScalar()));
    }
    instructions_.push_back({Kind::kCall, op, std::move(arguments), std::move(results), {}});
  }

  // A list of tensors from registers, in a new register.
  int64_t add_list(std::vector<int64_t> elements) {
    const int64_t made = add_register();
    instructions_.push_back({Kind::kGather, std::nullopt, std::move(elements), {made}, {}});
    return made;
  }

  // The elements of a list of tensors, into registers.
  void add_unpacking(int64_t list, std::vector<int64_t> results) {
    instructions_.push_back({Kind::kUnpack, std::nullopt, {list}, std::move(results), {}});
  }

  // No more instructions: which registers a run is given, and which it gives back.
  void finish(std::vector<int64_t> inputs, std::vector<int64_t> outputs) {
    inputs_ = std::move(inputs);
    outputs_ = std::move(outputs);
    std::vector<bool> keep(constants_.size(), false);
    for (size_t i = 0; i < constants_.size(); ++i) keep[i] = is_constant(i);
    for (const int64_t output : outputs_) keep.at(output) = true;
    for (auto instruction = instructions_.rbegin(); instruction != instructions_.rend(); ++instruction) {
      for (const auto* registers : {&instruction->arguments, &instruction->results}) {
        for (const int64_t used : *registers) {
          if (keep.at(used)) continue;
          keep[used] = true;
          instruction->last_uses.push_back(used);
        }
      }
    }
    values_ = constants_;
    plan_weights();
    uses_pool_ = std::none_of(instructions_.begin(), instructions_.end(), [&](const Instruction& instruction) {
      return is_heavy(instruction);
    });
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) {
    TORCH_CHECK(inputs.size() == inputs_.size(), "program: ", inputs.size(), " inputs instead of ", inputs_.size());
    for (size_t i = 0; i < inputs.size(); ++i) values_[inputs_[i]] = inputs[i];
    try {
      if (uses_pool_)
        ThreadPool::run([&] { execute_all(); });
      else
        execute_all();
    } catch (...) {
      values_ = constants_;  // nothing half done is kept
      throw;
    }
    std::vector<at::Tensor> results;
    for (const int64_t output : outputs_) results.push_back(values_[output].toTensor());
    for (const auto* registers : {&inputs_, &outputs_}) {
      for (const int64_t done : *registers) {
        if (!is_constant(done)) values_[done] = c10::IValue();
      }
    }
    return results;
  }

  int64_t num_calls() const { return static_cast<int64_t>(instructions_.size()); }

 private:
  enum class Kind { kCall, kGather, kUnpack };

  struct Instruction {
    Kind kind;
    std::optional<c10::OperatorHandle> op;
    std::vector<int64_t> arguments;
    std::vector<int64_t> results;
    std::vector<int64_t> last_uses;
    int64_t upcoming = -1;  // of the weights that later instructions read first
  };

  // A number where the schema says tensor, as "x * 2.0" passes it: it doesn't change the other's dtype.
  static at::Tensor as_tensor(const at::Scalar& number) {
    at::Tensor made = at::scalar_to_tensor(number);
    made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
  }

  // None is a constant too, but emptying a register that holds it changes nothing.
  bool is_constant(size_t number) const { return !constants_[number].isNone(); }

  // What each instruction's helpers may fetch: the weights of the next product behind it.
  void plan_weights() {
    int64_t next = -1;
    for (auto instruction = instructions_.rbegin(); instruction != instructions_.rend(); ++instruction) {
      instruction->upcoming = next;
      if (!instruction->op || instruction->op->operator_name().name != "blazr::packed_linear") continue;
      const c10::IValue& weights = constants_[instruction->arguments[1]];
      if (!weights.isTensor() || weights.toTensor().dim() != 2) continue;
      const at::Tensor& data = weights.toTensor();  // (blocks, bytes)
      upcoming_.push_back({data.const_data_ptr<uint8_t>(), data.size(0), data.size(1)});
      next = static_cast<int64_t>(upcoming_.size()) - 1;
    }
  }

  // Whether another library computes for long: within the pool it would have one thread.
  bool is_heavy(const Instruction& instruction) const {
    if (!instruction.op) return false;
    const std::string& name = instruction.op->operator_name().name;
    if (name.starts_with("blazr::")) return false;
    if (!name.starts_with("aten::")) return true;
    static const std::set<std::string> products = {"aten::linear", "aten::mm",      "aten::addmm",
                                                   "aten::bmm",    "aten::baddbmm", "aten::matmul"};
    if (!products.contains(name)) return false;
    return std::any_of(instruction.arguments.begin(), instruction.arguments.end(), [&](int64_t argument) {
      return constants_[argument].isTensor() && constants_[argument].toTensor().numel() > kSmallMatrix;
    });
  }

  void execute_all() {
    ThreadPool* pool = ThreadPool::current();
    for (const Instruction& instruction : instructions_) {
      if (pool) pool->prefetch(instruction.upcoming < 0 ? nullptr : &upcoming_[instruction.upcoming]);
      execute(instruction);
      for (const int64_t done : instruction.last_uses) values_[done] = c10::IValue();
    }
  }

  void execute(const Instruction& instruction) {
    if (instruction.kind == Kind::kGather) {
      c10::List<at::Tensor> list;
      for (const int64_t element : instruction.arguments) list.push_back(values_[element].toTensor());
      values_[instruction.results[0]] = std::move(list);
      return;
    }
    if (instruction.kind == Kind::kUnpack) {
      const auto list = values_[instruction.arguments[0]].toTensorList();
      TORCH_CHECK(list.size() == instruction.results.size(), "program: a list of another length");
      for (size_t i = 0; i < list.size(); ++i) values_[instruction.results[i]] = list.get(i);
      return;
    }
    stack_.clear();
    for (const int64_t argument : instruction.arguments) stack_.push_back(values_[argument]);
    instruction.op->callBoxed(stack_);
    for (size_t i = 0; i < instruction.results.size(); ++i) values_[instruction.results[i]] = std::move(stack_[i]);
  }

  std::vector<c10::IValue> constants_;
  std::vector<Instruction> instructions_;
  std::vector<int64_t> inputs_;
  std::vector<int64_t> outputs_;
  std::vector<c10::IValue> values_;
  std::vector<Upcoming> upcoming_;
  bool uses_pool_ = false;
  torch::jit::Stack stack_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(blazr, library) {
  library.class_<Program>("Program")
      .def(torch::init<>())
      .def("add_register", &Program::add_register)
      .def("add_constant", &Program::add_constant)
      .def("add_call", &Program::add_call)
      .def("add_list", &Program::add_list)
      .def("add_unpacking", &Program::add_unpacking)
      .def("finish", &Program::finish)
      .def("run", &Program::run)
      .def("num_calls", &Program::num_calls);
}

}  // namespace blazr
