#include "shard_worker/collectives/descriptor_exchange.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace quartet {
namespace {

// Goes with the descriptor.
struct Letter {
  uint64_t epoch;
  int32_t from;
  int32_t size;
};

// A message with one descriptor, in either direction.
class Envelope {
 public:
  explicit Envelope(Letter* letter) : piece_{letter, sizeof(*letter)} {
    message_.msg_iov = &piece_;
    message_.msg_iovlen = 1;
    message_.msg_control = control_;
    message_.msg_controllen = sizeof(control_);
  }

  void Enclose(int fd) {
    cmsghdr* header = CMSG_FIRSTHDR(&message_);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(fd));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  FileDescriptor Enclosed() {
    const cmsghdr* header = CMSG_FIRSTHDR(&message_);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(sizeof(int))) {
      return FileDescriptor();
    }
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return FileDescriptor(fd);
  }
  msghdr* message() { return &message_; }

 private:
  iovec piece_;
  alignas(cmsghdr) char control_[CMSG_SPACE(sizeof(int))] = {};
  msghdr message_ = {};
};

std::string SocketPath(const DescriptorExchangeOptions& options, int rank) {
  return absl::StrCat(options.folder, "/", options.name, ".", rank);
}

absl::StatusOr<sockaddr_un> Address(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(path,
                                                   ": too long for a socket, expected at most ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::Status SystemError(const std::string& path, const char* what) {
  return absl::UnavailableError(absl::StrCat(path, ": ", what, ": ", std::strerror(errno)));
}

// The socket on which a rank gets its letters. Its name is gone with it.
class Mailbox {
 public:
  Mailbox(std::string path, FileDescriptor socket)
      : path_(std::move(path)), socket_(std::move(socket)) {}
  Mailbox(Mailbox&& other) noexcept
      : path_(std::exchange(other.path_, "")), socket_(std::move(other.socket_)) {}
  ~Mailbox() {
    if (!path_.empty()) unlink(path_.c_str());
  }

  static absl::StatusOr<Mailbox> Open(const std::string& path) {
    const absl::StatusOr<sockaddr_un> address = Address(path);
    if (!address.ok()) return address.status();
    FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (socket.get() < 0) return SystemError(path, "cannot make a socket");
    unlink(path.c_str());  // of a process that was killed
    if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
      return SystemError(path, "cannot bind");
    }
    Mailbox mailbox(path, std::move(socket));
    if (listen(mailbox.socket_.get(), SOMAXCONN) != 0) return SystemError(path, "cannot listen");
    return mailbox;
  }

  absl::StatusOr<FileDescriptor> Receive(Letter& letter, absl::Time deadline) {
    if (absl::Status s = Await(socket_.get(), deadline); !s.ok()) return s;
    const FileDescriptor connection(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.get() < 0) return SystemError(path_, "cannot accept");
    if (absl::Status s = Await(connection.get(), deadline); !s.ok()) return s;
    Envelope envelope(&letter);
    const ssize_t got = recvmsg(connection.get(), envelope.message(), MSG_CMSG_CLOEXEC);
    if (got < 0) return SystemError(path_, "cannot receive");
    FileDescriptor enclosed = envelope.Enclosed();
    if (got != sizeof(letter) || enclosed.get() < 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, ": a letter without a descriptor; not of this group"));
    }
    return enclosed;
  }

 private:
  absl::Status Await(int fd, absl::Time deadline) const {
    pollfd request = {.fd = fd, .events = POLLIN, .revents = 0};
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    const int ready = poll(&request, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
    if (ready < 0) return SystemError(path_, "cannot wait");
    if (ready == 0) {
      return absl::DeadlineExceededError(absl::StrCat(path_, ": no descriptor came from a peer"));
    }
    return absl::OkStatus();
  }

  std::string path_;
  FileDescriptor socket_;
};

absl::Status Send(const std::string& path, Letter letter, int fd) {
  const absl::StatusOr<sockaddr_un> address = Address(path);
  if (!address.ok()) return address.status();
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return SystemError(path, "cannot make a socket");
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    return SystemError(path, "cannot connect");
  }
  Envelope envelope(&letter);
  envelope.Enclose(fd);
  if (sendmsg(socket.get(), envelope.message(), MSG_NOSIGNAL) != sizeof(letter)) {
    return SystemError(path, "cannot send");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<FileDescriptor>> ExchangeDescriptors(
    Collectives& group, int own, const DescriptorExchangeOptions& options) {
  const absl::Time deadline = absl::Now() + options.timeout;
  const int rank = group.rank();
  const int size = group.size();
  absl::StatusOr<Mailbox> mailbox = Mailbox::Open(SocketPath(options, rank));
  if (!mailbox.ok()) return mailbox.status();
  if (absl::Status s = group.Barrier(); !s.ok()) return s;
  // A letter waits in the socket until its reader comes, so all can send first.
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    if (absl::Status s = Send(SocketPath(options, r), {options.epoch, rank, size}, own); !s.ok()) {
      return s;
    }
  }
  std::vector<FileDescriptor> descriptors(size);
  for (int i = 0; i < size - 1; ++i) {
    Letter letter = {};
    absl::StatusOr<FileDescriptor> descriptor = mailbox->Receive(letter, deadline);
    if (!descriptor.ok()) return descriptor.status();
    if (letter.epoch != options.epoch || letter.size != size || letter.from < 0 ||
        letter.from >= size || letter.from == rank || descriptors[letter.from].get() >= 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("a descriptor came from rank ", letter.from, " of ", letter.size,
                       " of epoch ", letter.epoch, "; expected another rank of ", size,
                       " of epoch ", options.epoch, ", each once"));
    }
    descriptors[letter.from] = *std::move(descriptor);
  }
  return descriptors;
}

}  // namespace quartet
