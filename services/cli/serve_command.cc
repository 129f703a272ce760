#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/cli/commands.h"
#include "services/cli/machine.h"
#include "services/cli/run_folder.h"
#include "services/cli/supervisor.h"
#include "services/cli/terminal.h"
#include "services/common/process.h"

namespace quartet::cli {
namespace {

namespace fs = std::filesystem;

// Limits and sizes are optional: what is not given here is each service's own default.
struct ServeFlags {
  std::string model;
  int tensor_parallel_size = 4;
  std::string device = "cpu";
  std::optional<std::string> gpu_image;
  std::string listen_http = "127.0.0.1:8000";
  std::string listen_grpc = "127.0.0.1:0";
  std::string log_level = "info";
  std::string log_dir;
  std::optional<int> max_num_seqs;
  std::optional<int> max_model_len;
  std::optional<int> max_num_batched_tokens;
  std::optional<int> prefill_chunk;
  std::optional<int> prefill_quantum_ms;
  std::optional<double> min_decode_share;
  std::optional<int> max_overtakes;
  std::optional<int> max_wait_s;
  std::optional<int> queue_timeout_s;
  std::optional<int> total_timeout_s;
  bool prefix_caching = true;
  std::optional<std::string> snapshot_policy;
  std::optional<int> num_speculative_tokens;
  std::optional<std::string> spec_dynamic;
  std::optional<int> steps_in_flight;
  std::optional<std::string> spec_sampling;
  std::optional<int> max_queued_requests;
  std::optional<int> step_deadline_ms;
  std::optional<std::string> flight_dir;
  std::optional<std::string> kv_dtype;
  bool batch_invariant = false;
  std::optional<std::string> spoil_drafts;
  std::optional<int> threads;
  std::optional<double> memory_gib;
  std::optional<double> host_cache_gib;
  std::optional<std::string> disk_cache_dir;
  std::optional<double> disk_cache_gib;
  std::optional<int> corrupt_copies;
  std::optional<std::string> served_model_name;
  std::optional<std::string> chat_template;
  std::optional<int> text_threads;
  std::optional<std::string> api_key_file;
  std::optional<int64_t> key_requests;
  std::optional<int64_t> key_tokens;
  std::optional<int64_t> key_requests_per_minute;
  std::optional<int64_t> key_tokens_per_minute;
  std::optional<std::string> cors_allow_origin;
  bool trust_content_tokens = false;
  bool share_cache_between_keys = false;
  bool any_model_name = false;
  bool stop_in_reasoning = false;
  bool nonempty_content = false;
  bool otel_metrics = false;
};

template <typename T>
void Append(std::vector<std::string>& argv, const char* flag, const std::optional<T>& value) {
  if (!value.has_value()) return;
  argv.emplace_back(flag);
  argv.push_back(absl::StrCat(*value));
}

std::vector<std::string> ProgramAndCommonFlags(const fs::path& programs, const char* name,
                                               const ServeFlags& flags) {
  return {(programs / name).string(), "--log-level", flags.log_level,
          "--listen-admin",           "127.0.0.1:0", "--die-with-parent"};
}

// Memory and disk for cached prefixes are the machine's; each worker gets its share.
void AppendCacheFlags(std::vector<std::string>& argv, const ServeFlags& flags) {
  const auto share = [&flags](std::optional<double> gib) {
    if (gib.has_value()) *gib /= flags.tensor_parallel_size;
    return gib;
  };
  std::optional<double> host = flags.host_cache_gib;
  // On a CPU the device's memory is the host's, and what is in it need not be there twice.
  if (!host.has_value() && flags.device == "cuda" && flags.prefix_caching) {
    host = DefaultHostCacheGib(ReadTextFile("/proc/meminfo"));
  }
  Append(argv, "--host-cache-gib", share(host));
  Append(argv, "--disk-cache-dir", flags.disk_cache_dir);
  Append(argv, "--disk-cache-gib", share(flags.disk_cache_gib));
  Append(argv, "--corrupt-copies", flags.corrupt_copies);
}

void Extend(std::vector<std::string>& argv, std::vector<std::string> more) {
  for (std::string& argument : more) argv.push_back(std::move(argument));
}

ClusterSpec MakeCluster(const ServeFlags& flags, const fs::path& programs,
                        const RunFolder& folder) {
  const std::string rendezvous = absl::StrCat("unix:", folder.path(), "/coordinator.sock");
  const auto log_file = [&flags](const std::string& name) {
    return flags.log_dir.empty() ? std::string() : absl::StrCat(flags.log_dir, "/", name, ".log");
  };
  ClusterSpec cluster;

  ChildSpec& coordinator = cluster.coordinator;
  coordinator.title = "coordinator";
  coordinator.log_file = log_file("coordinator");
  coordinator.argv = ProgramAndCommonFlags(programs, "quartet-coordinator", flags);
  Extend(coordinator.argv,
         {"--listen", rendezvous, "--tensor-parallel-size",
          absl::StrCat(flags.tensor_parallel_size), "--segment-folder", folder.segments()});
  Append(coordinator.argv, "--max-num-seqs", flags.max_num_seqs);
  Append(coordinator.argv, "--max-model-len", flags.max_model_len);
  Append(coordinator.argv, "--max-num-batched-tokens", flags.max_num_batched_tokens);
  Append(coordinator.argv, "--prefill-chunk", flags.prefill_chunk);
  Append(coordinator.argv, "--prefill-quantum-ms", flags.prefill_quantum_ms);
  Append(coordinator.argv, "--min-decode-share", flags.min_decode_share);
  Append(coordinator.argv, "--max-overtakes", flags.max_overtakes);
  Append(coordinator.argv, "--max-wait-s", flags.max_wait_s);
  Append(coordinator.argv, "--queue-timeout-s", flags.queue_timeout_s);
  Append(coordinator.argv, "--total-timeout-s", flags.total_timeout_s);
  if (!flags.prefix_caching) Extend(coordinator.argv, {"--no-prefix-caching"});
  Append(coordinator.argv, "--snapshot-policy", flags.snapshot_policy);
  Append(coordinator.argv, "--num-speculative-tokens", flags.num_speculative_tokens);
  Append(coordinator.argv, "--spec-dynamic", flags.spec_dynamic);
  Append(coordinator.argv, "--steps-in-flight", flags.steps_in_flight);
  Append(coordinator.argv, "--spec-sampling", flags.spec_sampling);
  Append(coordinator.argv, "--max-queued-requests", flags.max_queued_requests);
  Append(coordinator.argv, "--step-deadline-ms", flags.step_deadline_ms);
  Append(coordinator.argv, "--flight-dir", flags.flight_dir);

  for (int i = 1; i <= flags.tensor_parallel_size; ++i) {
    ChildSpec worker;
    worker.title = absl::StrCat("shard worker ", i, " of ", flags.tensor_parallel_size);
    worker.log_file = log_file(absl::StrCat("shard-worker-", i));
    worker.argv = ProgramAndCommonFlags(programs, "quartet-shard-worker", flags);
    Extend(worker.argv, {"--coordinator", rendezvous, "--model", flags.model, "--device",
                         flags.device, "--gpu", absl::StrCat(i - 1)});
    Append(worker.argv, "--gpu-image", flags.gpu_image);
    Append(worker.argv, "--threads", flags.threads);
    Append(worker.argv, "--kv-dtype", flags.kv_dtype);
    Append(worker.argv, "--memory-gib", flags.memory_gib);
    if (flags.batch_invariant) worker.argv.emplace_back("--batch-invariant");
    Append(worker.argv, "--spoil-drafts", flags.spoil_drafts);
    AppendCacheFlags(worker.argv, flags);
    cluster.workers.push_back(std::move(worker));
  }

  ChildSpec& gateway = cluster.gateway;
  gateway.title = "gateway";
  gateway.log_file = log_file("gateway");
  gateway.argv = ProgramAndCommonFlags(programs, "quartet-gateway", flags);
  Extend(gateway.argv, {"--coordinator", rendezvous, "--model", flags.model, "--listen-http",
                        flags.listen_http, "--listen-grpc", flags.listen_grpc});
  Append(gateway.argv, "--served-model-name", flags.served_model_name);
  Append(gateway.argv, "--chat-template", flags.chat_template);
  Append(gateway.argv, "--text-threads", flags.text_threads);
  Append(gateway.argv, "--api-key-file", flags.api_key_file);
  Append(gateway.argv, "--key-requests", flags.key_requests);
  Append(gateway.argv, "--key-tokens", flags.key_tokens);
  Append(gateway.argv, "--key-requests-per-minute", flags.key_requests_per_minute);
  Append(gateway.argv, "--key-tokens-per-minute", flags.key_tokens_per_minute);
  Append(gateway.argv, "--cors-allow-origin", flags.cors_allow_origin);
  if (flags.any_model_name) gateway.argv.emplace_back("--any-model-name");
  if (flags.stop_in_reasoning) gateway.argv.emplace_back("--stop-in-reasoning");
  if (flags.nonempty_content) gateway.argv.emplace_back("--nonempty-content");
  if (flags.otel_metrics) gateway.argv.emplace_back("--otel-metrics");
  if (flags.trust_content_tokens) gateway.argv.emplace_back("--trust-content-tokens");
  if (flags.share_cache_between_keys) gateway.argv.emplace_back("--share-cache-between-keys");
  return cluster;
}

// What can be seen to be wrong before any process is started.
absl::Status CheckBeforeStart(const ServeFlags& flags, const fs::path& programs) {
  std::error_code error;
  if (!fs::is_directory(flags.model, error)) {
    return absl::NotFoundError(
        absl::StrCat("--model ", flags.model,
                     " is not a folder; right would be a checkpoint's folder, with config.json and "
                     "*.safetensors in it"));
  }
  if (!fs::exists(fs::path(flags.model) / "config.json", error)) {
    return absl::NotFoundError(
        absl::StrCat("--model ", flags.model, " has no config.json; is it a checkpoint?"));
  }
  for (const auto& [flag, address] : {std::pair("--listen-http", flags.listen_http),
                                      std::pair("--listen-grpc", flags.listen_grpc)}) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": ", parsed.status().message()));
    }
  }
  for (const char* name : {"quartet-coordinator", "quartet-shard-worker", "quartet-gateway"}) {
    if (!fs::exists(programs / name, error)) {
      return absl::NotFoundError(
          absl::StrCat((programs / name).string(), " is missing; it belongs beside this program"));
    }
  }
  if (!flags.log_dir.empty()) {
    fs::create_directories(flags.log_dir, error);
    if (error) {
      return absl::FailedPreconditionError(
          absl::StrCat("--log-dir ", flags.log_dir, ": ", error.message()));
    }
  }
  return absl::OkStatus();
}

