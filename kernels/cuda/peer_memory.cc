#include "kernels/cuda/peer_memory.h"

#include <cstring>

#include "kernels/cuda/driver_api.h"

namespace quartet::cuda {
namespace {

// The functions, once a Device has loaded them.
const DriverApi& Api() {
  return **LoadDriverApi();
}

absl::StatusOr<CUdevice> CurrentDevice() {
  CUdevice device = 0;
  if (absl::Status s = Api().Check(Api().cuCtxGetDevice(&device), "asking for the current GPU");
      !s.ok()) {
    return s;
  }
  return device;
}

CUmemAllocationProp Properties(CUdevice device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

bool HasDescriptors(CUdevice device) {
  for (const CUdevice_attribute attribute :
       {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    int value = 0;
    if (Api().cuDeviceGetAttribute(&value, attribute, device) != CUDA_SUCCESS || value == 0) {
      return false;
    }
  }
  return true;
}

absl::StatusOr<size_t> RoundUpToGranularity(CUdevice device, size_t bytes) {
  const CUmemAllocationProp properties = Properties(device);
  size_t unit = 0;
  if (absl::Status s = Api().Check(Api().cuMemGetAllocationGranularity(
                                       &unit, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                                   "asking how finely memory is shared");
      !s.ok()) {
    return s;
  }
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

absl::StatusOr<PeerMemory> PeerMemory::Allocate(ShareForm form, size_t bytes) {
  const absl::StatusOr<CUdevice> device = CurrentDevice();
  if (!device.ok()) return device.status();
  PeerMemory memory;
  if (form == ShareForm::kIpc) {
    CUdeviceptr address = 0;
    if (absl::Status s = Api().Check(Api().cuMemAlloc(&address, bytes), "peer memory"); !s.ok()) {
      return s;
    }
    memory.kind_ = Kind::kAllocated;
    memory.address_ = address;
    memory.bytes_ = bytes;
    return memory;
  }
  if (!HasDescriptors(*device)) {
    return absl::UnimplementedError("this GPU does not share memory by file descriptors");
  }
  const absl::StatusOr<size_t> rounded = RoundUpToGranularity(*device, bytes);
  if (!rounded.ok()) return rounded.status();
  const CUmemAllocationProp properties = Properties(*device);
  CUmemGenericAllocationHandle allocation = 0;
  if (absl::Status s = Api().Check(Api().cuMemCreate(&allocation, *rounded, &properties, 0),
                                   "peer memory that a file descriptor shares");
      !s.ok()) {
    return s;
  }
  memory.kind_ = Kind::kMapped;
  memory.bytes_ = *rounded;
  memory.allocation_ = allocation;
  if (absl::Status s = memory.Map(); !s.ok()) return s;
  return memory;
}

absl::Status PeerMemory::Map() {
  const absl::StatusOr<CUdevice> device = CurrentDevice();
  if (!device.ok()) return device.status();
  CUdeviceptr address = 0;
  if (absl::Status s = Api().Check(Api().cuMemAddressReserve(&address, bytes_, 0, 0, 0),
                                   "reserving addresses for peer memory");
      !s.ok()) {
    return s;
  }
  if (absl::Status s =
          Api().Check(Api().cuMemMap(address, bytes_, 0, allocation_, 0), "mapping peer memory");
      !s.ok()) {
    Api().cuMemAddressFree(address, bytes_);
    return s;
  }
  address_ = address;
  const CUmemAccessDesc access = {.location = Properties(*device).location,
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return Api().Check(Api().cuMemSetAccess(address, bytes_, &access, 1),
                     "giving this GPU access to peer memory");
}

absl::StatusOr<int> PeerMemory::Descriptor() const {
  int descriptor = -1;
  if (absl::Status s =
          Api().Check(Api().cuMemExportToShareableHandle(
                          &descriptor, allocation_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                      "making a file descriptor of peer memory");
      !s.ok()) {
    return s;
  }
  return descriptor;
}

absl::StatusOr<IpcHandle> PeerMemory::Handle() const {
  CUipcMemHandle handle = {};
  static_assert(sizeof(handle) == sizeof(IpcHandle));
  if (absl::Status s =
          Api().Check(Api().cuIpcGetMemHandle(&handle, address_), "naming memory for CUDA IPC");
      !s.ok()) {
    return s;
  }
  IpcHandle bytes;
  std::memcpy(bytes.data(), &handle, sizeof(handle));
  return bytes;
}

absl::StatusOr<PeerMemory> PeerMemory::Open(int descriptor, size_t bytes) {
  const absl::StatusOr<CUdevice> device = CurrentDevice();
  if (!device.ok()) return device.status();
  const absl::StatusOr<size_t> rounded = RoundUpToGranularity(*device, bytes);
  if (!rounded.ok()) return rounded.status();
  CUmemGenericAllocationHandle allocation = 0;
  void* handle = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
  if (absl::Status s =
          Api().Check(Api().cuMemImportFromShareableHandle(
                          &allocation, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                      "opening another rank's memory");
      !s.ok()) {
    return s;
  }
  PeerMemory memory;
  memory.kind_ = Kind::kMapped;
  memory.bytes_ = *rounded;
  memory.allocation_ = allocation;
  if (absl::Status s = memory.Map(); !s.ok()) return s;
  return memory;
}

absl::StatusOr<PeerMemory> PeerMemory::Open(const IpcHandle& handle) {
  CUipcMemHandle ipc = {};
  std::memcpy(&ipc, handle.data(), sizeof(ipc));
  CUdeviceptr address = 0;
  if (absl::Status s =
          Api().Check(Api().cuIpcOpenMemHandle(&address, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                      "opening another rank's memory by CUDA IPC");
      !s.ok()) {
    return s;
  }
  PeerMemory memory;
  memory.kind_ = Kind::kIpcOpened;
  memory.address_ = address;
  return memory;
}

PeerMemory::~PeerMemory() {
  switch (kind_) {
    case Kind::kNone:
      return;
    case Kind::kAllocated:
      Api().cuMemFree(address_);
      return;
    case Kind::kIpcOpened:
      Api().cuIpcCloseMemHandle(address_);
      return;
    case Kind::kMapped:
      if (address_ != 0) {
        Api().cuMemUnmap(address_, bytes_);
        Api().cuMemAddressFree(address_, bytes_);
      }
      Api().cuMemRelease(allocation_);
      return;
  }
}

}  // namespace quartet::cuda
