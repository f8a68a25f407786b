// Allocators of device memory and of pinned host memory.
//
// Device memory belongs to the stream that is current when it is allocated, as with CUDA's caching
// allocator: once it is freed, the stream's next allocation of the size has it, at once. It is filled
// with 0xff (NaN) in this stream's order, so work of another stream that still uses it, and for which
// it was not recorded, sees NaN.

#pragma once

#include <c10/core/Allocator.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "streams.h"

namespace soft {

constexpr unsigned char POISON = 0xff;
constexpr size_t BLOCK_BYTES_MIN = 512;
constexpr unsigned PORTABLE_AND_MAPPED = 3;

// The power of two that a block has for `bytes` bytes.
inline size_t rounded(size_t bytes, size_t least) {
  size_t size = least;
  while (size < bytes) size *= 2;
  return size;
}

struct Block {
  Address address;
  size_t bytes;
  c10::Stream stream;
  // Other streams that use it.
  std::set<c10::StreamId> recorded;
};

struct DeviceMemory final : c10::Allocator {
  std::mutex lock;
  std::map<std::tuple<int, c10::StreamId, size_t>, std::vector<Block*>> unused;

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device = device_at(current_device);
    if (bytes == 0) return {nullptr, device};
    Block* block = take(current_stream(device), rounded(bytes, BLOCK_BYTES_MIN));
    return {reinterpret_cast<void*>(block->address), block, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "device memory is copied by operators only");
  }

 private:
  Block* take(c10::Stream stream, size_t bytes) {
    {
      const std::lock_guard<std::mutex> locked(lock);
      auto& found = unused[{stream.device_index(), stream.id(), bytes}];
      if (!found.empty()) {
        Block* block = found.back();
        found.pop_back();
        SOFT_CALL(stream.device_index(), cuMemsetD8Async, block->address, POISON, bytes,
                  handle(stream));
        return block;
      }
    }
    auto* block = new Block{0, bytes, stream, {}};
    SOFT_CALL(stream.device_index(), cuMemAlloc_v2, &block->address, bytes);
    // At once: no stream has it yet.
    memset(reinterpret_cast<void*>(driver().softcuda_place(block->address, bytes)), POISON, bytes);
    return block;
  }

  static void release(void* context);
};

inline DeviceMemory& device_memory() {
  static auto* memory = new DeviceMemory;
  return *memory;
}

inline void DeviceMemory::release(void* context) {
  auto* block = static_cast<Block*>(context);
  for (const c10::StreamId id : block->recorded) {
    follow(block->stream, stream_of(block->stream.device(), id));
  }
  block->recorded.clear();
  const std::lock_guard<std::mutex> locked(device_memory().lock);
  device_memory()
      .unused[{block->stream.device_index(), block->stream.id(), block->bytes}]
      .push_back(block);
}

inline void keep_for(const c10::DataPtr& memory, c10::Stream stream) {
  auto* block = static_cast<Block*>(memory.get_context());
  if (!block || block->stream == stream) return;
  const std::lock_guard<std::mutex> locked(device_memory().lock);
  block->recorded.insert(stream.id());
}

// Host memory that is registered with the driver and stays so. A block is used again when its
// owner and all copies have released it.
struct Pinned final : c10::Allocator {
  struct Range {
    Address address;
    size_t bytes;
    std::atomic<int> users;
  };
  std::mutex lock;
  std::map<Address, Range*> all;
  std::map<size_t, std::vector<Range*>> unused;

  c10::DataPtr allocate(size_t bytes) override {
    Range* range = take(rounded(bytes, 4096));
    range->users = 1;
    return {reinterpret_cast<void*>(range->address), range, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  // The range with this address; nothing if it is not pinned.
  Range* at(const void* address) {
    const std::lock_guard<std::mutex> locked(lock);
    auto after = all.upper_bound(Address(address));
    if (after == all.begin()) return nullptr;
    Range* range = std::prev(after)->second;
    return Address(address) < range->address + range->bytes ? range : nullptr;
  }

  static void release(void* context);

 private:
  Range* take(size_t bytes) {
    const std::lock_guard<std::mutex> locked(lock);
    auto& found = unused[bytes];
    if (!found.empty()) {
      Range* range = found.back();
      found.pop_back();
      return range;
    }
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(mapped != MAP_FAILED, "no memory to pin");
    SOFT_CALL(0, cuMemHostRegister_v2, Address(mapped), bytes, PORTABLE_AND_MAPPED);
    auto* range = new Range{Address(mapped), bytes, {0}};
    return all[range->address] = range;
  }
};

inline Pinned& pinned() {
  static auto* memory = new Pinned;
  return *memory;
}

inline void Pinned::release(void* context) {
  auto* range = static_cast<Range*>(context);
  if (--range->users > 0) return;
  const std::lock_guard<std::mutex> locked(pinned().lock);
  pinned().unused[range->bytes].push_back(range);
}

// Keeps the range that has `address` until the stream has done what it holds now.
inline void keep_pinned(const void* address, c10::Stream stream) {
  Pinned::Range* range = pinned().at(address);
  ++range->users;
  const Kernel done = [](uintptr_t kept) { Pinned::release(reinterpret_cast<void*>(kept)); };
  SOFT_CALL(stream.device_index(), softcuda_launch, handle(stream), done, uintptr_t(range));
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return Guard().deviceCount(); }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    Guard().setDevice(device_at(index));
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return Guard().exchangeDevice(device_at(index)).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device : exchangeDevice(index);
  }
  bool isPinnedPtr(const void* data) const override { return pinned().at(data) != nullptr; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  c10::Device getDeviceFromPtr(void*) const override { return device_at(current_device); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DeviceGuard guard(storage.device());
    c10::DataPtr memory = device_memory().allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0) {
      const c10::Stream stream = current_stream(storage.device());
      SOFT_CALL(stream.device_index(), cuMemcpyDtoDAsync_v2, Address(memory.get()),
                Address(storage.data_ptr().get()), kept, handle(stream));
    }
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(bytes);
  }
};

}  // namespace soft
