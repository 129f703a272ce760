#include "kernels/cuda/cublas.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace quartet::cuda {
namespace {

// What the library needs on Hopper at most.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

// Values of its enumerations.
constexpr int kSuccess = 0;
constexpr int kNoTranspose = 0;
constexpr int kTranspose = 1;
constexpr int kTypeF32 = 0;
constexpr int kTypeF16 = 2;
constexpr int kComputeF32 = 68;
constexpr int kDefaultAlgorithm = -1;

using Handle = void*;

struct Functions {
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*set_stream)(Handle, void*) = nullptr;
  int (*set_workspace)(Handle, void*, size_t) = nullptr;
  int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*, int,
              int, const void*, void*, int, int, int, int) = nullptr;
};

bool LoadFunctions(Functions& f) {
  void* library = nullptr;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12"}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) return false;
  const auto load = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  return load(f.create, "cublasCreate_v2") && load(f.destroy, "cublasDestroy_v2") &&
         load(f.set_stream, "cublasSetStream_v2") &&
         load(f.set_workspace, "cublasSetWorkspace_v2") && load(f.gemm, "cublasGemmEx");
}

class LoadedCublas final : public Cublas {
 public:
  LoadedCublas(Device& device, const Functions& functions, Handle handle, Buffer workspace)
      : device_(device), functions_(functions), handle_(handle), workspace_(std::move(workspace)) {}
  ~LoadedCublas() override { functions_.destroy(handle_); }

  void Multiply(const Product& p) const override {
    // The library counts columns first: a row-major y is its y^T = w x^T.
    const float one = 1.0f;
    const float zero = 0.0f;
    device_.NativeStream();  // the one that the handle knows is used
    const int result = functions_.gemm(
        handle_, kTranspose, kNoTranspose, static_cast<int>(p.out), static_cast<int>(p.rows),
        static_cast<int>(p.in), &one, p.w, kTypeF16, static_cast<int>(p.w_stride), p.x, kTypeF16,
        static_cast<int>(p.x_stride), &zero, p.y, kTypeF32, static_cast<int>(p.y_stride),
        kComputeF32, kDefaultAlgorithm);
    if (result != kSuccess) {
      // Neither shapes nor memory can be at fault after start.
      std::fprintf(stderr, "cuBLAS: status %d for %lld x %lld x %lld\n", result,
                   static_cast<long long>(p.rows), static_cast<long long>(p.in),
                   static_cast<long long>(p.out));
      std::abort();
    }
  }

 private:
  Device& device_;
  const Functions functions_;
  Handle handle_;
  Buffer workspace_;
};

}  // namespace

std::unique_ptr<Cublas> Cublas::Load(Device& device) {
  void* stream = device.NativeStream();
  if (stream == nullptr || device.info().image == "sm_70") return nullptr;
  Functions functions;
  if (!LoadFunctions(functions)) return nullptr;
  Handle handle = nullptr;
  if (functions.create(&handle) != kSuccess) return nullptr;
  absl::StatusOr<Buffer> workspace = device.Allocate(kWorkspaceBytes, "workspace of cuBLAS");
  if (!workspace.ok() || functions.set_stream(handle, stream) != kSuccess ||
      functions.set_workspace(handle, workspace->data(), kWorkspaceBytes) != kSuccess) {
    functions.destroy(handle);
    return nullptr;
  }
  return std::make_unique<LoadedCublas>(device, functions, handle, *std::move(workspace));
}

}  // namespace quartet::cuda
