// A device for torch whose streams, events and memory are the software driver's, so that what
// ringfold promises about the order of operations is tested without a GPU.
//
// Every operator without a kernel of its own runs as an operation of the current stream: its shapes
// are inferred on the meta device when it is called, its results are allocated, and the CPU's
// operator runs on the driver's mapping of the memory when the stream comes to it. It knows
// addresses only, and holds no tensor. Where shapes cannot be inferred, because they depend on
// values, torch's fallback copies to the host, which waits for the stream.

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <functional>

#include "memory.h"
#include "sparse.h"

namespace soft {
namespace {

using at::IntArrayRef;
using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

// The same value with `change` applied to its tensors and its device, if it has any.
template <class Change>
IValue changed(const IValue& value, c10::DeviceType type, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isDevice()) return c10::Device(type);
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& each : value.toTensorVector()) list.push_back(change(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor> each : value.toOptionalTensorList()) {
      list.push_back(each ? std::optional<Tensor>(change(*each)) : std::nullopt);
    }
    return list;
  }
  return value;
}

bool is_here(const Tensor& tensor) {
  return tensor.defined() && tensor.is_privateuseone();
}

// A tensor of the meta device with the same shape, in place of one of this device.
Tensor shape_of(const Tensor& tensor) {
  if (!is_here(tensor)) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           tensor.options().device(c10::kMeta).pinned_memory(false));
}

// Values as a kernel has them: shapes, and the addresses of those that are in device memory.
struct Arguments {
  Stack values;
  std::vector<Address> addresses;

  void add(const IValue& value) {
    values.push_back(changed(value, c10::kMeta, [this](const Tensor& tensor) {
      if (!is_here(tensor)) return kept(tensor);
      addresses.push_back(tensor.numel() ? Address(tensor.data_ptr()) : 0);
      return shape_of(tensor);
    }));
  }

  // The values as the CPU has them: over the driver's mapping of the memory.
  Stack placed() const {
    Stack stack;
    size_t next = 0;
    for (const IValue& value : values) {
      stack.push_back(changed(value, c10::kCPU, [&](const Tensor& shape) {
        return shape.defined() && shape.is_meta() ? at_place(shape, addresses[next++]) : shape;
      }));
    }
    return stack;
  }

 private:
  // A tensor of the host as it is now.
  static Tensor kept(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    Tensor copy = tensor.clone();
    copy.unsafeGetTensorImpl()->set_wrapped_number(
        tensor.unsafeGetTensorImpl()->is_wrapped_number());
    return copy;
  }

  static Tensor at_place(const Tensor& shape, Address address) {
    int64_t elements = shape.numel() ? 1 : 0;
    for (int64_t axis = 0; elements && axis < shape.dim(); ++axis) {
      elements += (shape.size(axis) - 1) * shape.stride(axis);
    }
    const size_t bytes = elements * shape.itemsize();
    const Address place = bytes ? driver().softcuda_place(address, bytes) : 0;
    return at::from_blob(reinterpret_cast<void*>(place), shape.sizes(), shape.strides(),
                         shape.options().device(c10::kCPU));
  }
};

// Runs `body` as an operation of the current stream of `device`.
void launch(c10::Device device, std::function<void()> body) {
  const Kernel kernel = [](uintptr_t argument) {
    const std::unique_ptr<std::function<void()>> body(
        reinterpret_cast<std::function<void()>*>(argument));
    const at::AutoDispatchBelowADInplaceOrView guard;
    try {
      (*body)();
    } catch (const std::exception& error) {
      fprintf(stderr, "a kernel of the device `soft` fails: %s\n", error.what());
      abort();
    }
  };
  auto* owned = new std::function<void()>(std::move(body));
  SOFT_CALL(device.index(), softcuda_launch, handle(current_stream(device)), kernel,
            uintptr_t(owned));
}

// Makes arguments that the operator resizes, on the meta device, as large on this one.
void resize_like(const IValue& given, const IValue& shape) {
  std::vector<Tensor> shapes;
  changed(shape, c10::kMeta, [&](const Tensor& tensor) { return shapes.emplace_back(tensor); });
  size_t next = 0;
  changed(given, TYPE, [&](const Tensor& tensor) {
    const Tensor& wanted = shapes[next++];
    if (is_here(tensor) && tensor.sizes() != wanted.sizes()) tensor.resize_(wanted.sizes());
    return tensor;
  });
}

