#include "kernels/cuda/driver_api.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace quartet::cuda {
namespace {

// cuda.h maps some names to later versions of themselves; the library exports those.
#define QUARTET_NAME(name) QUARTET_NAME_OF(name)
#define QUARTET_NAME_OF(name) #name

absl::StatusOr<DriverApi> Load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat("no NVIDIA driver: ", dlerror()));
  }
  DriverApi api;
#define QUARTET_LOAD(name)                                                                       \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, QUARTET_NAME(name)));           \
  if (api.name == nullptr) {                                                                     \
    return absl::UnavailableError("the NVIDIA driver is too old: it lacks " QUARTET_NAME(name)); \
  }
  QUARTET_DRIVER_FUNCTIONS(QUARTET_LOAD)
  QUARTET_DRIVER_SHARING_FUNCTIONS(QUARTET_LOAD)
#undef QUARTET_LOAD
  if (absl::Status s = api.Check(api.cuInit(0), "starting the NVIDIA driver"); !s.ok()) {
    return absl::UnavailableError(s.message());
  }
  return api;
}

}  // namespace

absl::Status DriverApi::Check(CUresult result, std::string_view what) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = "unknown error";
  const char* text = "";
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &text);
  const std::string message = absl::StrCat(std::string(what), ": ", name, " (", text, ")");
  return result == CUDA_ERROR_OUT_OF_MEMORY ? absl::ResourceExhaustedError(message)
                                            : absl::InternalError(message);
}

absl::StatusOr<const DriverApi*> LoadDriverApi() {
  static const absl::StatusOr<DriverApi> api = Load();
  if (!api.ok()) return api.status();
  return &*api;
}

}  // namespace quartet::cuda
