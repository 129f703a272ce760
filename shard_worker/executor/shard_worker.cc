#include "shard_worker/executor/shard_worker.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "proto/quartet/v1/worker.pb.h"
#include "services/common/admin_server.h"
#include "services/common/log.h"
#include "services/common/metrics.h"
#include "services/common/status_channel.h"
#include "shard_worker/checkpoint/decode_check.h"
#include "shard_worker/checkpoint/read_ahead.h"
#include "shard_worker/checkpoint/synthetic.h"
#include "shard_worker/checkpoint/weights.h"
#include "shard_worker/collectives/collectives.h"
#include "shard_worker/executor/coordinator_link.h"
#include "shard_worker/executor/device.h"
#include "shard_worker/executor/executor.h"
#include "shard_worker/executor/host_memory.h"
#include "shard_worker/executor/rank_tiers.h"
#include "shard_worker/executor/worker_metrics.h"
#include "shard_worker/memory/pools.h"
#include "shard_worker/model/decode_probe.h"
#include "shard_worker/model/model.h"
#include "shard_worker/model/status_macros.h"

namespace quartet {
namespace {

constexpr char kBuild[] = "quartet 0.1.0";
constexpr uint32_t kSchemaVersion = 1;
constexpr int kTensorParallelSizes[] = {1, 2, 4, 8};
constexpr uint32_t kMaxBatchedTokens = 65536;
// Ranks load at different speeds, on a shared disk or a busy machine by minutes.
constexpr absl::Duration kRendezvousPatience = absl::Minutes(10);
constexpr absl::Duration kRendezvousPoll = absl::Milliseconds(50);
constexpr absl::Duration kCloseGrace = absl::Seconds(1);
constexpr absl::Duration kProgressInterval = absl::Milliseconds(200);
// Reading the counts may wait for the device.
constexpr absl::Duration kSaturationInterval = absl::Seconds(1);

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? std::string(name) : std::string("unknown");
}

double Mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

// Folder name, which is what clients call the model by default.
std::string ModelName(const std::string& dir) {
  std::filesystem::path path = std::filesystem::path(dir).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().string();
}

}  // namespace

class ShardWorker::Impl {
 public:
  explicit Impl(const ShardWorkerOptions& options)
      : options_(options),
        status_(options.status_fd),
        metrics_(MakeMetrics()),
        worker_metrics_(*metrics_) {}

  absl::Status Run() {
    absl::Status status = RunSteps();
    // A stop makes everything else fail; those failures are its consequences.
    if (stop_.load()) status = absl::OkStatus();
    if (!status.ok()) {
      LogError(std::string(status.message()));
      status_.Error(std::string(status.message()));
    }
    std::lock_guard lock(mutex_);
    if (collectives_ != nullptr) collectives_->Abort("this worker ends");
    if (link_ != nullptr) {
      if (!status.ok()) {
        v1::FromWorker message;
        message.mutable_failure()->set_message(std::string(status.message()));
        message.mutable_failure()->set_bad_checkpoint(bad_checkpoint_);
        link_->Send(message);
      }
      link_->Close(kCloseGrace);
    }
    return status;
  }

  void Stop() {
    stop_.store(true);
    std::lock_guard lock(mutex_);
    if (collectives_ != nullptr) collectives_->Abort("this worker was asked to stop");
    if (link_ != nullptr) link_->Close(absl::ZeroDuration());
  }

 private:
  absl::Status RunSteps() {
    if (options_.disk_cache_gib > 0 &&
        (options_.disk_cache_dir.empty() || options_.host_cache_gib <= 0)) {
      return absl::InvalidArgumentError(
          "--disk-cache-gib needs a folder, --disk-cache-dir, and host memory on the way to it, "
          "--host-cache-gib");
    }
    QUARTET_ASSIGN(device_, OpenWorkerDevice(options_.device));
    LogInfo(absl::StrCat("computes on ", device_->description()));
    if (absl::Status s = CheckCheckpoint(); !s.ok()) {
      bad_checkpoint_ = true;
      return s;
    }
    QUARTET_RETURN_IF_ERROR(StartAdmin());
    QUARTET_RETURN_IF_ERROR(Dial());
    v1::Welcome welcome;
    QUARTET_ASSIGN(welcome, AwaitWelcome());
    QUARTET_RETURN_IF_ERROR(Load(welcome));
    QUARTET_RETURN_IF_ERROR(JoinGroup(welcome));
    return Serve(welcome);
  }

