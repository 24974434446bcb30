// The simulated accelerator as torch asks for it: `torch.accelerator`, `torch.Stream` and `torch.Event`, autograd's threads.

#pragma once

#include <ATen/Context.h>
#include <ATen/detail/MTIAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "memory.h"

namespace simulated {

inline std::atomic<c10::StreamId> streams{0};

inline c10::Stream stream_of(c10::Device device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device, id);
}

inline Queue& queue_of(const c10::Stream& stream) {
  return queue_of(Key{stream.device_index(), stream.id()});
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return KIND;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return {KIND, device_now};
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < DEVICES, "there are ", int(DEVICES), " simulated devices, and none with index ", int(device.index()));
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) device_now = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    auto index = device.has_index() ? device.index() : device_now;
    return stream_of({KIND, index}, streams_now[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of({KIND, device.index()}, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream_of({KIND, device.has_index() ? device.index() : device_now}, ++streams);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto before = getStream(stream.device());
    streams_now[stream.device_index()] = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return DEVICES;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Event(std::make_shared<Mark>());
    record_on(*static_cast<Event*>(*event), queue_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) wait_on(*static_cast<Event*>(event), queue_of(stream));
  }
  bool queryEvent(void* event) const override {
    return !event || (*static_cast<Event*>(event))->passed();
  }
  bool queryStream(const c10::Stream& stream) const override {
    return queue_of(stream).idle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    drained(queue_of(stream));
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    auto& mark = **static_cast<Event*>(event);
    without_python([&] { mark.wait(mark.asked()); });
    tell();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    for (auto* queue : queues_of(device < 0 ? device_now : device)) drained(*queue);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    auto* block = static_cast<Block*>(data.get_context());
    if (block && block->home.second != stream.id()) block->readers.insert(stream.id());
  }
};

struct MTIAHooks final : at::MTIAHooksInterface {
  template <class... Given>
  explicit MTIAHooks(Given...) {}  // torch 2.11 gives an argument
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasMTIA() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return DEVICES;
  }
  c10::DeviceIndex getDeviceCount() const override {
    return DEVICES;
  }
  void deviceSynchronize(c10::DeviceIndex device) const override {
    Guard().synchronizeDevice(device);
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    device_now = device;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return device_now;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(device_now, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? device_now : exchangeDevice(device);
  }
  c10::Stream getCurrentStream(c10::DeviceIndex device) const override {
    return Guard().getStream({KIND, device});
  }
  c10::Stream getDefaultStream(c10::DeviceIndex device) const override {
    return Guard().getDefaultStream({KIND, device});
  }
  void setCurrentStream(const c10::Stream& stream) const override {
    Guard().exchangeStream(stream);
  }
  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned;
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::globalContext().defaultGenerator(c10::kCPU);
  }
  void emptyCache() const override {}
};

}  // namespace simulated
