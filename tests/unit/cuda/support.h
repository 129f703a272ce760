#ifndef QUARTET_TESTS_UNIT_CUDA_SUPPORT_H_
#define QUARTET_TESTS_UNIT_CUDA_SUPPORT_H_

#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/support/simt/simt_device.h"
#include "tests/unit/kernels/support.h"

namespace quartet::testing {

inline void MustOk(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

// The oracle and the backend under test, side by side.
class CudaOps : public ::testing::Test {
 protected:
  static cuda::StepLimits Limits() { return {.max_rows = 8192, .max_segments = 64}; }

  // Device memory that holds these values.
  template <class T>
  cuda::Buffer Upload(const std::vector<T>& values) {
    cuda::Buffer buffer = Must(device_->Allocate(values.size() * sizeof(T), "test"));
    MustOk(device_->CopyIn(buffer.data(), values.data(), values.size() * sizeof(T)));
    return buffer;
  }
  // Device memory for `count` values, all bits set: floats read as NaN until they are written.
  template <class T>
  cuda::Buffer Poisoned(size_t count) {
    cuda::Buffer buffer = Must(device_->Allocate(count * sizeof(T), "test"));
    device_->Fill(buffer.data(), 0xFF, count * sizeof(T));
    return buffer;
  }
  template <class T>
  std::vector<T> Download(const cuda::Buffer& buffer, size_t count) {
    std::vector<T> values(count);
    MustOk(device_->CopyOut(values.data(), buffer.data(), count * sizeof(T)));
    return values;
  }
  // A workspace for an op, poisoned. Alive until the next call.
  ops::Workspace Workspace(size_t bytes) {
    workspace_ = Poisoned<std::byte>(bytes);
    return {workspace_.as<std::byte>(), bytes};
  }

  std::unique_ptr<cuda::Device> device_ = OpenTestDevice();
  std::unique_ptr<cpu::CpuBackend> cpu_ = cpu::MakeCpuBackend({.threads = 2});
  std::unique_ptr<cuda::CudaBackend> cuda_ = Must(cuda::MakeCudaBackend(*device_, Limits()));

 private:
  cuda::Buffer workspace_;
};

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_UNIT_CUDA_SUPPORT_H_