  // Headers only: a checkpoint that cannot be served is found before a weight is read.
  absl::Status CheckCheckpoint() {
    SetStage("reading checkpoint headers");
    QUARTET_ASSIGN(config_, ReadModelConfig(options_.model_dir));
    if (options_.synthetic_weights) {
      QUARTET_ASSIGN(checkpoint_, MakeSyntheticCheckpoint(config_, options_.model_dir));
    } else {
      QUARTET_ASSIGN(checkpoint_, Checkpoint::Open(options_.model_dir));
    }
    QUARTET_ASSIGN(digest_, checkpoint_->Digest());
    absl::Status first_error;
    for (const int tp : kTensorParallelSizes) {
      absl::Status fits = CheckTensorParallel(config_, tp);
      absl::StatusOr<ModelWeights> weights =
          fits.ok() ? ResolveWeights(*checkpoint_, config_, tp, 0) : fits;
      if (!weights.ok()) {
        // What is wrong at one rank is wrong with the checkpoint; what is wrong at more of them is
        // a limit of the cut.
        if (tp == 1) return weights.status();
        continue;
      }
      v1::MemoryOffer& offer = offers_.emplace_back();
      offer.set_tensor_parallel_size(tp);
      offer.set_budget_bytes(options_.memory_gib > 0
                                 ? static_cast<uint64_t>(options_.memory_gib * (1 << 30))
                                 : device_->memory_bytes() / device_->sharers(tp));
      offer.set_weight_bytes(device_->WeightBytes(*checkpoint_, *weights));
      offer.set_slot_bytes(StateSlotBytes(config_, tp, kMaxDraftTokens) + TokenCountBytes(config_));
      offer.set_snapshot_bytes(SnapshotBytes(config_, tp));
      offer.set_page_bytes(PageBytes(config_, options_.kv_dtype));
      offer.set_activation_bytes_per_token(device_->ActivationBytesPerToken(
          config_, tp, static_cast<int64_t>(offer.weight_bytes()), options_.kv_dtype));
      offer.set_page_tokens(kTokensPerPage);
      offer.set_host_cache_bytes(static_cast<uint64_t>(options_.host_cache_gib * (1 << 30)));
      offer.set_disk_cache_bytes(static_cast<uint64_t>(options_.disk_cache_gib * (1 << 30)));
    }
    return absl::OkStatus();
  }

  absl::Status StartAdmin() {
    if (options_.listen_admin.empty()) return absl::OkStatus();
    AdminHandlers handlers;
    handlers.metrics = [this] { return metrics_->Expose(); };
    handlers.not_ready_reason = [this] {
      std::lock_guard lock(mutex_);
      return ready_ ? std::string() : stage_;
    };
    absl::StatusOr<std::unique_ptr<AdminServer>> admin =
        StartAdminServer(options_.listen_admin, std::move(handlers));
    if (!admin.ok()) {
      return absl::Status(admin.status().code(),
                          absl::StrCat("--listen-admin: ", admin.status().message()));
    }
    admin_ = *std::move(admin);
    status_.Listening("admin", admin_->address());
    return absl::OkStatus();
  }

  absl::Status Dial() {
    SetStage("waiting for the coordinator");
    DialOptions dial;
    dial.address = options_.coordinator;
    dial.stop = [this] { return stop_.load(); };
    dial.on_end = [this](const std::string& reason) {
      std::lock_guard lock(collectives_mutex_);
      end_reason_ = reason;
      if (group_ != nullptr) group_->Abort(reason);
    };
    absl::StatusOr<std::unique_ptr<CoordinatorLink>> link = DialCoordinator(dial);
    if (!link.ok()) return link.status();
    {
      std::lock_guard lock(mutex_);
      link_ = *std::move(link);
    }
    if (stop_.load()) return absl::CancelledError("asked to stop");

    v1::FromWorker message;
    v1::Hello& hello = *message.mutable_hello();
    const std::string host = HostName();
    hello.set_device_uuid(device_->uuid());
    hello.set_build(kBuild);
    hello.set_previous_rank(-1);
    hello.set_checkpoint_digest(digest_);
    hello.set_host(host);
    hello.set_schema_version(kSchemaVersion);
    v1::ModelInfo& info = *hello.mutable_model();
    info.set_name(ModelName(options_.model_dir));
    info.set_vocab_size(config_.vocab_size);
    info.set_num_layers(config_.layers);
    info.set_max_position_embeddings(config_.max_position_embeddings);
    info.set_hidden_size(config_.hidden);
    info.set_num_mtp_layers(config_.mtp_layers);
    for (const v1::MemoryOffer& offer : offers_) *hello.add_offers() = offer;
    if (!link_->Send(message)) return StreamEnded();
    return absl::OkStatus();
  }

