#include "kernels/cuda/driver_device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/driver_api.h"
#include "kernels/cuda/images.h"

namespace quartet::cuda {
namespace {

class DriverKernel final : public Kernel {
 public:
  DriverKernel(std::string name, CUfunction function, size_t param_bytes)
      : name(std::move(name)), function(function), param_bytes_(param_bytes) {}
  size_t param_bytes() const override { return param_bytes_; }

  const std::string name;
  const CUfunction function;
  size_t max_shared_bytes = 0;  // dynamic, as announced

 private:
  const size_t param_bytes_;
};

class DriverFence final : public Fence {
 public:
  DriverFence(const DriverApi& api, CUevent event) : event(event), api_(api) {}
  ~DriverFence() override { api_.cuEventDestroy(event); }

  const CUevent event;

 private:
  const DriverApi& api_;
};

class DriverGraph final : public Graph {
 public:
  DriverGraph(const DriverApi& api, CUgraphExec exec) : exec(exec), api_(api) {}
  ~DriverGraph() override { api_.cuGraphExecDestroy(exec); }

  const CUgraphExec exec;

 private:
  const DriverApi& api_;
};

class DriverDevice final : public Device {
 public:
  explicit DriverDevice(const DriverApi& api) : api_(api) {}

  ~DriverDevice() override {
    for (CUstream stream : {sides_[0].stream, sides_[1].stream, stream_}) {
      if (stream == nullptr) continue;
      api_.cuStreamSynchronize(stream);
      api_.cuStreamDestroy(stream);
    }
    for (const SideStream& side : sides_) {
      if (side.event != nullptr) api_.cuEventDestroy(side.event);
    }
    for (void* pinned : pinned_) api_.cuMemFreeHost(pinned);
    for (const Image& image : images_) {
      if (image.module != nullptr) api_.cuModuleUnload(image.module);
    }
    if (context_ != nullptr) api_.cuDevicePrimaryCtxRelease(device_);
  }

  absl::Status Open(const DriverOptions& options) {
    const auto check = [&](CUresult result, const char* what) { return api_.Check(result, what); };
    if (absl::Status s = check(api_.cuDeviceGet(&device_, options.ordinal), "opening the GPU");
        !s.ok()) {
      return s;
    }
    if (absl::Status s =
            check(api_.cuDevicePrimaryCtxRetain(&context_, device_), "making a CUDA context");
        !s.ok()) {
      return s;
    }
    if (absl::Status s = check(api_.cuCtxSetCurrent(context_), "using the CUDA context"); !s.ok()) {
      return s;
    }
    ReadInfo();
    if (absl::Status s = MakeStreams(); !s.ok()) return s;
    return LoadImages(options.image);
  }

  const DeviceInfo& info() const override { return info_; }

  absl::StatusOr<Buffer> Allocate(size_t bytes, std::string_view what) override {
    CUdeviceptr data = 0;
    const absl::Status status =
        api_.Check(api_.cuMemAlloc(&data, std::max<size_t>(bytes, 1)), what);
    if (!status.ok()) {
      size_t free = 0;
      size_t total = 0;
      api_.cuMemGetInfo(&free, &total);
      return absl::Status(
          status.code(),
          absl::StrFormat("%s: %.1f MiB of device memory wanted, %.1f of %.1f MiB are free (%s)",
                          std::string(what), Mib(bytes), Mib(free), Mib(total),
                          std::string(status.message())));
    }
    return Buffer(this, reinterpret_cast<void*>(data), bytes);
  }

  absl::StatusOr<const Kernel*> Find(const char* name, size_t max_shared_bytes) override {
    auto& entry = kernels_[name];
    if (entry == nullptr) {
      CUfunction function = nullptr;
      if (absl::Status s = FindFunction(name, function); !s.ok()) {
        kernels_.erase(name);
        return s;
      }
      size_t offset = 0;
      size_t bytes = 0;
      if (absl::Status s = api_.Check(api_.cuFuncGetParamInfo(function, 0, &offset, &bytes), name);
          !s.ok()) {
        return s;
      }
      entry = std::make_unique<DriverKernel>(name, function, bytes);
    }
    if (max_shared_bytes > entry->max_shared_bytes) {
      if (max_shared_bytes > info_.shared_bytes_per_block) {
        return absl::ResourceExhaustedError(
            absl::StrCat("kernel ", name, " wants ", max_shared_bytes,
                         " bytes of shared memory, a block of this GPU has at most ",
                         info_.shared_bytes_per_block));
      }
      if (absl::Status s =
              api_.Check(api_.cuFuncSetAttribute(entry->function,
                                                 CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                 static_cast<int>(max_shared_bytes)),
                         name);
          !s.ok()) {
        return s;
      }
      entry->max_shared_bytes = max_shared_bytes;
    }
    return entry.get();
  }

