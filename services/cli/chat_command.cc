#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "boost/json.hpp"
#include "services/cli/commands.h"
#include "services/cli/http_client.h"
#include "services/cli/sse_reader.h"
#include "services/cli/terminal.h"

namespace quartet::cli {
namespace {

namespace json = boost::json;
using SteadyClock = std::chrono::steady_clock;

struct ChatFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string model;
  std::string system;
  std::optional<double> temperature;
  std::optional<int64_t> seed;
  std::optional<int> max_tokens;
  bool timing = false;
};

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// A text field of a delta; empty when it is absent or null.
std::string_view TextOf(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains({name.data(), name.size()});
  if (value == nullptr || !value->is_string()) return {};
  return {value->get_string().data(), value->get_string().size()};
}

const json::object* ObjectOf(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains({name.data(), name.size()});
  return value != nullptr && value->is_object() ? &value->get_object() : nullptr;
}

// Shows one answer as it comes, and keeps what the next turn needs of it.
class Answer {
 public:
  explicit Answer(bool colour) : colour_(colour) {}

  void Take(const SseEvent& event) {
    if (event.data == "[DONE]") return;
    json::error_code failed;
    const json::value value = json::parse(event.data, failed);
    if (failed || !value.is_object()) return;
    const json::object& chunk = value.get_object();
    if (const json::object* error = ObjectOf(chunk, "error")) {
      error_ = Printable(TextOf(*error, "message"));
      return;
    }
    if (const json::object* usage = ObjectOf(chunk, "usage")) {
      const json::value* tokens = usage->if_contains("completion_tokens");
      if (tokens != nullptr && tokens->is_int64()) tokens_ = tokens->get_int64();
    }
    const json::value* choices = chunk.if_contains("choices");
    if (choices == nullptr || !choices->is_array() || choices->get_array().empty()) return;
    const json::value& choice = choices->get_array().front();
    const json::object* delta =
        choice.is_object() ? ObjectOf(choice.get_object(), "delta") : nullptr;
    if (delta != nullptr) Show(*delta);
  }

  void End() {
    if (in_reasoning_ && colour_) std::cout << "\x1b[0m";
    std::cout << "\n" << std::flush;
  }

  const std::string& content() const { return content_; }
  const std::string& error() const { return error_; }
  int64_t tokens() const { return tokens_; }
  std::optional<SteadyClock::time_point> first_token() const { return first_token_; }

 private:
  void Show(const json::object& delta) {
    const std::string_view reasoning = TextOf(delta, "reasoning_content");
    const std::string_view content = TextOf(delta, "content");
    if ((!reasoning.empty() || !content.empty()) && !first_token_) {
      first_token_ = SteadyClock::now();
    }
    if (!reasoning.empty()) {
      if (!in_reasoning_) std::cout << (colour_ ? "\x1b[2m" : "reasoning: ");
      in_reasoning_ = true;
      std::cout << Printable(reasoning) << std::flush;
    }
    if (!content.empty()) {
      if (in_reasoning_) std::cout << (colour_ ? "\x1b[0m\n" : "\n");
      in_reasoning_ = false;
      std::cout << Printable(content) << std::flush;
      content_.append(content);
    }
  }

  const bool colour_;
  bool in_reasoning_ = false;
  std::string content_;
  std::string error_;
  int64_t tokens_ = 0;
  std::optional<SteadyClock::time_point> first_token_;
};

class Chat {
 public:
  Chat(const ChatFlags& flags, std::unique_ptr<HttpClient> client)
      : flags_(flags), client_(std::move(client)), colour_(WantsColour(STDOUT_FILENO)) {
    Reset();
  }

  void Reset() {
    messages_.clear();
    if (!flags_.system.empty()) {
      messages_.push_back({{"role", "system"}, {"content", flags_.system}});
    }
  }

  // Finds the model's name when none was given, which also shows whether anybody is there.
  absl::Status FindModel() {
    model_ = flags_.model;
    if (!model_.empty()) return absl::OkStatus();
    absl::StatusOr<HttpResponse> response = client_->Get("/v1/models");
    if (!response.ok()) return response.status();
    if (response->status != 200) return absl::UnavailableError(ErrorText(*response));
    json::error_code failed;
    const json::value value = json::parse(response->body, failed);
    const json::value* id = failed ? nullptr : value.find_pointer("/data/0/id", failed);
    if (id == nullptr || !id->is_string()) {
      return absl::UnavailableError("/v1/models lists no model; is this an OpenAI service?");
    }
    model_ = id->get_string().c_str();
    return absl::OkStatus();
  }

