// The software driver (crates/ringfold-softcuda): its functions, from the library that ringfold
// uses, so that both have the same devices, streams and memory.

#pragma once

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>

namespace soft {

using Address = uintptr_t;
using Handle = uintptr_t;
using Kernel = void (*)(uintptr_t argument);

#define SOFT_FUNCTIONS(each)                                        \
  each(cuInit, unsigned);                                           \
  each(cuDeviceGetCount, int*);                                     \
  each(cuDevicePrimaryCtxRetain, Handle*, int);                     \
  each(cuCtxPushCurrent_v2, Handle);                                \
  each(cuCtxPopCurrent_v2, Handle*);                                \
  each(cuStreamCreateWithPriority, Handle*, unsigned, int);         \
  each(cuStreamQuery, Handle);                                      \
  each(cuStreamSynchronize, Handle);                                \
  each(cuStreamIsCapturing, Handle, int*);                          \
  each(cuStreamWaitEvent, Handle, Handle, unsigned);                \
  each(cuStreamWaitValue32_v2, Handle, Address, uint32_t, unsigned); \
  each(cuEventCreate, Handle*, unsigned);                           \
  each(cuEventDestroy_v2, Handle);                                  \
  each(cuEventRecord, Handle, Handle);                              \
  each(cuEventQuery, Handle);                                       \
  each(cuEventSynchronize, Handle);                                 \
  each(cuMemAlloc_v2, Address*, size_t);                            \
  each(cuMemHostRegister_v2, Address, size_t, unsigned);            \
  each(cuMemHostGetDevicePointer_v2, Address*, Address, unsigned);  \
  each(cuMemsetD8Async, Address, unsigned char, size_t, Handle);    \
  each(cuMemcpyDtoHAsync_v2, Address, Address, size_t, Handle);     \
  each(cuMemcpyHtoDAsync_v2, Address, Address, size_t, Handle);     \
  each(cuMemcpyDtoDAsync_v2, Address, Address, size_t, Handle);     \
  each(softcuda_launch, Handle, Kernel, uintptr_t)

// What the driver answers of work that is not done.
constexpr int NOT_READY = 600;
// As many devices as a process may have.
constexpr int DEVICES_MAX = 8;

struct Driver {
#define SOFT_MEMBER(name, ...) int (*name)(__VA_ARGS__)
  SOFT_FUNCTIONS(SOFT_MEMBER);
  Address (*softcuda_place)(Address, size_t);
  int device_count = 0;
  Handle contexts[DEVICES_MAX] = {};

  Driver() {
    const char* path = std::getenv("RINGFOLD_CUDA_LIBRARY");
    TORCH_CHECK(path, "RINGFOLD_CUDA_LIBRARY does not name the software driver");
    void* library = dlopen(path, RTLD_NOW);
    TORCH_CHECK(library, dlerror());
#define SOFT_FIND(name, ...) find(library, #name, name)
    SOFT_FUNCTIONS(SOFT_FIND);
    find(library, "softcuda_place", softcuda_place);
    TORCH_CHECK(cuInit(0) == 0 && cuDeviceGetCount(&device_count) == 0);
    TORCH_CHECK(device_count <= DEVICES_MAX);
    for (int device = 0; device < device_count; ++device) {
      TORCH_CHECK(cuDevicePrimaryCtxRetain(&contexts[device], device) == 0);
    }
  }

 private:
  template <class Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    TORCH_CHECK(function, "the driver lacks ", name);
  }
};

inline const Driver& driver() {
  static const Driver* driver = new Driver;
  return *driver;
}

// Makes a device's context current on this thread.
struct Entered {
  explicit Entered(int device) {
    TORCH_CHECK(driver().cuCtxPushCurrent_v2(driver().contexts[device]) == 0);
  }
  ~Entered() {
    Handle popped;
    driver().cuCtxPopCurrent_v2(&popped);
  }
  Entered(const Entered&) = delete;
};

// Calls the driver in a device's context; it must agree.
#define SOFT_CALL(device, name, ...)                                   \
  do {                                                                 \
    ::soft::Entered entered(device);                                   \
    const int code = ::soft::driver().name(__VA_ARGS__);               \
    TORCH_CHECK(code == 0, #name " answers ", code);                   \
  } while (false)

}  // namespace soft