// The argument that an operator returns: the one with the same alias.
size_t returned_argument(const c10::FunctionSchema& schema, const c10::AliasInfo& alias) {
  for (size_t index = 0; index < schema.arguments().size(); ++index) {
    const c10::AliasInfo* own = schema.arguments()[index].alias_info();
    if (own && *own == alias) return index;
  }
  TORCH_CHECK(false, schema.name(), " returns an alias of none of its arguments");
}

// The device of the arguments.
c10::Device device_of(const Stack& arguments) {
  c10::Device device = device_at(current_device);
  for (const IValue& value : arguments) {
    changed(value, TYPE, [&](const Tensor& tensor) {
      if (is_here(tensor)) device = tensor.device();
      return tensor;
    });
  }
  return device;
}

// The results' shapes, and those of the arguments after the call; whether they can be inferred.
bool infer(const c10::OperatorHandle& op, const Stack& given, Stack& shapes, Stack& results) {
  for (const IValue& value : given) shapes.push_back(changed(value, c10::kMeta, shape_of));
  results = shapes;
  try {
    op.callBoxed(results);
  } catch (const std::exception&) {
    return false;
  }
  return std::all_of(results.begin(), results.end(), [](const IValue& value) {
    return value.isTensor() || value.isTensorList();
  });
}

void copy_each(const IValue& from, const IValue& to) {
  if (from.isTensor()) {
    if (from.toTensor().defined()) to.toTensor().copy_(from.toTensor());
    return;
  }
  const std::vector<Tensor> sources = from.toTensorVector(), targets = to.toTensorVector();
  for (size_t index = 0; index < sources.size(); ++index) targets[index].copy_(sources[index]);
}

// All operators without a kernel below.
void run(const c10::OperatorHandle& op, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto first = stack->end() - static_cast<int64_t>(schema.arguments().size());
  const Stack given(first, stack->end());
  const c10::Device current = device_of(given);
  const c10::DeviceGuard at_device(current);
  Stack shapes, inferred;
  if (!infer(op, given, shapes, inferred)) {
    at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
    return;
  }
  stack->erase(first, stack->end());
  for (size_t index = 0; index < given.size(); ++index) resize_like(given[index], shapes[index]);

  Arguments arguments, filled;
  std::vector<size_t> fresh;
  for (const IValue& value : given) arguments.add(value);
  for (size_t index = 0; index < schema.returns().size(); ++index) {
    if (const c10::AliasInfo* alias = schema.returns()[index].alias_info()) {
      TORCH_CHECK(alias->isWrite(), schema.name(), " is a view, which has no kernel here");
      stack->push_back(given[returned_argument(schema, *alias)]);
      continue;
    }
    stack->push_back(changed(inferred[index], TYPE, [](const Tensor& shape) {
      if (!shape.defined()) return shape;
      return at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(TYPE));
    }));
    filled.add(stack->back());
    fresh.push_back(index);
  }
  launch(current, [op, arguments, filled, fresh] {
    Stack values = arguments.placed();
    op.callBoxed(values);
    const Stack targets = filled.placed();
    for (size_t index = 0; index < fresh.size(); ++index) {
      copy_each(values[fresh[index]], targets[index]);
    }
  });
}

bool is_flat_pair(const Tensor& one, const Tensor& other) {
  return one.dtype() == other.dtype() && one.sizes() == other.sizes() && one.is_contiguous() &&
         other.is_contiguous();
}

Tensor pinned_like(const Tensor& tensor, c10::ScalarType dtype) {
  return at::empty(tensor.sizes(), at::TensorOptions().dtype(dtype).pinned_memory(true));
}

// Within the device.
void copy_within(const Tensor& from, const Tensor& to) {
  Arguments arguments;
  arguments.add(to);
  arguments.add(from);
  launch(to.device(), [arguments] {
    const Stack placed = arguments.placed();
    placed[0].toTensor().copy_(placed[1].toTensor());
  });
}

void copy_down(const Tensor& from, const Tensor& to, bool is_async) {
  const c10::Stream stream = current_stream(from.device());
  const bool is_direct = is_flat_pair(from, to) && pinned().at(to.data_ptr());
  const Tensor flat = from.contiguous();
  const Tensor staged = is_direct ? to : pinned_like(from, from.scalar_type());
  SOFT_CALL(stream.device_index(), cuMemcpyDtoHAsync_v2, Address(staged.data_ptr()),
            Address(flat.data_ptr()), flat.nbytes(), handle(stream));
  keep_pinned(staged.data_ptr(), stream);
  if (is_direct && is_async) return;
  synchronize(stream);
  if (!is_direct) to.copy_(staged);
}