int Serve(const ServeFlags& flags) {
  std::error_code error;
  const fs::path programs = fs::read_symlink("/proc/self/exe", error).parent_path();
  const absl::Status ready = error ? absl::InternalError("cannot find this program's own folder")
                                   : CheckBeforeStart(flags, programs);
  if (!ready.ok()) {
    std::cerr << "quartet: " << ready.message() << "\n";
    return 1;
  }
  const char* tmpdir = std::getenv("TMPDIR");
  const std::string temp_root = tmpdir != nullptr && *tmpdir != '\0' ? tmpdir : "/tmp";
  const std::string segment_root = fs::is_directory("/dev/shm", error) ? "/dev/shm" : temp_root;
  RemoveStaleRunFolders(temp_root, segment_root);
  const absl::StatusOr<std::unique_ptr<RunFolder>> folder =
      RunFolder::Create(temp_root, segment_root);
  if (!folder.ok()) {
    std::cerr << "quartet: " << folder.status().message() << "\n";
    return 1;
  }
  const bool terminal = WantsColour(1);
  std::cout << "Starting " << flags.model << " on " << flags.tensor_parallel_size << " shard worker"
            << (flags.tensor_parallel_size == 1 ? "" : "s") << " (" << flags.device << ")\n"
            << std::flush;
  Supervisor supervisor(MakeCluster(flags, programs, **folder), std::cout, std::cerr, terminal,
                        terminal);
  return supervisor.Run();
}

}  // namespace

void AddServeCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* serve = app.add_subcommand(
      "serve", "Start and supervise gateway, coordinator and shard workers on this machine");
  const auto add = [serve](const char* name, auto& value, const char* help) {
    std::string env = "QUARTET_";
    for (const char* c = name + 2; *c != '\0'; ++c) {
      env.push_back(*c == '-' ? '_' : static_cast<char>(std::toupper(*c)));
    }
    return serve->add_option(name, value, help)->envname(env);
  };
  add("--model", flags->model, "The checkpoint's folder")->required();
  add("--tensor-parallel-size", flags->tensor_parallel_size, "Number of shard workers: 1, 2 or 4")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add("--device", flags->device, "What the workers compute on: cpu or cuda")->capture_default_str();
  add("--gpu-image", flags->gpu_image, "Kernels on the GPU: native, or sm_70 for tests");
  add("--listen-http", flags->listen_http, "Address of the HTTP service")->capture_default_str();
  add("--listen-grpc", flags->listen_grpc, "Address of the gRPC service")->capture_default_str();
  add("--max-num-seqs", flags->max_num_seqs, "Sequences that run at once");
  add("--max-model-len", flags->max_model_len, "Longest context, in tokens");
  add("--max-num-batched-tokens", flags->max_num_batched_tokens, "Tokens in one step");
  add("--prefill-chunk", flags->prefill_chunk, "Longest piece of a prompt in one step, in tokens");
  add("--prefill-quantum-ms", flags->prefill_quantum_ms,
      "Longest step that computes prompts while others decode; 0: any");
  add("--min-decode-share", flags->min_decode_share,
      "Share of the time for steps without prompts while others decode, 0 to below 1");
  add("--max-overtakes", flags->max_overtakes, "How often shorter prompts may pass one");
  add("--max-wait-s", flags->max_wait_s, "A prompt that waited so long is not passed any more");
  add("--queue-timeout-s", flags->queue_timeout_s, "Longest wait for a place; 0: for ever");
  add("--total-timeout-s", flags->total_timeout_s, "Longest time of a whole request; 0: for ever");
  serve
      ->add_flag("!--no-prefix-caching", flags->prefix_caching,
                 "Compute every prompt from its first token on")
      ->envname("QUARTET_NO_PREFIX_CACHING");
  add("--snapshot-policy", flags->snapshot_policy,
      "Where the prefix cache takes snapshots: boundary,last,turn,branch,system");
  add("--num-speculative-tokens", flags->num_speculative_tokens,
      "Drafts of a sequence in a step, 0 to 3; 0 = no speculation");
  add("--spec-dynamic", flags->spec_dynamic, "Fewer drafts where that is faster: true or false");
  add("--spec-sampling", flags->spec_sampling, "Which drafts are accepted: rejection or coupled");
  add("--steps-in-flight", flags->steps_in_flight, "Plans that workers hold at once, 1 or 2");
  add("--max-queued-requests", flags->max_queued_requests, "Requests that may wait");
  add("--step-deadline-ms", flags->step_deadline_ms, "A step that takes longer has failed");
  add("--flight-dir", flags->flight_dir,
      "Folder for recordings of what went into the scheduler, for `quartet sim --replay`");
  add("--kv-dtype", flags->kv_dtype, "Type of the stored latents: fp32, fp16 or fp8_e4m3");
  serve
      ->add_flag(
          "--batch-invariant", flags->batch_invariant,
          "A token's bits do not depend on what else a step computes, nor on how a prompt is "
          "cut (slow on GPUs; always so on a CPU)")
      ->envname("QUARTET_BATCH_INVARIANT");
  add("--spoil-drafts", flags->spoil_drafts,
      "For tests: RATE or RATE@PLACE, the share of drafts that are made wrong, and which of a "
      "chain");
  add("--threads", flags->threads, "Threads of each worker");
  add("--memory-gib", flags->memory_gib, "Memory budget of each worker, in GiB");
  add("--host-cache-gib", flags->host_cache_gib,
      "Host memory for cached prefixes, of all workers together; default on GPUs 32, but no more "
      "than "
      "a quarter of what is free, else 0");
  add("--disk-cache-dir", flags->disk_cache_dir,
      "Folder for cached prefixes that outlive a restart");
  add("--disk-cache-gib", flags->disk_cache_gib,
      "What all workers together may keep there; needs host memory as well");
  add("--corrupt-copies", flags->corrupt_copies,
      "For tests: flip a bit in each of so many cached objects that move to host memory");
  add("--served-model-name", flags->served_model_name, "The name that clients ask for");
  add("--chat-template", flags->chat_template, "A template file to use instead of the model's");
  add("--text-threads", flags->text_threads, "Threads of the gateway for tokenizing");
  add("--api-key-file", flags->api_key_file,
      "File of the API keys that are taken, lines made by `quartet key`");
  add("--key-requests", flags->key_requests, "Requests of one API key at a time; 0: any number");
  add("--key-tokens", flags->key_tokens,
      "Tokens of the requests of one API key at a time, prompts and the most that may be answered; "
      "0: any number");
  add("--key-requests-per-minute", flags->key_requests_per_minute,
      "Requests of one API key in a minute; 0: any number");
  add("--key-tokens-per-minute", flags->key_tokens_per_minute,
      "Tokens of one API key in a minute, prompts and answers; 0: any number");
  add("--cors-allow-origin", flags->cors_allow_origin,
      "Origins whose pages may use the API from a browser, separated by commas; *: all");
  serve
      ->add_flag("--trust-content-tokens", flags->trust_content_tokens,
                 "Control tokens in what users write keep their meaning")
      ->envname("QUARTET_TRUST_CONTENT_TOKENS");
  serve
      ->add_flag("--share-cache-between-keys", flags->share_cache_between_keys,
                 "Requests with different API keys may use each other's cached prefixes")
      ->envname("QUARTET_SHARE_CACHE_BETWEEN_KEYS");
  serve
      ->add_flag("--any-model-name", flags->any_model_name,
                 "Requests are served whatever model they name")
      ->envname("QUARTET_ANY_MODEL_NAME");
  serve
      ->add_flag("--stop-in-reasoning", flags->stop_in_reasoning,
                 "Stop strings are looked for in reasoning too")
      ->envname("QUARTET_STOP_IN_REASONING");
  serve
      ->add_flag("--nonempty-content", flags->nonempty_content,
                 "An answer that ends with nothing but reasoning says it once more as content")
      ->envname("QUARTET_NONEMPTY_CONTENT");
  serve
      ->add_flag("--otel-metrics", flags->otel_metrics,
                 "Metrics under OpenTelemetry's names for generative AI too")
      ->envname("QUARTET_OTEL_METRICS");
  add("--log-level", flags->log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  add("--log-dir", flags->log_dir, "Keep each process's log in a file in this folder");
  serve->callback([flags, chosen] { *chosen = [flags] { return Serve(*flags); }; });
}

}  // namespace quartet::cli
