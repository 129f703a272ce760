// quartet-gateway: HTTP and gRPC for clients, text in and out, in front of one coordinator.
// Exit codes: 0 after SIGTERM or SIGINT, 1 when it could not start, 2 for flags.

#include <CLI/CLI.hpp>
#include <cctype>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/common/log.h"
#include "services/common/process.h"
#include "services/common/status_channel.h"
#include "services/gateway/gateway.h"

namespace quartet::gateway {
namespace {

// Open answers may finish for as long as the first, and leave within the second: 15 s together.
constexpr absl::Duration kDrainPatience = absl::Seconds(12);
constexpr absl::Duration kDrainFarewell = absl::Seconds(2);

struct Flags {
  GatewayConfig config;
  std::string log_level = "info";
  int status_fd = -1;
  bool die_with_parent = false;
};

int Fail(const StatusChannel& status, const std::string& message) {
  LogError(message);
  status.Error(message);
  return 1;
}

std::string LimitsLine(const HttpServerOptions& http, int text_threads) {
  return absl::StrCat(
      "limits: http_threads=", http.threads, " connections=", http.connections_max,
      " header_bytes=", http.header_bytes_max, " body_bytes=", http.body_bytes_max,
      " bodies_bytes=", http.bodies_bytes_max, " header_ms=", http.header_timeout.count(),
      " body_ms=", http.body_timeout.count(), " idle_ms=", http.idle_timeout.count(),
      " stream_pause_bytes=", http.marks.pause_at,
      " slow_reader_ms=", http.slow_reader_timeout.count(), " text_threads=", text_threads,
      " api_keys_max=", kApiKeysMax);
}

int Run(const Flags& flags) {
  const StatusChannel status(flags.status_fd);
  auto gateway = StartGateway(flags.config, &status);
  if (!gateway.ok()) return Fail(status, std::string(gateway.status().message()));
  LogInfo(LimitsLine(flags.config.http, flags.config.text_threads));
  LogInfo(absl::StrCat("HTTP on ", (*gateway)->http_address()));
  status.Listening("http", (*gateway)->http_address());
  if (const std::string address = (*gateway)->grpc_address(); !address.empty()) {
    LogInfo(absl::StrCat("gRPC on ", address));
    status.Listening("grpc", address);
  }
  if (const std::string address = (*gateway)->admin_address(); !address.empty())
    status.Listening("admin", address);
  status.Progress("loading tokenizer", 0, 1);
  if (absl::Status loaded = (*gateway)->LoadModel(); !loaded.ok())
    return Fail(status, std::string(loaded.message()));
  status.Progress("loading tokenizer", 1, 1);

  const int signal = WaitForShutdown();
  LogInfo(absl::StrCat("signal ", signal, ": shutting down"));
  (*gateway)->Drain(kDrainPatience, kDrainFarewell);
  return 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  GatewayConfig& config = flags.config;
  config.http.listen = "127.0.0.1:8000";
  CLI::App app("Quartet gateway: OpenAI's HTTP API and gRPC in front of a coordinator");
  const auto variable = [](const char* name) {
    std::string result = absl::StrCat("QUARTET_", name + 2);
    for (char& c : result)
      c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return result;
  };
  const auto option = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->envname(variable(name))->capture_default_str();
  };
  const auto flag = [&](const char* name, bool& value, const char* help) {
    app.add_flag(name, value, help)->envname(variable(name));
  };
  option("--coordinator", config.coordinator, "the coordinator's address: host:port or unix:/path")
      ->required();
  option("--model", config.model_dir, "the checkpoint's folder")->required();
  option("--listen-http", config.http.listen,
         "host:port of the HTTP service; port 0 takes a free one");
  option("--listen-grpc", config.listen_grpc, "host:port of the gRPC service; empty = none");
  option("--listen-admin", config.listen_admin,
         "host:port of /metrics, /livez, /readyz; empty = none");
  option("--served-model-name", config.served_model_name,
         "the name that clients ask for; empty = the folder's name");
  option("--chat-template", config.chat_template_file,
         "a template file to use instead of the model's");
  flag("--trust-content-tokens", config.trust_content_tokens,
       "control tokens in what users write keep their meaning");
  flag("--share-cache-between-keys", config.share_cache_between_keys,
       "requests with different API keys may use each other's cached prefixes");
  flag("--any-model-name", config.any_model_name, "requests are served whatever model they name");
  flag("--stop-in-reasoning", config.stop_in_reasoning,
       "stop strings are looked for in reasoning too");
  flag("--nonempty-content", config.nonempty_content,
       "an answer that ends with nothing but reasoning says it once more as content");
  flag("--otel-metrics", config.otel_metrics,
       "metrics under the names of OpenTelemetry's conventions for generative AI too");
  option("--api-key-file", config.api_key_file,
         "file of the API keys that are taken, lines made by `quartet key`, read again when it "
         "changes; empty = no key is asked for");
  option("--key-requests", config.key_limits.requests,
         "requests of one API key at a time; 0 = any number")
      ->check(CLI::NonNegativeNumber);
  option("--key-tokens", config.key_limits.tokens,
         "tokens of the requests of one API key at a time: prompts, and the most that may be "
         "answered; 0 = any number")
      ->check(CLI::NonNegativeNumber);
  option("--key-requests-per-minute", config.key_limits.requests_per_minute,
         "requests of one API key in a minute; 0 = any number")
      ->check(CLI::NonNegativeNumber);
  option("--key-tokens-per-minute", config.key_limits.tokens_per_minute,
         "tokens of one API key in a minute, prompts and answers; 0 = any number")
      ->check(CLI::NonNegativeNumber);
  option("--cors-allow-origin", config.http.cors_origins,
         "origins whose pages may use the API from a browser, separated by commas; * = all")
      ->delimiter(',');
  option("--text-threads", config.text_threads, "threads that parse, render and tokenise")
      ->check(CLI::Range(1, 256));
  option("--http-threads", config.http.threads, "threads that move bytes")
      ->check(CLI::Range(1, 64));
  option("--http-connections", config.http.connections_max,
         "connections at a time, each of which takes an open file; more are answered with 503")
      ->check(CLI::Range(1, 1'000'000));
  option("--log-level", flags.log_level, "debug, info, warning or error");
  option("--status-fd", flags.status_fd, "file descriptor for progress events; -1 = none");
  flag("--die-with-parent", flags.die_with_parent, "end when the parent process ends");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (flags.die_with_parent) DieWithParent();
  if (!InitLogging("gateway", flags.log_level)) {
    return Fail(StatusChannel(flags.status_fd),
                absl::StrCat("--log-level is ", flags.log_level,
                             "; it must be debug, info, warning or error"));
  }
  BlockShutdownSignals();
  return Run(flags);
}

}  // namespace
}  // namespace quartet::gateway

int main(int argc, char** argv) {
  return quartet::gateway::Main(argc, argv);
}