void copy_up(const Tensor& from, const Tensor& to, bool is_async) {
  const c10::Stream stream = current_stream(to.device());
  const bool is_direct = is_flat_pair(from, to) && pinned().at(from.data_ptr());
  const Tensor staged = is_direct ? from : pinned_like(to, to.scalar_type()).copy_(from);
  const Tensor flat = to.is_contiguous() ? to : at::empty(to.sizes(), to.options());
  SOFT_CALL(stream.device_index(), cuMemcpyHtoDAsync_v2, Address(flat.data_ptr()),
            Address(staged.data_ptr()), flat.nbytes(), handle(stream));
  keep_pinned(staged.data_ptr(), stream);
  if (!to.is_contiguous()) copy_within(flat, to);
  if (!is_async) synchronize(stream);
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool is_async) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const c10::DeviceGuard at_device(is_here(to) ? to.device() : from.device());
  if (to.numel() == 0) return to;
  const Tensor even = from.sizes() == to.sizes() ? from : from.expand(to.sizes());
  if (!is_here(from)) {
    copy_up(even, to, is_async);
  } else if (!is_here(to)) {
    copy_down(even, to, is_async);
  } else if (from.device() == to.device()) {
    copy_within(even, to);
  } else {
    to.copy_(from.cpu());
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

c10::DispatchKeySet keys() {
  return c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
}

Tensor empty(IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
             std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>,
             std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard at_device(indexed(device.value_or(device_at(current_device))));
  return at::detail::empty_generic(sizes, &device_memory(), keys(), c10::dtype_or_default(dtype),
                                   format);
}

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout>, std::optional<c10::Device> device,
                     std::optional<bool>) {
  const c10::DeviceGuard at_device(indexed(device.value_or(device_at(current_device))));
  return at::detail::empty_strided_generic(sizes, strides, &device_memory(), keys(),
                                           c10::dtype_or_default(dtype));
}

const Tensor& resize(const Tensor& self, IntArrayRef sizes, std::optional<c10::MemoryFormat>) {
  c10::TensorImpl* tensor = self.unsafeGetTensorImpl();
  tensor->set_sizes_contiguous(sizes);
  const size_t bytes = (tensor->storage_offset() + self.numel()) * self.itemsize();
  if (bytes > self.storage().nbytes()) Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  return self;
}

Tensor& set_part(Tensor& self, at::Storage source, int64_t offset, IntArrayRef sizes,
                 IntArrayRef strides) {
  c10::TensorImpl* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(source));
  tensor->set_storage_offset(offset);
  if (strides.empty()) {
    tensor->set_sizes_contiguous(sizes);
  } else {
    tensor->set_sizes_and_strides(sizes, strides);
  }
  return self;
}

Tensor& set_whole(Tensor& self, at::Storage source) {
  const int64_t elements = source.nbytes() / self.itemsize();
  return set_part(self, std::move(source), 0, {elements}, {});
}

void record_stream(Tensor& self, c10::Stream stream) {
  keep_for(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("resize_", &resize);
  library.impl("set_.source_Storage", &set_whole);
  library.impl("set_.source_Storage_storage_offset", &set_part);
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
  library.impl("record_stream", &record_stream);
}

const c10::impl::DeviceGuardImplRegistrar registered(TYPE, new Guard);

const bool has_hooks = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

// A word of pinned memory: held streams wait until it is at least their number.
struct Gate {
  std::atomic<uint32_t>* word = nullptr;
  Address seen_by_device = 0;
  uint32_t last = 0;

  Gate() {
    void* address = pinned().allocate(sizeof(*word)).release_context();
    word = reinterpret_cast<std::atomic<uint32_t>*>(
        static_cast<Pinned::Range*>(address)->address);
    word->store(0);
    SOFT_CALL(0, cuMemHostGetDevicePointer_v2, &seen_by_device, Address(word), 0);
  }
};

Gate& gate() {
  static auto* gate = new Gate;
  return *gate;
}

}  // namespace
}  // namespace soft

extern "C" int softtorch_device_count() {
  return soft::driver().device_count;
}

// Has a stream of the current device wait for `softtorch_let_go`.
extern "C" void softtorch_hold(uintptr_t stream) {
  soft::Gate& gate = soft::gate();
  constexpr unsigned AT_LEAST = 0;
  SOFT_CALL(soft::current_device, cuStreamWaitValue32_v2, stream, gate.seen_by_device,
            ++gate.last, AT_LEAST);
}

// Lets all held streams go on.
extern "C" void softtorch_let_go() {
  soft::gate().word->store(soft::gate().last);
}