  void Copy(void* to, const void* from, size_t bytes) override {
    Keep(api_.cuMemcpyDtoDAsync(At(to), At(from), bytes, Stream()), "copying on the device");
  }
  void Fill(void* to, uint8_t value, size_t bytes) override {
    Keep(api_.cuMemsetD8Async(At(to), value, bytes, Stream()), "filling device memory");
  }

  void Fork(Side side, absl::FunctionRef<void()> work) override {
    SideStream& to = sides_[static_cast<int>(side)];
    Keep(api_.cuEventRecord(to.event, stream_), "recording an event");
    Keep(api_.cuStreamWaitEvent(to.stream, to.event, 0), "forking the stream");
    after_kernel_ = false;
    to.is_forked = true;
    std::swap(stream_, to.stream);
    std::swap(priority_, to.priority);
    work();
    std::swap(stream_, to.stream);
    std::swap(priority_, to.priority);
    after_kernel_ = false;
  }
  void Join() override {
    for (SideStream& side : sides_) {
      if (!side.is_forked) continue;
      Keep(api_.cuEventRecord(side.event, side.stream), "recording an event");
      Keep(api_.cuStreamWaitEvent(stream_, side.event, 0), "joining the streams");
      after_kernel_ = false;
      side.is_forked = false;
    }
  }

  absl::Status CopyIn(void* to, const void* from, size_t bytes) override {
    Join();
    Keep(api_.cuMemcpyHtoDAsync(At(to), from, bytes, Stream()), "copying to the device");
    return Synchronize();
  }
  absl::Status CopyOut(void* to, const void* from, size_t bytes) override {
    Join();
    Keep(api_.cuMemcpyDtoHAsync(to, At(from), bytes, Stream()), "copying from the device");
    return Synchronize();
  }

  absl::StatusOr<void*> AllocatePinned(size_t bytes, std::string_view what) override {
    void* data = nullptr;
    if (absl::Status s = api_.Check(api_.cuMemAllocHost(&data, bytes), what); !s.ok()) return s;
    pinned_.push_back(data);
    return data;
  }
  void CopyInAsync(void* to, const void* pinned, size_t bytes) override {
    Keep(api_.cuMemcpyHtoDAsync(At(to), pinned, bytes, Stream()), "copying to the device");
  }

  absl::StatusOr<std::unique_ptr<Fence>> MakeFence() override {
    CUevent event = nullptr;
    if (absl::Status s =
            api_.Check(api_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "making an event");
        !s.ok()) {
      return s;
    }
    return std::make_unique<DriverFence>(api_, event);
  }
  void Place(Fence& fence) override {
    Join();
    Keep(api_.cuEventRecord(static_cast<DriverFence&>(fence).event, Stream()),
         "recording an event");
  }
  absl::Status Await(Fence& fence) override {
    Keep(api_.cuEventSynchronize(static_cast<DriverFence&>(fence).event), "running on the device");
    return status_;
  }

  absl::Status Synchronize() override {
    Join();
    Keep(api_.cuStreamSynchronize(Stream()), "running on the device");
    return status_;
  }

  void* NativeStream() override { return Stream(); }

