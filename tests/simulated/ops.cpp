// An accelerator that is not there: each stream is a thread, and its kernels are late.
//
// PyTorch's place for a kind of device that a CPU build leaves to others (MTIA) gets memory, streams, events and ops. Memory is the
// host's. An op finds out by meta tensors what it gives, takes memory for that from its stream's pool, and is put into its stream's
// queue; a thread works it off with the CPU's kernels, after a pause of random length. As on CUDA, nothing holds the tensors that a
// queued op reads, memory that is freed may be taken again at once by the stream that had it first, and only events order streams. So
// a wait that is missing, a free that is too early or an op on the wrong stream gives wrong numbers.

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <chrono>
#include <random>

#include "device.h"

namespace simulated {

using at::Tensor;
using c10::Device;
using c10::IValue;
using torch::jit::Stack;

REGISTER_ALLOCATOR(KIND, &memory);
C10_REGISTER_GUARD_IMPL(MTIA, Guard);

std::atomic<int> slowest{200};  // microseconds: the longest pause before an op
std::atomic<int64_t> launched{0}, at_once{0};

bool simulated(const Tensor& each) { return each.defined() && each.device().type() == KIND; }

Tensor as_meta(const Tensor& each) {
  if (!simulated(each)) return each;
  return at::empty_strided(each.sizes(), each.strides(), each.options().device(c10::kMeta));
}

Tensor on_host(const Tensor& each) {  // the same memory, which is not kept alive
  if (!simulated(each)) return each;
  auto options = at::TensorOptions().dtype(each.dtype()).device(c10::kCPU);
  return at::from_blob(each.data_ptr(), each.sizes(), each.strides(), [](void*) {}, options);
}

template <class Change>
IValue changed(const IValue& value, Change change, Device device) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue(change(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<Tensor> all;
    for (const Tensor& each : value.toTensorVector()) all.push_back(each.defined() ? change(each) : each);
    return all;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> all;
    for (const std::optional<Tensor>& each : value.toOptionalTensorVector())
      all.push_back(each && each->defined() ? std::optional<Tensor>(change(*each)) : each);
    return all;
  }
  if (value.isDevice() && value.toDevice().type() == KIND) return device;
  return value;
}

template <class Change>
Stack changed_all(const Stack& stack, Change change, Device device) {
  Stack found;
  for (const auto& each : stack) found.push_back(changed(each, change, device));
  return found;
}

bool is_indexed(const std::string& name) {  // whose indices may lie on the host
  return name.rfind("aten::index", 0) == 0 || name.rfind("aten::_index", 0) == 0;
}

std::optional<c10::DeviceIndex> device_of(const Stack& stack, bool indexed) {
  std::optional<c10::DeviceIndex> found;
  bool host = false;
  auto look = [&](const Tensor& each) {
    if (simulated(each)) {
      TORCH_CHECK(!found || *found == each.device().index() || each.dim() == 0,
                  "an op is given tensors on simulated devices ", *found, " and ", each.device().index());
      if (!found) found = each.device().index();
    } else if (each.dim() > 0 && !indexed) {
      host = true;
    }
    return each;
  };
  for (const auto& each : stack) {
    changed(each, look, Device(c10::kMeta));
    if (!found && each.isDevice() && each.toDevice().type() == KIND) found = each.toDevice().index();
  }
  TORCH_CHECK(!found || !host, "an op is given tensors on the host and on a simulated device");
  return found;
}

void pause() {
  thread_local std::mt19937 random{std::random_device{}()};
  int most = slowest;
  if (most > 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % (most + 1)));
}

// Which argument a result is, for results that are written arguments: of an in-place op, of one with out=.
std::vector<int> written_results(const c10::FunctionSchema& schema) {
  std::vector<int> found;
  for (const auto& result : schema.returns()) {
    int which = -1;
    if (result.alias_info() && result.alias_info()->isWrite())
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const auto* alias = schema.arguments()[i].alias_info();
        if (alias && alias->isWrite() && alias->beforeSets() == result.alias_info()->beforeSets()) which = int(i);
      }
    found.push_back(which);
  }
  return found;
}

struct Below {  // ops below autograd, as a kernel calls them
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard nothing_python{c10::DispatchKey::Python};
};

bool now(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded) || op.hasTag(at::Tag::data_dependent_output) ||
         op.hasTag(at::Tag::dynamic_output_shape);
}

Tensor to_device(const Tensor& each, Device device) {
  if (!each.defined() || simulated(each)) return each;
  auto found = at::empty_strided(each.sizes(), each.strides(), each.options().device(device));
  on_host(found).copy_(each);
  return found;
}

void results_to(Stack* stack, const Stack& given, const std::vector<int>& written, const Stack& found,
                const std::function<Tensor(const Tensor&)>& make, Device device) {
  for (size_t i = 0; i < found.size(); ++i)
    stack->push_back(i < written.size() && written[i] >= 0 ? given[written[i]] : changed(found[i], make, device));
}

