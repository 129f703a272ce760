#include "services/gateway/access/key_file.h"

#include <utility>

#include "services/gateway/text/files.h"

namespace quartet::gateway {

absl::StatusOr<std::unique_ptr<KeyFile>> KeyFile::Open(std::string path,
                                                       const KeyLimits& defaults) {
  absl::StatusOr<std::string> text = text::ReadSmallFile(path, kApiKeyFileBytesMax);
  if (!text.ok()) return text.status();
  absl::StatusOr<ApiKeys> keys = ApiKeys::Parse(*text, path, defaults);
  if (!keys.ok()) return keys.status();
  return std::unique_ptr<KeyFile>(
      new KeyFile(std::move(path), defaults, *std::move(text), *std::move(keys)));
}

KeyFile::KeyFile(std::string path, const KeyLimits& defaults, std::string text, ApiKeys keys)
    : path_(std::move(path)),
      defaults_(defaults),
      text_(std::move(text)),
      keys_(keys.size()),
      gate_(std::move(keys)) {}

KeyFile::~KeyFile() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stopping_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

absl::StatusOr<bool> KeyFile::Check() {
  absl::StatusOr<std::string> text = text::ReadSmallFile(path_, kApiKeyFileBytesMax);
  absl::Status fault = text.status();
  if (text.ok()) {
    if (*text == text_) {
      fault_.clear();
      return false;
    }
    absl::StatusOr<ApiKeys> keys = ApiKeys::Parse(*text, path_, defaults_);
    fault = keys.status();
    if (keys.ok()) {
      fault_.clear();
      text_ = *std::move(text);
      keys_ = keys->size();
      gate_.Replace(*std::move(keys));
      return true;
    }
  }
  if (fault_ == fault.message()) return false;
  fault_ = std::string(fault.message());
  return fault;
}

void KeyFile::Watch(absl::Duration interval,
                    std::function<void(const absl::Status&, size_t)> on_news) {
  watcher_ = std::thread(
      [this, wait = absl::ToChronoMilliseconds(interval), on_news = std::move(on_news)] {
        std::unique_lock lock(mutex_);
        while (!stopping_.wait_for(lock, wait, [this] { return stopped_; })) {
          lock.unlock();
          const absl::StatusOr<bool> changed = Check();
          if (!changed.ok() || *changed) on_news(changed.status(), keys_);
          lock.lock();
        }
      });
}

}  // namespace quartet::gateway
