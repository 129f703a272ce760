#ifndef QUARTET_KERNELS_CUDA_DRIVER_API_H_
#define QUARTET_KERNELS_CUDA_DRIVER_API_H_

#include <cuda.h>

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Only the .cc files that talk to the driver include this.

namespace quartet::cuda {

// Entry points of libcuda.so.1, found when it is first asked for.
// clang-format off
#define QUARTET_DRIVER_FUNCTIONS(F)                                                               \
  F(cuInit)                                                                                       \
  F(cuDeviceGetCount)                                                                             \
  F(cuDeviceGet)                                                                                  \
  F(cuDeviceGetName)                                                                              \
  F(cuDeviceGetUuid)                                                                              \
  F(cuDeviceGetAttribute)                                                                         \
  F(cuDeviceTotalMem)                                                                             \
  F(cuDevicePrimaryCtxRetain)                                                                     \
  F(cuDevicePrimaryCtxRelease)                                                                    \
  F(cuCtxSetCurrent)                                                                              \
  F(cuCtxSynchronize) F(cuMemGetInfo) F(cuMemAlloc) F(cuMemFree) F(cuMemAllocHost)                \
      F(cuMemFreeHost) F(cuMemcpyHtoDAsync) F(cuMemcpyDtoHAsync) F(cuMemcpyDtoDAsync)             \
          F(cuMemsetD8Async) F(cuStreamCreateWithPriority) F(cuStreamDestroy) F(cuStreamSynchronize)          \
              F(cuStreamQuery) F(cuModuleLoadData) F(cuModuleUnload) F(cuModuleGetFunction)       \
                  F(cuFuncSetAttribute) F(cuFuncGetAttribute) F(cuFuncGetParamInfo)               \
                      F(cuLaunchKernelEx) F(cuGetErrorName) F(cuGetErrorString) F(cuEventCreate)    \
                          F(cuEventDestroy) F(cuEventRecord) F(cuEventSynchronize)                \
                              F(cuEventElapsedTime) F(cuStreamBeginCapture) F(cuStreamEndCapture) \
                                  F(cuGraphInstantiateWithFlags) F(cuGraphLaunch)                 \
                                      F(cuGraphExecDestroy) F(cuGraphDestroy)                     \
                                          F(cuModuleLoadDataEx) F(cuStreamWaitEvent)          \
                                              F(cuCtxGetStreamPriorityRange)
// clang-format on

// Of memory that processes share.
// clang-format off
#define QUARTET_DRIVER_SHARING_FUNCTIONS(F)                                           \
  F(cuCtxGetDevice)                                                                   \
  F(cuMemGetAllocationGranularity)                                                    \
  F(cuMemCreate)                                                                      \
  F(cuMemRelease)                                                                     \
  F(cuMemAddressReserve)                                                              \
  F(cuMemAddressFree)                                                                 \
  F(cuMemMap)                                                                         \
  F(cuMemUnmap)                                                                       \
  F(cuMemSetAccess) F(cuMemExportToShareableHandle) F(cuMemImportFromShareableHandle) \
      F(cuIpcGetMemHandle) F(cuIpcOpenMemHandle) F(cuIpcCloseMemHandle)
// clang-format on

struct DriverApi {
#define QUARTET_DECLARE(name) decltype(&::name) name = nullptr;
  QUARTET_DRIVER_FUNCTIONS(QUARTET_DECLARE)
  QUARTET_DRIVER_SHARING_FUNCTIONS(QUARTET_DECLARE)
#undef QUARTET_DECLARE

  // OK, or INTERNAL with CUDA's own words after `what`.
  absl::Status Check(CUresult result, std::string_view what) const;
};

// UNAVAILABLE where the library is missing or too old, with its own words.
absl::StatusOr<const DriverApi*> LoadDriverApi();

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DRIVER_API_H_