void run(const c10::OperatorHandle& op, const c10::OperatorHandle& kernel, Stack* stack) {
  const auto count = op.schema().arguments().size();
  Stack given(stack->end() - count, stack->end());
  torch::jit::drop(*stack, count);
  auto index = device_of(given, is_indexed(op.schema().name())).value_or(device_now);
  Device device(KIND, index);
  c10::DeviceGuard guard(device);
  auto& queue = queue_of(here(index));
  auto written = written_results(op.schema());
  Below below;
  Stack shapes;
  bool wait = now(op);
  if (!wait) {
    try {
      shapes = changed_all(given, as_meta, Device(c10::kMeta));
      kernel.callBoxed(&shapes);
    } catch (const std::exception&) {
      PyErr_Clear();
      wait = true;
    }
  }
  if (wait) {
    ++at_once;
    drained(queue);
    auto arguments = changed_all(given, on_host, Device(c10::kCPU));
    kernel.callBoxed(&arguments);
    results_to(stack, given, written, arguments, [&](const Tensor& each) { return to_device(each, device); }, device);
    return;
  }
  ++launched;
  for (size_t i = 0; i < written.size(); ++i)
    if (written[i] >= 0 && shapes[i].isTensor() && shapes[i].toTensor().sizes() != given[written[i]].toTensor().sizes())
      at::native::resize_(given[written[i]].toTensor(), shapes[i].toTensor().sizes(), std::nullopt);  // an out= that was empty
  std::vector<Tensor> outputs;  // the memory of new results, in their order
  auto make = [&](const Tensor& each) {
    if (!each.defined()) return each;
    auto found = at::empty_strided(each.sizes(), each.strides(), each.options().device(device));
    outputs.push_back(on_host(found));
    return found;
  };
  results_to(stack, given, written, shapes, make, device);
  auto arguments = changed_all(given, on_host, Device(c10::kCPU));
  queue.push([kernel, arguments = std::move(arguments), outputs, written]() mutable {
    pause();
    Below below;
    kernel.callBoxed(&arguments);
    size_t next = 0;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (i < written.size() && written[i] >= 0) continue;
      changed(arguments[i], [&](const Tensor& each) {
        if (!each.defined()) return each;
        auto& output = outputs[next++];
        if (each.numel() > 0 || output.numel() == 0) output.copy_(each);  // what a CPU leaves out has any numbers
        return each;
      }, Device(c10::kCPU));
    }
  });
}

void fallback(const c10::OperatorHandle& op, Stack* stack) { run(op, op, stack); }

c10::OperatorHandle aten(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

void convolution(const c10::OperatorHandle& op, Stack* stack) { run(op, aten("aten::convolution"), stack); }

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  auto channels = transposed ? weight.size(1) * groups : weight.size(0);
  auto op = aten("aten::convolution_backward");
  Stack stack{gradient, input, weight, std::vector<int64_t>{channels}, stride, padding, dilation, transposed, output_padding, groups,
              std::vector<bool>(mask.begin(), mask.end())};
  run(op, op, &stack);
  auto at = [&](int i) { return stack[i].isTensor() ? stack[i].toTensor() : Tensor(); };
  return {at(0), at(1), at(2)};
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device> device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(Device(KIND, device_now)));
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::MTIA);
  return at::detail::empty_generic(size, &memory, keys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(Device(KIND, device_now)));
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::MTIA);
  return at::detail::empty_strided_generic(size, stride, &memory, keys, c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  auto both = [](Tensor source, Tensor goal) {
    return [source, goal] {
      pause();
      Below below;
      goal.copy_(source);
    };
  };
  if (!simulated(target)) {  // to the host, which waits
    drained(queue_of(here(self.device().index())));
    const_cast<Tensor&>(target).copy_(on_host(self));
    return target;
  }
  auto& goal = queue_of(here(target.device().index()));
  if (!simulated(self)) {  // from the host: only what is pinned is read later
    bool later = non_blocking && is_pinned(self.data_ptr());
    auto source = later ? at::from_blob(self.data_ptr(), self.sizes(), self.strides(), self.options()) : self.clone();
    goal.push(both(source, on_host(target)));
    return target;
  }
  auto& source = queue_of(here(self.device().index()));
  if (&source == &goal) {
    goal.push(both(on_host(self), on_host(target)));
    return target;
  }
  auto begin = std::make_shared<Mark>(), end = std::make_shared<Mark>();  // as CUDA copies between two devices
  record_on(begin, goal);
  wait_on(begin, source);
  source.push(both(on_host(self), on_host(target)));
  record_on(end, source);
  wait_on(end, goal);
  return target;
}

at::Scalar number(const Tensor& self) {
  drained(queue_of(here(self.device().index())));
  return at::_local_scalar_dense(on_host(self));
}

void record_stream(Tensor& self, c10::Stream stream) { Guard().recordDataPtrOnStream(self.storage().data_ptr(), stream); }

TORCH_LIBRARY_IMPL(_, MTIA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, MTIA, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("resize_", TORCH_FN(at::native::resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_local_scalar_dense", TORCH_FN(number));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}

}  // namespace simulated

namespace at {
using simulated::MTIAHooks;
REGISTER_MTIA_HOOKS(MTIAHooks);
}  // namespace at

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("pause", [](int most) { simulated::slowest = most; }, "The longest pause before an op, in microseconds.");
  m.def("launched", [] { return int64_t(simulated::launched); }, "How many ops were put into a queue.");
  m.def("at_once", [] { return int64_t(simulated::at_once); }, "How many ops waited for their stream, and ran on the caller's thread.");
  m.def("allocated", [] { return int64_t(simulated::allocated); }, "Bytes that tensors have, or that wait for a stream.");
}
