// Memory of the simulated accelerator, which is the host's. As CUDA's caching allocator does, each stream has a pool: what is freed
// may be taken again at once by the stream that had it first, and by another one never; `record_stream` puts that off until the
// streams that it names have got to this point.

#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <set>
#include <vector>

#include "queues.h"

namespace simulated {

struct Block {
  void* data;
  size_t size;
  Key home;
  std::set<c10::StreamId> readers;  // other streams that `record_stream` has named
};

inline std::mutex pool_lock;
inline std::map<std::pair<Key, size_t>, std::vector<Block*>> pool;
inline std::atomic<int64_t> allocated{0};  // bytes that somebody has, or that wait for a stream

inline void give_back(Block* block) {
  allocated -= static_cast<int64_t>(block->size);
  std::lock_guard<std::mutex> lock(pool_lock);
  pool[{block->home, block->size}].push_back(block);
}

inline void let_go(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block->readers.empty()) return give_back(block);
  auto named = std::exchange(block->readers, {});
  auto missing = std::make_shared<std::atomic<size_t>>(named.size());
  for (auto id : named)
    queue_of({block->home.first, id}).push([block, missing] {
      if (missing->fetch_sub(1) == 1) give_back(block);
    });
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto device = device_now;
    size_t size = std::max<size_t>(64, (bytes + 63) / 64 * 64);
    Block* block = nullptr;
    {
      std::lock_guard<std::mutex> lock(pool_lock);
      auto& spare = pool[{here(device), size}];
      if (!spare.empty()) {
        block = spare.back();
        spare.pop_back();
      }
    }
    if (!block) block = new Block{std::aligned_alloc(64, size), size, here(device), {}};
    allocated += static_cast<int64_t>(size);
    return {block->data, block, &let_go, c10::Device(KIND, device)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
inline Memory memory;

inline std::mutex pins_lock;
inline std::map<const char*, size_t> pins;

struct Pinned final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* data = static_cast<char*>(std::aligned_alloc(64, (bytes + 64) / 64 * 64));
    std::lock_guard<std::mutex> lock(pins_lock);
    pins[data] = std::max<size_t>(bytes, 1);
    return {data, data, &unpin, c10::Device(c10::kCPU)};
  }

  static void unpin(void* data) {
    {
      std::lock_guard<std::mutex> lock(pins_lock);
      pins.erase(static_cast<char*>(data));
    }
    std::free(data);
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
inline Pinned pinned;

inline bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> lock(pins_lock);
  auto* byte = static_cast<const char*>(data);
  auto after = pins.upper_bound(byte);
  if (after == pins.begin()) return false;
  auto found = std::prev(after);
  return byte < found->first + found->second;
}

}  // namespace simulated