  absl::StatusOr<std::unique_ptr<Graph>> Capture(absl::FunctionRef<void()> work) override {
    Join();
    Keep(api_.cuStreamBeginCapture(Stream(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
         "beginning a graph");
    if (!status_.ok()) return status_;
    work();
    Join();
    CUgraph graph = nullptr;
    Keep(api_.cuStreamEndCapture(Stream(), &graph), "ending a graph");
    if (!status_.ok()) return status_;
    CUgraphExec exec = nullptr;
    // Otherwise both branches would run at the priority of the stream that launches the graph.
    Keep(api_.cuGraphInstantiateWithFlags(&exec, graph,
                                          CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY),
         "making a graph");
    api_.cuGraphDestroy(graph);
    if (!status_.ok()) return status_;
    return std::make_unique<DriverGraph>(api_, exec);
  }
  void Replay(const Graph& graph) override {
    Join();
    Keep(api_.cuGraphLaunch(static_cast<const DriverGraph&>(graph).exec, Stream()),
         "launching a graph");
  }

  absl::StatusOr<double> Milliseconds(absl::FunctionRef<void()> work) override {
    CUevent begin = nullptr;
    CUevent end = nullptr;
    Keep(api_.cuEventCreate(&begin, CU_EVENT_DEFAULT), "making an event");
    Keep(api_.cuEventCreate(&end, CU_EVENT_DEFAULT), "making an event");
    Join();
    Keep(api_.cuEventRecord(begin, Stream()), "recording an event");
    work();
    Join();
    Keep(api_.cuEventRecord(end, Stream()), "recording an event");
    const absl::Status status = Synchronize();
    float milliseconds = 0;
    if (status.ok()) api_.cuEventElapsedTime(&milliseconds, begin, end);
    api_.cuEventDestroy(begin);
    api_.cuEventDestroy(end);
    if (!status.ok()) return status;
    return milliseconds;
  }

 private:
  struct Image {
    const KernelImage* image;
    CUmodule module;  // null until it is loaded
  };
  struct SideStream {
    CUstream stream = nullptr;
    int priority = 0;
    CUevent event = nullptr;  // where it forks off, then where it joins
    bool is_forked = false;   // and not joined yet
  };

  static double Mib(size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }
  static CUdeviceptr At(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

  // The stream, for anything but a kernel of ours: the kernel behind that must not come early.
  CUstream Stream() {
    after_kernel_ = false;
    return stream_;
  }

  void Keep(CUresult result, std::string_view what) {
    if (result != CUDA_SUCCESS && status_.ok()) status_ = api_.Check(result, what);
  }

  int Attribute(CUdevice_attribute attribute) const {
    int value = 0;
    api_.cuDeviceGetAttribute(&value, attribute, device_);
    return value;
  }

  void ReadInfo() {
    char name[256] = {};
    api_.cuDeviceGetName(name, sizeof(name) - 1, device_);
    info_.name = name;
    CUuuid uuid = {};
    api_.cuDeviceGetUuid(&uuid, device_);
    info_.uuid = "GPU-";
    for (const char byte : uuid.bytes) {
      absl::StrAppend(&info_.uuid, absl::Hex(static_cast<unsigned char>(byte), absl::kZeroPad2));
    }
    info_.multiprocessors = Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    info_.shared_bytes_per_block = Attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    info_.l2_bytes = Attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    api_.cuDeviceTotalMem(&info_.memory_bytes, device_);
  }

  absl::Status MakeStreams() {
    int least = 0;
    int greatest = 0;  // the smaller number
    Keep(api_.cuCtxGetStreamPriorityRange(&least, &greatest), "asking for stream priorities");
    priority_ = std::min(least, greatest + 1);
    sides_[static_cast<int>(Side::kAhead)].priority = greatest;
    sides_[static_cast<int>(Side::kBehind)].priority = least;
    const auto make = [&](CUstream* stream, int priority) {
      Keep(api_.cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, priority),
           "making a CUDA stream");
    };
    make(&stream_, priority_);
    for (SideStream& side : sides_) {
      make(&side.stream, side.priority);
      Keep(api_.cuEventCreate(&side.event, CU_EVENT_DISABLE_TIMING), "making an event");
    }
    return status_;
  }

  absl::Status LoadImages(const std::string& image) {
    const std::string card =
        absl::StrCat("sm_", Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                     Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
    if (image != "native" && image != "sm_70") {
      return absl::InvalidArgumentError(
          absl::StrCat("--gpu-image is ", image, ", expected native or sm_70"));
    }
    info_.image = image == "native" ? card : image;
    kernels_overlap_ =
        image == "native" && Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= 9;
    const auto images = image == "native" ? NativeImages() : Sm70Images();
    if (images.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("this program was built without kernels for ", info_.image));
    }
    // Code for this card is loaded at once, which takes a moment. PTX has to be compiled, which
    // takes minutes for all of it, so a source is loaded when its first kernel is looked for.
    const bool is_ptx = image != "native";
    for (const KernelImage& entry : images) {
      images_.push_back({&entry, nullptr});
      if (is_ptx) continue;
      if (absl::Status s = LoadImage(images_.back()); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status LoadImage(Image& image) {
    // Messages of the compiler inside the driver, where it has to compile.
    std::array<char, 2048> log{};
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
    const CUresult result =
        api_.cuModuleLoadDataEx(&image.module, image.image->data, 2, options, values);
    if (result == CUDA_SUCCESS) return absl::OkStatus();
    image.module = nullptr;
    const std::string what = absl::StrCat("loading the ", info_.image, " kernels of ",
                                          image.image->source, " on ", info_.name);
    return absl::FailedPreconditionError(
        absl::StrCat(api_.Check(result, what).message(), log[0] == '\0' ? "" : ": ", log.data()));
  }

  absl::Status FindFunction(const char* name, CUfunction& function) {
    const std::string entry = absl::StrCat(".entry ", name, "(");
    for (Image& image : images_) {
      if (image.module == nullptr) {
        const std::string_view ptx(reinterpret_cast<const char*>(image.image->data),
                                   image.image->bytes);
        if (ptx.find(entry) == std::string_view::npos) continue;
        if (absl::Status s = LoadImage(image); !s.ok()) return s;
      }
      if (api_.cuModuleGetFunction(&function, image.module, name) == CUDA_SUCCESS) {
        return absl::OkStatus();
      }
    }
    return absl::NotFoundError(absl::StrCat("the ", info_.image, " image has no kernel ", name));
  }

  void Free(void* data) override { Keep(api_.cuMemFree(At(data)), "freeing device memory"); }

  void LaunchBytes(const Kernel* kernel, const LaunchShape& shape, const void* params,
                   size_t bytes) override {
    const auto& entry = static_cast<const DriverKernel&>(*kernel);
    if (bytes != entry.param_bytes() || shape.shared_bytes > entry.max_shared_bytes) {
      Keep(CUDA_ERROR_INVALID_VALUE, entry.name);
      return;
    }
    void* arguments[] = {const_cast<void*>(params)};
    CUlaunchAttribute attributes[2] = {};
    // A recorded launch by this function does not have the priority of its stream.
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    attributes[0].value.priority = priority_;
    attributes[1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[1].value.programmaticStreamSerializationAllowed = 1;
    const CUlaunchConfig config = {.gridDimX = shape.grid_x,
                                   .gridDimY = shape.grid_y,
                                   .gridDimZ = shape.grid_z,
                                   .blockDimX = shape.threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .sharedMemBytes = shape.shared_bytes,
                                   .hStream = stream_,
                                   .attrs = attributes,
                                   .numAttrs = kernels_overlap_ && after_kernel_ ? 2u : 1u};
    after_kernel_ = true;
    const CUresult result = api_.cuLaunchKernelEx(&config, entry.function, arguments, nullptr);
    if (result != CUDA_SUCCESS) {
      Keep(result, absl::StrCat("launching ", entry.name, " on ", shape.grid_x, " x ", shape.grid_y,
                                " x ", shape.grid_z, " blocks of ", shape.threads, " threads with ",
                                shape.shared_bytes, " bytes of shared memory"));
    }
  }

  const DriverApi& api_;
  DeviceInfo info_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;  // the side stream while forked work is put on it
  int priority_ = 0;           // of stream_
  std::array<SideStream, 2> sides_;
  bool kernels_overlap_ = false;  // the kernels of the image wait for what is before them
  bool after_kernel_ = false;     // the next kernel may come before one of ours has ended
  std::vector<Image> images_;
  std::vector<void*> pinned_;
  std::map<std::string, std::unique_ptr<DriverKernel>, std::less<>> kernels_;
  absl::Status status_;  // the first thing that went wrong
};

}  // namespace

absl::StatusOr<int> CountDevices() {
  absl::StatusOr<const DriverApi*> api = LoadDriverApi();
  if (!api.ok()) return api.status();
  int count = 0;
  if (absl::Status s = (*api)->Check((*api)->cuDeviceGetCount(&count), "counting GPUs"); !s.ok()) {
    return s;
  }
  return count;
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const DriverOptions& options) {
  absl::StatusOr<const DriverApi*> api = LoadDriverApi();
  if (!api.ok()) return api.status();
  absl::StatusOr<int> count = CountDevices();
  if (!count.ok()) return count.status();
  if (options.ordinal >= *count) {
    return absl::UnavailableError(
        absl::StrCat("GPU ", options.ordinal, " does not exist: there are ", *count));
  }
  auto device = std::make_unique<DriverDevice>(**api);
  if (absl::Status s = device->Open(options); !s.ok()) return s;
  return device;
}

}  // namespace quartet::cuda
