// Streams and events of the simulated accelerator: a stream is a thread that works off a queue, an event a number to wait for.

#pragma once

#include <torch/extension.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace simulated {

constexpr auto KIND = c10::DeviceType::MTIA;  // which a build for CPUs knows by name, and leaves to whoever brings one
constexpr c10::DeviceIndex DEVICES = 3;

inline std::mutex failing;
inline std::exception_ptr failed;  // what an op raised on its stream; who waits for a device next is told

inline void tell() {
  std::exception_ptr found;
  {
    std::lock_guard<std::mutex> lock(failing);
    std::swap(found, failed);
  }
  if (found) std::rethrow_exception(found);
}

class Queue {
 public:
  Queue() {
    std::thread([this] { work(); }).detach();
  }

  void push(std::function<void()> job) {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }

  void drain() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.empty() && !busy_; });
  }

  bool idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return jobs_.empty() && !busy_;
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        busy_ = false;
        changed_.notify_all();
        changed_.wait(lock, [this] { return !jobs_.empty(); });
        job = std::move(jobs_.front());
        jobs_.pop_front();
        busy_ = true;
      }
      try {
        job();
      } catch (...) {
        std::lock_guard<std::mutex> lock(failing);
        if (!failed) failed = std::current_exception();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = true;
};

using Key = std::pair<c10::DeviceIndex, c10::StreamId>;

inline std::mutex table;
inline std::map<Key, Queue*> queues;  // kept to the end: their threads are detached

inline Queue& queue_of(Key key) {
  std::lock_guard<std::mutex> lock(table);
  auto& found = queues[key];
  if (!found) found = new Queue();
  return *found;
}

inline std::vector<Queue*> queues_of(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(table);
  std::vector<Queue*> found;
  for (auto& [key, queue] : queues)
    if (key.first == device) found.push_back(queue);
  return found;
}

inline thread_local c10::DeviceIndex device_now = 0;
inline thread_local c10::StreamId streams_now[DEVICES] = {};

inline Key here(c10::DeviceIndex device) {
  return {device, streams_now[device]};
}

inline void without_python(const std::function<void()>& wait) {
  if (!PyGILState_Check()) return wait();
  py::gil_scoped_release unlocked;
  wait();
}

inline void drained(Queue& queue) {
  without_python([&] { queue.drain(); });
  tell();
}

struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t recorded = 0, reached = 0;

  int64_t asked() {
    std::lock_guard<std::mutex> lock(mutex);
    return recorded;
  }

  bool passed() {
    std::lock_guard<std::mutex> lock(mutex);
    return reached >= recorded;
  }

  void wait(int64_t version) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return reached >= version; });
  }
};
using Event = std::shared_ptr<Mark>;

inline void record_on(const Event& mark, Queue& queue) {
  int64_t version;
  {
    std::lock_guard<std::mutex> lock(mark->mutex);
    version = ++mark->recorded;
  }
  queue.push([mark, version] {
    std::lock_guard<std::mutex> lock(mark->mutex);
    mark->reached = std::max(mark->reached, version);
    mark->changed.notify_all();
  });
}

inline void wait_on(const Event& mark, Queue& queue) {
  auto version = mark->asked();
  if (version) queue.push([mark, version] { mark->wait(version); });
}

}  // namespace simulated