  absl::StatusOr<v1::Welcome> AwaitWelcome() {
    SetStage("waiting for a rank");
    while (std::optional<v1::ToWorker> message = link_->Next()) {
      if (message->has_welcome()) {
        QUARTET_RETURN_IF_ERROR(CheckWelcome(message->welcome()));
        return message->welcome();
      }
      if (message->has_refused()) {
        return absl::FailedPreconditionError(
            absl::StrCat("the coordinator refused this worker: ", message->refused().reason()));
      }
      if (message->has_spare()) {
        SetStage("spare: all ranks are taken");
        LogInfo("all ranks are taken; waiting as a spare");
        continue;
      }
      if (message->has_abort()) return StreamEnded();
      return Unexpected(*message, "Welcome");
    }
    return StreamEnded();
  }

  absl::Status CheckWelcome(const v1::Welcome& welcome) const {
    const auto bad = [](const auto&... parts) {
      return absl::InvalidArgumentError(absl::StrCat("the coordinator's welcome: ", parts...));
    };
    const v1::MemoryOffer* offer = nullptr;
    for (const v1::MemoryOffer& o : offers_) {
      if (o.tensor_parallel_size() == welcome.tensor_parallel_size()) offer = &o;
    }
    if (offer == nullptr) {
      return bad("tensor_parallel_size ", welcome.tensor_parallel_size(), " was not offered");
    }
    if (welcome.rank() >= welcome.tensor_parallel_size()) {
      return bad("rank ", welcome.rank(), " of ", welcome.tensor_parallel_size());
    }
    const v1::PoolSizes& pools = welcome.pools();
    if (pools.slots() == 0 || pools.pages() == 0) {
      return bad(pools.slots(), " slots and ", pools.pages(), " pages, expected at least one each");
    }
    if (welcome.max_num_batched_tokens() == 0 ||
        welcome.max_num_batched_tokens() > kMaxBatchedTokens) {
      return bad("max_num_batched_tokens is ", welcome.max_num_batched_tokens(), ", expected 1 to ",
                 kMaxBatchedTokens);
    }
    if (welcome.max_model_len() == 0 || welcome.max_model_len() > config_.max_position_embeddings) {
      return bad("max_model_len is ", welcome.max_model_len(), ", expected 1 to ",
                 config_.max_position_embeddings, " (max_position_embeddings)");
    }
    const double planned =
        static_cast<double>(offer->weight_bytes()) +
        static_cast<double>(pools.slots()) * static_cast<double>(offer->slot_bytes()) +
        static_cast<double>(pools.pages()) * static_cast<double>(offer->page_bytes()) +
        static_cast<double>(pools.snapshots()) * static_cast<double>(offer->snapshot_bytes()) +
        static_cast<double>(welcome.max_num_batched_tokens()) *
            static_cast<double>(offer->activation_bytes_per_token());
    if (planned > static_cast<double>(offer->budget_bytes())) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "the coordinator's welcome asks for %.1f MiB (%d slots, %d pages, %d snapshots), the "
          "budget is %.1f MiB; raise --memory-gib or lower --max-model-len or --max-num-seqs",
          planned / (1 << 20), pools.slots(), pools.pages(), pools.snapshots(),
          static_cast<double>(offer->budget_bytes()) / (1 << 20)));
    }
    const double cached =
        static_cast<double>(pools.host_pages()) * static_cast<double>(offer->page_bytes()) +
        static_cast<double>(pools.host_snapshots()) * static_cast<double>(offer->snapshot_bytes());
    if (cached > static_cast<double>(offer->host_cache_bytes())) {
      return bad(pools.host_pages(), " pages and ", pools.host_snapshots(),
                 " snapshots in host memory were not offered (--host-cache-gib)");
    }
    if (pools.disk_pages() > 0 && (offer->disk_cache_bytes() == 0 || pools.host_pages() == 0)) {
      return bad("a tier on disk was not offered, or not without one in host memory");
    }
    return absl::OkStatus();
  }

  absl::Status Load(const v1::Welcome& welcome) {
    const int tp = static_cast<int>(welcome.tensor_parallel_size());
    SetStage("loading weights");
    LogInfo(absl::StrCat("epoch ", welcome.epoch(), ": rank ", welcome.rank(), " of ", tp));
    ModelWeights weights;
    QUARTET_ASSIGN(weights, ResolveWeights(*checkpoint_, config_, tp, welcome.rank()));

    int threads = options_.threads;
    if (threads == 0) {
      threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / tp);
    }
    PoolOptions pool_options;
    pool_options.slots = static_cast<int>(welcome.pools().slots());
    pool_options.pages = static_cast<int>(welcome.pools().pages());
    pool_options.snapshots = static_cast<int>(welcome.pools().snapshots());
    BackendLimits limits;
    limits.threads = threads;
    limits.max_rows = static_cast<int>(welcome.max_num_batched_tokens());
    limits.max_segments = pool_options.slots + kMaxInnerExports;
    const int64_t context = static_cast<int64_t>(welcome.max_model_len()) + kMaxDraftTokens;
    limits.max_pages =
        static_cast<int>((context + kTokensPerPage - 1) / kTokensPerPage) * pool_options.slots;
    QUARTET_ASSIGN(backend_, device_->MakeBackend(limits));
    const absl::Status decodes = CheckDecoding(
        weights, [this](const Exl3View& view) { return DecodeBlock(*backend_, view); });
    if (!decodes.ok()) return decodes;
    pool_options.draft_tokens = kMaxDraftTokens;
    pool_options.kv_dtype = options_.kv_dtype;
    QUARTET_ASSIGN(pools_, Pools::Create(config_, tp, pool_options, *backend_));
    worker_metrics_.SetPoolSizes(pool_options.slots, pool_options.pages);
    const std::string numerics =
        absl::StrCat(kBuild, " checkpoint ", digest_, " rank ", welcome.rank(), " of ", tp, " kv ",
                     static_cast<int>(options_.kv_dtype), " device ", options_.device.device, " ",
                     options_.device.gpu_image, options_.synthetic_weights ? " synthetic" : "",
                     options_.device.batch_invariant ? " batch-invariant" : "");
    QUARTET_ASSIGN(tiers_, OpenRankTiers({.disk_folder = options_.disk_cache_dir,
                                          .numerics = numerics,
                                          .corrupt_copies = options_.corrupt_copies},
                                         welcome, *pools_, *backend_));

    ReadAheadOptions read_options;
    const int64_t memory = HostMemoryBytes();
    read_options.window_bytes = std::min(read_options.window_bytes, memory / 4);
    read_options.drop_behind = static_cast<int64_t>(checkpoint_->data_bytes()) > memory / 2;
    ReadAhead reader(ListReadRuns(weights), read_options, MakeFileSource());

    const absl::Time begin = absl::Now();
    absl::Time last_report = absl::InfinitePast();
    size_t parts_done = 0;
    QUARTET_ASSIGN(
        ops_, LoadModelOps(config_, weights, *backend_, [&](const LoadStep& step) {
          if (stop_.load()) return absl::CancelledError("asked to stop");
          if (std::string reason = link_->end_reason(); !reason.empty()) {
            return absl::UnavailableError(reason);
          }
          const absl::Time now = absl::Now();
          if (step.done_bytes == step.total_bytes || now - last_report >= kProgressInterval) {
            last_report = now;
            ReportLoading(step);
          }
          return reader.Finished(parts_done++);
        }));
    const ReadAhead::Stats read = reader.stats();
    LogInfo(
        absl::StrFormat("loaded the weights in %.2f s with %d threads; read %.1f MiB of files "
                        "at %.0f MB/s",
                        absl::ToDoubleSeconds(absl::Now() - begin), threads, Mib(read.bytes),
                        static_cast<double>(read.bytes) / 1e6 / std::max(read.seconds, 1e-9)));
    return absl::OkStatus();
  }

  void ReportLoading(const LoadStep& step) {
    status_.Progress("loading weights", step.done_bytes, step.total_bytes);
    v1::FromWorker message;
    message.mutable_progress()->set_stage("loading weights");
    message.mutable_progress()->set_done_bytes(step.done_bytes);
    message.mutable_progress()->set_total_bytes(step.total_bytes);
    link_->Send(message);
  }

  absl::Status JoinGroup(const v1::Welcome& welcome) {
    SetStage("waiting for the other ranks");
    std::shared_ptr<Collectives> group;
    if (welcome.tensor_parallel_size() == 1) {
      group = MakeSingleRank();
    } else {
      SharedMemoryOptions shared;
      if (!welcome.rendezvous().segment_folder().empty()) {
        shared.folder = welcome.rendezvous().segment_folder();
      }
      shared.name = welcome.rendezvous().segment_name();
      shared.epoch = welcome.epoch();
      shared.rank = static_cast<int>(welcome.rank());
      shared.size = static_cast<int>(welcome.tensor_parallel_size());
      // The ranks wait for each other in a group of their own, which can be left; then all are here
      // and the group that sums is opened at once.
      SharedMemoryOptions meeting = shared;
      meeting.name += ".meeting";
      meeting.open_timeout = kRendezvousPatience;
      absl::StatusOr<std::unique_ptr<Collectives>> met = OpenUnlessEnded(meeting);
      if (!met.ok()) return met.status();
      absl::StatusOr<std::unique_ptr<Collectives>> opened = device_->OpenGroup(shared);
      if (!opened.ok()) return opened.status();
      group = *std::move(opened);
    }
    {
      std::lock_guard lock(mutex_);
      collectives_ = group;
    }
    std::lock_guard lock(collectives_mutex_);
    group_ = group;
    if (!end_reason_.empty()) return absl::UnavailableError(end_reason_);
    return absl::OkStatus();
  }

  // Opening waits for the slowest rank and cannot be cut short, so it is done on a thread that is
  // left behind when the stream ends or this worker is asked to stop: the process ends right after.
  absl::StatusOr<std::unique_ptr<Collectives>> OpenUnlessEnded(const SharedMemoryOptions& shared) {
    struct Opening {
      std::mutex mutex;
      std::condition_variable opened;
      std::optional<absl::StatusOr<std::unique_ptr<Collectives>>> result;  // guarded by mutex
    };
    auto opening = std::make_shared<Opening>();
    std::thread([opening, shared] {
      auto result = OpenSharedMemory(shared);
      std::lock_guard lock(opening->mutex);
      opening->result = std::move(result);
      opening->opened.notify_all();
    }).detach();
    std::unique_lock lock(opening->mutex);
    const auto opened = [&] { return opening->result.has_value(); };
    while (!opening->opened.wait_for(lock, absl::ToChronoMilliseconds(kRendezvousPoll), opened)) {
      absl::Status end;
      if (stop_.load()) {
        end = absl::CancelledError("asked to stop");
      } else if (std::string reason = link_->end_reason(); !reason.empty()) {
        end = absl::UnavailableError(reason);
      }
      if (end.ok()) continue;
      // A group that never came together leaves its file behind.
      std::error_code ignored;
      std::filesystem::remove(std::filesystem::path(shared.folder) / shared.name, ignored);
      return end;
    }
    return *std::move(opening->result);
  }

  absl::Status Serve(const v1::Welcome& welcome) {
    StepLimits limits;
    limits.max_rows = static_cast<int>(welcome.max_num_batched_tokens());
    limits.max_context = static_cast<int>(welcome.max_model_len()) + kMaxDraftTokens;
    QUARTET_ASSIGN(
        model_, Model::Create(config_, std::move(ops_), *backend_, *pools_, *collectives_, limits));
    // Decode steps, and windows of as many rows in every sequence.
    const int longest = model_->has_mtp() ? 1 + kMaxDraftTokens : 1;
    for (int rows = 1; rows <= longest; ++rows) {
      for (int n = 1; n <= std::min(kMaxRecordedRows / rows, pools_->options().slots); ++n) {
        QUARTET_RETURN_IF_ERROR(model_->RecordTrunk(std::vector<int>(n, rows)));
      }
    }
    LogInfo(
        absl::StrFormat("memory: %.1f MiB of slots, %.1f MiB of pages, %.1f MiB of step buffers",
                        Mib(pools_->slot_bytes() * pools_->options().slots),
                        Mib(pools_->page_bytes() * pools_->options().pages),
                        Mib(static_cast<int64_t>(model_->activations().memory.bytes()))));
    Executor executor({.epoch = welcome.epoch(),
                       .rank = static_cast<int>(welcome.rank()),
                       .max_model_len = welcome.max_model_len(),
                       .spoiler = options_.spoiler},
                      *model_, *pools_,
                      LowerTiers{.host = tiers_.host.get(), .disk = tiers_.disk.get()});
    for (const v1::FromWorker& inventory : TakeInventory(tiers_)) {
      if (!link_->Send(inventory)) return StreamEnded();
    }
    v1::FromWorker ready;
    ready.mutable_ready()->set_epoch(welcome.epoch());
    if (!link_->Send(ready)) return StreamEnded();
    SetReady();

    while (std::optional<v1::ToWorker> message = link_->Next()) {
      switch (message->message_case()) {
        case v1::ToWorker::kOpen:
          if (absl::Status s = executor.Open(message->open()); !s.ok()) {
            if (absl::IsResourceExhausted(s)) return s;
            LogWarning(std::string(s.message()));
          }
          break;
        case v1::ToWorker::kClose:
          if (absl::Status s = executor.Close(message->close()); !s.ok())
            LogWarning(std::string(s.message()));
          UpdateMetrics(executor);
          break;
        case v1::ToWorker::kPlan: {
          v1::FromWorker answer;
          QUARTET_ASSIGN(*answer.mutable_result(), executor.Execute(message->plan()));
          if (!answer.result().error().empty()) LogWarning(answer.result().error());
          // Counted before the result leaves, so that who has the result finds it counted.
          worker_metrics_.Step(message->plan(), answer.result());
          UpdateMetrics(executor);
          if (!link_->Send(answer)) return StreamEnded();
          break;
        }
        case v1::ToWorker::kDumpRequest: {
          v1::FromWorker answer;
          *answer.mutable_dump() = executor.Dump(message->dump_request());
          if (!link_->Send(answer)) return StreamEnded();
          break;
        }
        case v1::ToWorker::kAbort:
          return StreamEnded();
        default:
          return Unexpected(*message, "a plan");
      }
    }
    return StreamEnded();
  }

  void UpdateMetrics(const Executor& executor) {
    const absl::Time now = absl::Now();
    if (now - saturation_read_ >= kSaturationInterval) {
      saturation_read_ = now;
      saturated_ = backend_->saturation_counts();
    }
    worker_metrics_.Update(executor, saturated_.f16, saturated_.e4m3);
    if (!disk_failure_logged_ && executor.copy_stats().disk_writes_failed > 0) {
      disk_failure_logged_ = true;
      LogWarning(absl::StrCat("cached prefixes are lost: ", tiers_.disk->stats().first_failure));
    }
  }

  absl::Status StreamEnded() const { return absl::UnavailableError(link_->end_reason()); }

  static absl::Status Unexpected(const v1::ToWorker& message, const char* expected) {
    const auto* field =
        v1::ToWorker::descriptor()->FindFieldByNumber(static_cast<int>(message.message_case()));
    return absl::InvalidArgumentError(
        absl::StrCat("the coordinator sent ", field == nullptr ? "an empty message" : field->name(),
                     ", expected ", expected));
  }

  void SetStage(const char* stage) {
    std::lock_guard lock(mutex_);
    stage_ = stage;
  }

  void SetReady() {
    {
      std::lock_guard lock(mutex_);
      ready_ = true;
    }
    LogInfo("ready");
    status_.Ready();
  }

  const ShardWorkerOptions options_;
  const StatusChannel status_;
  const std::unique_ptr<Metrics> metrics_;
  WorkerMetrics worker_metrics_;
  std::atomic<bool> stop_{false};
  bool bad_checkpoint_ = false;

  ModelConfig config_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::string digest_;
  std::vector<v1::MemoryOffer> offers_;

  std::unique_ptr<WorkerDevice> device_;
  std::unique_ptr<ops::Backend> backend_;
  ops::SaturationCounts saturated_;
  absl::Time saturation_read_ = absl::InfinitePast();
  std::unique_ptr<Pools> pools_;
  RankTiers tiers_;
  bool disk_failure_logged_ = false;
  ModelOps ops_;

  std::mutex mutex_;
  std::string stage_;   // guarded by mutex_
  bool ready_ = false;  // guarded by mutex_
  // Set once each by the compute thread, read by Stop. The compute thread reads them unlocked.
  std::shared_ptr<Collectives> collectives_;
  std::unique_ptr<CoordinatorLink> link_;

  // Apart from mutex_, since the reader thread takes it while Run closes the link.
  std::mutex collectives_mutex_;
  std::shared_ptr<Collectives> group_;  // guarded by collectives_mutex_
  std::string end_reason_;              // guarded by collectives_mutex_

  std::unique_ptr<Model> model_;
  std::unique_ptr<AdminServer> admin_;
};

ShardWorker::ShardWorker(const ShardWorkerOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
ShardWorker::~ShardWorker() = default;
absl::Status ShardWorker::Run() {
  return impl_->Run();
}
void ShardWorker::Stop() {
  impl_->Stop();
}

}  // namespace quartet