  const std::string& model() const { return model_; }

  // Asks, shows the answer and keeps both. False when there was no full answer.
  bool Ask(const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    json::object request = {{"model", model_},
                            {"messages", messages_},
                            {"stream", true},
                            {"stream_options", {{"include_usage", true}}}};
    if (flags_.temperature) request["temperature"] = *flags_.temperature;
    if (flags_.seed) request["seed"] = *flags_.seed;
    if (flags_.max_tokens) request["max_tokens"] = *flags_.max_tokens;
    const auto start = SteadyClock::now();
    Answer answer(colour_);
    SseReader reader;
    const absl::StatusOr<HttpResponse> response = client_->PostStreaming(
        "/v1/chat/completions", json::serialize(request), [&](std::string_view bytes) {
          reader.Feed(bytes, [&answer](const SseEvent& event) { answer.Take(event); });
        });
    const double seconds = SecondsSince(start);
    std::string error = answer.error();
    if (!response.ok()) {
      error = std::string(response.status().message());
    } else if (response->status != 200) {
      error = ErrorText(*response);
    }
    if (error.empty() || answer.first_token()) answer.End();
    if (!error.empty()) {
      messages_.pop_back();  // A question without an answer would spoil the next turn.
      std::cerr << Styled("quartet: " + error, Style::kRed, WantsColour(STDERR_FILENO)) << "\n";
      return false;
    }
    messages_.push_back({{"role", "assistant"}, {"content", answer.content()}});
    if (flags_.timing) ShowTiming(answer, start, seconds);
    return true;
  }

 private:
  void ShowTiming(const Answer& answer, SteadyClock::time_point start, double seconds) const {
    const double first = answer.first_token()
                             ? std::chrono::duration<double>(*answer.first_token() - start).count()
                             : seconds;
    std::cout << Styled(absl::StrFormat("(%d tokens in %.2f s, the first after %.2f s)",
                                        answer.tokens(), seconds, first),
                        Style::kDim, colour_)
              << "\n"
              << std::flush;
  }

  const ChatFlags& flags_;
  std::unique_ptr<HttpClient> client_;
  const bool colour_;
  std::string model_;
  json::array messages_;
};

int RunChat(const ChatFlags& flags) {
  const absl::StatusOr<Url> url = ParseUrl(flags.url);
  if (!url.ok()) {
    std::cerr << "quartet: --url " << url.status().message() << "\n";
    return 2;
  }
  Chat chat(flags, MakeHttpClient(*url, ApiKeyOfEnvironment()));
  const absl::Status found = chat.FindModel();
  if (!found.ok()) {
    std::cerr << "quartet: " << found.message()
              << "\nIs the cluster up? `quartet serve --model DIR` starts one.\n";
    return 1;
  }
  const bool interactive = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  const std::string prompt =
      interactive ? Styled("> ", Style::kBold, WantsColour(STDOUT_FILENO)) : std::string();
  if (interactive) {
    std::cout << chat.model() << "; /reset forgets the conversation, /quit ends\n";
  }
  bool all_answered = true;
  std::string line;
  while (std::cout << prompt << std::flush, std::getline(std::cin, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    if (line == "/quit" || line == "/exit") break;
    if (line == "/reset") {
      chat.Reset();
      if (interactive) std::cout << "(forgotten)\n";
      continue;
    }
    if (line[0] == '/' && line.find(' ') == std::string::npos) {
      std::cerr << "quartet: unknown command " << line << "; there are /reset and /quit\n";
      continue;
    }
    all_answered = chat.Ask(line) && all_answered;
  }
  if (interactive && !std::cin) std::cout << "\n";
  return all_answered ? 0 : 1;
}

}  // namespace

void AddChatCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* chat = app.add_subcommand(
      "chat", "Talk with a running cluster; reads lines. An API key is taken from QUARTET_API_KEY");
  chat->add_option("--url", flags->url, "The gateway")->capture_default_str();
  chat->add_option("--model", flags->model, "The model's name (default: the first that is served)");
  chat->add_option("--system", flags->system, "A system message");
  chat->add_option("--temperature", flags->temperature, "0 always takes the likeliest token");
  chat->add_option("--seed", flags->seed, "Makes sampling repeatable");
  chat->add_option("--max-tokens", flags->max_tokens, "Longest answer")->check(CLI::PositiveNumber);
  chat->add_flag("--timing", flags->timing, "Say after each answer how long it took");
  chat->callback([flags, chosen] { *chosen = [flags] { return RunChat(*flags); }; });
}

}  // namespace quartet::cli
