// Devices, streams and events: torch's guard over the driver.
//
// A stream's id is the driver's handle; 0 is the default stream. Streams are never destroyed, as
// torch's own.

#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <mutex>
#include <vector>

#include "driver.h"

namespace soft {

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
constexpr unsigned NON_BLOCKING = 1;
constexpr unsigned DISABLE_TIMING = 2;

inline thread_local c10::DeviceIndex current_device = 0;
inline thread_local c10::StreamId current_streams[DEVICES_MAX] = {};

inline c10::Device device_at(int index) {
  return {TYPE, static_cast<c10::DeviceIndex>(index)};
}

inline c10::Device indexed(c10::Device device) {
  return device.has_index() ? device : device_at(current_device);
}

inline c10::Stream stream_of(c10::Device device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, indexed(device), id);
}

inline c10::Stream current_stream(c10::Device device) {
  return stream_of(device, current_streams[indexed(device).index()]);
}

inline Handle handle(c10::Stream stream) {
  return static_cast<Handle>(stream.id());
}

// All streams that were made.
struct Streams {
  std::mutex lock;
  std::vector<c10::Stream> made;
};

inline Streams& streams() {
  static auto* streams = new Streams;
  return *streams;
}

inline c10::Stream new_stream(c10::Device device, int priority) {
  Handle made;
  const int ordinal = indexed(device).index();
  SOFT_CALL(ordinal, cuStreamCreateWithPriority, &made, NON_BLOCKING, priority);
  const std::lock_guard<std::mutex> locked(streams().lock);
  streams().made.push_back(stream_of(device, static_cast<c10::StreamId>(made)));
  return streams().made.back();
}

inline void synchronize(c10::Stream stream) {
  SOFT_CALL(stream.device_index(), cuStreamSynchronize, handle(stream));
}

// Makes `later` wait for what `earlier` holds now.
inline void follow(c10::Stream later, c10::Stream earlier) {
  Handle event;
  SOFT_CALL(earlier.device_index(), cuEventCreate, &event, DISABLE_TIMING);
  SOFT_CALL(earlier.device_index(), cuEventRecord, event, handle(earlier));
  SOFT_CALL(later.device_index(), cuStreamWaitEvent, handle(later), event, 0);
  SOFT_CALL(earlier.device_index(), cuEventDestroy_v2, event);
}

// Whether work is done, by the driver's answer.
inline bool is_ready(int code) {
  TORCH_CHECK(code == 0 || code == NOT_READY, "a query answers ", code);
  return code == 0;
}

// Has the allocator keep memory for the work that a stream holds when the memory is freed.
inline void keep_for(const c10::DataPtr& memory, c10::Stream stream);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return TYPE; }
  c10::Device getDevice() const override { return device_at(current_device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = indexed(device).index();
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.is_privateuseone() && indexed(device).index() < deviceCount(),
                "no device ", device);
    uncheckedSetDevice(device);
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(driver().device_count);
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    synchronize(stream_of(device_at(index), 0));
    const std::vector<c10::Stream> all = [] {
      const std::lock_guard<std::mutex> locked(streams().lock);
      return streams().made;
    }();
    for (const c10::Stream& stream : all) {
      if (stream.device_index() == index) synchronize(stream);
    }
  }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return new_stream(device, priority);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high) const override {
    return new_stream(device, is_high ? -1 : 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(handle(stream));
  }
  bool queryStream(const c10::Stream& stream) const override {
    const Entered entered(stream.device_index());
    return is_ready(driver().cuStreamQuery(handle(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }
  // Without `override`: torch 2.13 is the first to ask.
  bool isStreamCapturing(const c10::Stream& stream) const {
    int status;
    SOFT_CALL(stream.device_index(), cuStreamIsCapturing, handle(stream), &status);
    return status != 0;
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream)
      const override {
    keep_for(memory, stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (!*event) {
      SOFT_CALL(stream.device_index(), cuEventCreate, reinterpret_cast<Handle*>(event),
                DISABLE_TIMING);
    }
    SOFT_CALL(stream.device_index(), cuEventRecord, Handle(*event), handle(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) {
      SOFT_CALL(stream.device_index(), cuStreamWaitEvent, handle(stream), Handle(event), 0);
    }
  }
  bool queryEvent(void* event) const override {
    const Entered entered(current_device);
    return !event || is_ready(driver().cuEventQuery(Handle(event)));
  }
  void synchronizeEvent(void* event) const override {
    if (event) SOFT_CALL(current_device, cuEventSynchronize, Handle(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex index) const noexcept override {
    if (!event) return;
    const Entered entered(index);
    driver().cuEventDestroy_v2(Handle(event));
  }
};

}  // namespace soft
