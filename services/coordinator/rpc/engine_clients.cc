#include "services/coordinator/rpc/engine_clients.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/log.h"
#include "services/coordinator/rpc/convert.h"

namespace quartet::coordinator {
namespace {

const char* ReasonName(const Output& output) {
  if (output.kind == Output::Kind::kCancelled) return "cancelled";
  if (output.kind == Output::Kind::kFailed) return "failed";
  if (output.kind == Output::Kind::kExpired) return "deadline";
  switch (output.reason) {
    case FinishReason::kEndToken:
      return "end token";
    case FinishReason::kStopId:
      return "stop id";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kTruncated:
      return "truncated";
  }
  return "";
}

void LogEnd(const Output& output, const std::string& request_id, TimeUs now) {
  const auto milliseconds = [](TimeUs from, TimeUs to) {
    return from == 0 || to == 0 ? -1 : (to - from) / 1000;
  };
  LogInfo(absl::StrCat(
      "request ", request_id, " ended: ", ReasonName(output),
      output.message.empty() ? "" : " (" + output.message + ")", ", prompt ", output.prompt_tokens,
      " tokens, answer ", output.completion_tokens, " tokens, queued ",
      milliseconds(output.times.submitted, output.times.admitted), " ms, first token after ",
      milliseconds(output.times.submitted, output.times.first_token), " ms, total ",
      milliseconds(output.times.submitted, now), " ms"));
}

}  // namespace

EngineClients::EngineClients(const EngineOptions& options, EngineMetrics* metrics,
                             Constraints* constraints)
    : stream_buffer_bytes_(options.stream_buffer_bytes),
      slow_client_timeout_ms_(options.slow_client_timeout_ms),
      metrics_(metrics),
      constraints_(constraints) {}

void EngineClients::Add(uint64_t request, std::string request_id,
                        std::shared_ptr<ClientStream> stream, std::optional<UnitChain> units) {
  streams_[stream->id()] = request;
  Client client;
  client.stream = std::move(stream);
  client.request_id = std::move(request_id);
  client.units = std::move(units);
  clients_.insert_or_assign(request, std::move(client));
}

std::optional<uint64_t> EngineClients::RequestOf(const ClientStream& stream) const {
  const auto request = streams_.find(stream.id());
  return request == streams_.end() ? std::nullopt : std::optional<uint64_t>(request->second);
}

void EngineClients::AskPause(const ClientStream& stream, bool paused) {
  if (const std::optional<uint64_t> request = RequestOf(stream); request.has_value()) {
    clients_.at(*request).pause_asked = paused;
  }
}

void EngineClients::Cancel(RecordedCore& core, uint64_t request, absl::Status status) {
  clients_.at(request).cancel_status = std::move(status);
  core.OnCancel(request);
}

void EngineClients::Deliver(RecordedCore& core, TimeUs now, bool stopping) {
  for (const Output& output : core.TakeOutputs()) {
    metrics_->OnOutput(output, now);
    const auto client = clients_.find(output.id);
    if (client == clients_.end()) continue;
    if (output.terminal()) LogEnd(output, client->second.request_id, now);
    NameAnswer(core, output, client->second);
    if (absl::Status status = constraints_->Advance(output.id, output.tokens); !status.ok()) {
      LogError(absl::StrCat("request ", client->second.request_id, ": ", status.message()));
      Cancel(core, output.id, std::move(status));
      continue;
    }
    Pass(output, client->second, stopping);
  }
}

void EngineClients::Pass(const Output& output, Client& client, bool stopping) {
  switch (output.kind) {
    case Output::Kind::kAdmitted:
    case Output::Kind::kTokens:
      return client.stream->Send(ToProto(output));
    case Output::Kind::kFinished:
      client.stream->EndAfter(ToProto(output), absl::OkStatus());
      return Forget(output.id);
    case Output::Kind::kCancelled:
      return End(output.id, client.cancel_status);
    case Output::Kind::kFailed:
      return End(output.id, stopping ? absl::UnavailableError(output.message)
                                     : absl::AbortedError(output.message));
    case Output::Kind::kExpired:
      return End(output.id, absl::DeadlineExceededError(output.message));
  }
}

void EngineClients::NameAnswer(RecordedCore& core, const Output& output, Client& client) {
  if (!client.units.has_value() || output.tokens.empty()) return;
  const absl::StatusOr<std::vector<UnitKey>> keys = client.units->Append(output.tokens);
  if (keys.ok()) return core.OnUnitKeys(output.id, *keys);
  LogWarning(absl::StrCat("an answer is not cached: ", keys.status().message()));
  client.units.reset();
}

// By value: the status may be the client's own.
void EngineClients::End(uint64_t request, absl::Status status) {
  clients_.at(request).stream->End(status);
  Forget(request);
}

void EngineClients::Forget(uint64_t request) {
  const auto client = clients_.find(request);
  streams_.erase(client->second.stream->id());
  constraints_->Forget(request);
  clients_.erase(client);
}

void EngineClients::PauseSlow(RecordedCore& core) {
  const absl::Time now = absl::Now();
  full_buffers_ = false;
  for (auto& [id, client] : clients_) {
    const size_t buffered = client.stream->buffered_bytes();
    // Once full a buffer has to be nearly empty, so that not every token is a pause.
    const bool full = buffered > stream_buffer_bytes_ / (client.buffer_full ? 4 : 1);
    client.buffer_full = full;
    full_buffers_ = full_buffers_ || full;
    const bool paused = full || client.pause_asked;
    if (paused != client.paused_since.has_value()) core.OnPause(id, paused);
    if (!paused) {
      client.paused_since.reset();
    } else if (!client.paused_since.has_value()) {
      client.paused_since = now;
    } else if (now - *client.paused_since >= absl::Milliseconds(slow_client_timeout_ms_)) {
      Cancel(core, id,
             absl::CancelledError(absl::StrCat("the client left too much unread for ",
                                               slow_client_timeout_ms_, " ms; a stream may hold ",
                                               stream_buffer_bytes_, " bytes")));
    }
  }
}

}  // namespace quartet::coordinator
