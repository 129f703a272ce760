#include "tests/support/simt/simt_device.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/simt/simt.h"

namespace quartet::testing {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kSharedBytes = 96 * 1024;  // of sm_70: what runs here fits there
constexpr size_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0x5A;

class SimtKernel final : public cuda::Kernel {
 public:
  SimtKernel(const char* name, const simt::Registered& kernel, size_t max_shared_bytes)
      : name(name), kernel(kernel), max_shared_bytes(max_shared_bytes) {}
  size_t param_bytes() const override { return kernel.param_bytes; }

  const char* const name;
  const simt::Registered kernel;
  size_t max_shared_bytes;
};

class SimtGraph final : public cuda::Graph {
 public:
  std::vector<std::function<void()>> work;
};

// Memory that is poisoned at first and guarded behind. Everything happens at once, except that
// forked work happens as late as it may, at the join: what reads its results or touches its memory
// too early is wrong every time.
class SimtDevice final : public cuda::Device {
 public:
  SimtDevice() {
    info_.name = "emulated GPU";
    info_.image = "simt";
    info_.multiprocessors = 4;
    info_.shared_bytes_per_block = kSharedBytes;
    info_.l2_bytes = 6 << 20;
    info_.memory_bytes = size_t{8} << 30;
  }

  const cuda::DeviceInfo& info() const override { return info_; }

  absl::StatusOr<cuda::Buffer> Allocate(size_t bytes, std::string_view what) override {
    auto* data = static_cast<unsigned char*>(std::aligned_alloc(
        kAlignment, (bytes + kGuardBytes + kAlignment - 1) / kAlignment * kAlignment));
    if (data == nullptr)
      return absl::ResourceExhaustedError(absl::string_view(what.data(), what.size()));
    std::memset(data, 0xFF, bytes);
    std::memset(data + bytes, kGuard, kGuardBytes);
    sizes_[data] = bytes;
    return cuda::Buffer(this, data, bytes);
  }

  absl::StatusOr<const cuda::Kernel*> Find(const char* name, size_t max_shared_bytes) override {
    const simt::Registered* kernel = simt::FindKernel(name);
    if (kernel == nullptr) return absl::NotFoundError(absl::StrCat("no kernel ", name));
    if (max_shared_bytes > kSharedBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("kernel ", name, " wants ", max_shared_bytes, " bytes of shared memory"));
    }
    auto& entry = kernels_[name];
    if (entry == nullptr) {
      entry = std::make_unique<SimtKernel>(name, *kernel, max_shared_bytes);
    }
    entry->max_shared_bytes = std::max(entry->max_shared_bytes, max_shared_bytes);
    return entry.get();
  }

  void Copy(void* to, const void* from, size_t bytes) override {
    Do([=] { std::memmove(to, from, bytes); });
  }
  void Fill(void* to, uint8_t value, size_t bytes) override {
    Do([=] { std::memset(to, value, bytes); });
  }
  void Fork(cuda::Side, absl::FunctionRef<void()> work) override {
    is_forking_ = true;
    work();
    is_forking_ = false;
  }
  void Join() override {
    for (auto& step : std::exchange(forked_, {})) Do(std::move(step));
  }
  absl::Status CopyIn(void* to, const void* from, size_t bytes) override {
    Join();
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  absl::Status CopyOut(void* to, const void* from, size_t bytes) override {
    Join();
    std::memcpy(to, from, bytes);
    return status_;
  }
  absl::StatusOr<void*> AllocatePinned(size_t bytes, std::string_view) override {
    pinned_.push_back(std::make_unique<unsigned char[]>(bytes + kAlignment));
    return static_cast<void*>(pinned_.back().get());
  }
  void CopyInAsync(void* to, const void* pinned, size_t bytes) override {
    Do([=] { std::memcpy(to, pinned, bytes); });
  }
  absl::StatusOr<std::unique_ptr<cuda::Fence>> MakeFence() override {
    return std::make_unique<cuda::Fence>();
  }
  void Place(cuda::Fence&) override { Join(); }
  absl::Status Await(cuda::Fence&) override { return status_; }
  absl::Status Synchronize() override {
    Join();
    return status_;
  }

  absl::StatusOr<std::unique_ptr<cuda::Graph>> Capture(absl::FunctionRef<void()> work) override {
    Join();
    auto graph = std::make_unique<SimtGraph>();
    capturing_ = graph.get();
    work();
    Join();
    capturing_ = nullptr;
    return graph;
  }
  void Replay(const cuda::Graph& graph) override {
    Join();
    for (const auto& step : static_cast<const SimtGraph&>(graph).work) step();
  }
  absl::StatusOr<double> Milliseconds(absl::FunctionRef<void()> work) override {
    Join();
    const auto begin = std::chrono::steady_clock::now();
    work();
    Join();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
        .count();
  }

 private:
  void Free(void* data) override {
    const auto it = sizes_.find(static_cast<unsigned char*>(data));
    const unsigned char* guard = it->first + it->second;
    for (size_t i = 0; i < kGuardBytes; ++i) {
      if (guard[i] != kGuard) {
        std::fprintf(stderr, "simt: byte %zu behind a buffer of %zu bytes was written\n", i,
                     it->second);
        std::abort();
      }
    }
    sizes_.erase(it);
    std::free(data);
  }

  void LaunchBytes(const cuda::Kernel* kernel, const cuda::LaunchShape& shape, const void* params,
                   size_t bytes) override {
    const auto& simt_kernel = static_cast<const SimtKernel&>(*kernel);
    if (bytes != simt_kernel.param_bytes() || shape.shared_bytes > simt_kernel.max_shared_bytes) {
      std::fprintf(stderr,
                   "simt: kernel %s: %zu bytes of parameters (expected %zu), %u of shared "
                   "memory (announced %zu)\n",
                   simt_kernel.name, bytes, simt_kernel.param_bytes(), shape.shared_bytes,
                   simt_kernel.max_shared_bytes);
      std::abort();
    }
    const std::string copy(static_cast<const char*>(params), bytes);
    Do([&simt_kernel, shape, copy] {
      alignas(16) std::byte aligned[4096];
      std::memcpy(aligned, copy.data(), copy.size());
      simt::Run(simt_kernel.kernel, simt_kernel.name, {shape.grid_x, shape.grid_y, shape.grid_z},
                shape.threads, shape.shared_bytes, aligned);
    });
  }

  // Now, at the join, or when the graph that is being captured is replayed.
  void Do(std::function<void()> step) {
    if (is_forking_) {
      forked_.push_back(std::move(step));
    } else if (capturing_ != nullptr) {
      capturing_->work.push_back(std::move(step));
    } else {
      step();
    }
  }

  SimtGraph* capturing_ = nullptr;
  bool is_forking_ = false;
  std::vector<std::function<void()>> forked_;  // and not joined yet
  cuda::DeviceInfo info_;
  absl::Status status_;
  std::map<unsigned char*, size_t> sizes_;
  std::map<std::string, std::unique_ptr<SimtKernel>> kernels_;
  std::vector<std::unique_ptr<unsigned char[]>> pinned_;
};

}  // namespace

std::unique_ptr<cuda::Device> OpenTestDevice() {
  return std::make_unique<SimtDevice>();
}

bool TestDeviceIsEmulated() {
  return true;
}

}  // namespace quartet::testing
