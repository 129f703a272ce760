// The file of API keys while the server runs: whoever writes it takes keys in and puts them out
// without a restart.
#ifndef QUARTET_SERVICES_GATEWAY_ACCESS_KEY_FILE_H_
#define QUARTET_SERVICES_GATEWAY_ACCESS_KEY_FILE_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/gateway/access/api_keys.h"
#include "services/gateway/access/key_gate.h"

namespace quartet::gateway {

// Owns the gate that lets the file's keys through. Check and Watch are for one thread at a time;
// the gate is for all.
class KeyFile {
 public:
  // Fails if the file cannot be read or is wrong.
  static absl::StatusOr<std::unique_ptr<KeyFile>> Open(std::string path, const KeyLimits& defaults);
  ~KeyFile();
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;

  KeyGate* gate() { return &gate_; }

  // Reads the file. True: it has changed, and the gate has the new keys. A file that is wrong or
  // has gone changes nothing, and its fault is told once.
  absl::StatusOr<bool> Check();

  // From now on Check is called once in each `interval`, on a thread of its own, until this is
  // destroyed. `on_news` hears, there, of everything but a file that is as it was; it gets the
  // number of keys that are in force.
  void Watch(absl::Duration interval, std::function<void(const absl::Status&, size_t)> on_news);

 private:
  KeyFile(std::string path, const KeyLimits& defaults, std::string text, ApiKeys keys);

  const std::string path_;
  const KeyLimits defaults_;
  // The content is compared, not the time of the last change: a second change within the clock's
  // tick would go unseen, and a file that is replaced by a link may be older than what it replaces.
  std::string text_;
  std::string fault_;  // of the last reading; empty: none
  size_t keys_;
  KeyGate gate_;

  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stopped_ = false;
  std::thread watcher_;
};

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ACCESS_KEY_FILE_H_
