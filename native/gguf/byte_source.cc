#include "gguf/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace ellm::gguf {
namespace {

constexpr char kRegularFile[] = "a readable regular file";

std::string kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISSOCK(mode)) return "a socket";
  return "a special file";
}

[[noreturn]] void throw_errno(const std::string& path, const char* what, int code) {
  // generic_category().message is thread-safe, strerror is not.
  throw Error(ErrorKind::kInvalidModel, what, path, std::nullopt, std::generic_category().message(code),
              kRegularFile);
}

void require_regular(const std::string& path, const struct stat& status) {
  if (S_ISREG(status.st_mode)) return;
  throw Error(ErrorKind::kInvalidModel, "not a model file", path, std::nullopt, kind_of(status.st_mode),
              kRegularFile);
}

FileIdentity identity_of(const struct stat& status) {
  constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size_bytes = static_cast<uint64_t>(status.st_size),
          .mtime_ns = status.st_mtim.tv_sec * kNanosecondsPerSecond + status.st_mtim.tv_nsec};
}

}  // namespace

Error invalid(const ByteSource& source, std::string what, uint64_t offset, std::string found,
              std::string expected) {
  return Error(ErrorKind::kInvalidModel, std::move(what), source.name(), offset, std::move(found),
               std::move(expected));
}

FileSource::FileSource(std::string path) : path_(std::move(path)) {
  struct stat status;
  // The kind is asked before opening, since opening a device may act on it, and again after, since
  // the path may have been swapped in between.
  if (stat(path_.c_str(), &status) != 0) throw_errno(path_, "cannot open", errno);
  require_regular(path_, status);
  fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd_ < 0) throw_errno(path_, "cannot open", errno);
  try {
    if (fstat(fd_, &status) != 0) throw_errno(path_, "cannot open", errno);
    require_regular(path_, status);
  } catch (...) {
    close(fd_);
    throw;
  }
  identity_ = identity_of(status);
}

FileSource::~FileSource() { close(fd_); }

size_t FileSource::read_at(uint64_t offset, void* out, size_t size) const {
  size_t done = 0;
  while (done < size) {
    const ssize_t got =
        pread(fd_, static_cast<char*>(out) + done, size - done, static_cast<off_t>(offset + done));
    if (got == 0) break;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(path_, "cannot read", errno);
    done += static_cast<size_t>(got);
  }
  return done;
}

void FileSource::check_unchanged() const {
  struct stat status;
  if (fstat(fd_, &status) != 0) throw_errno(path_, "cannot read", errno);
  const FileIdentity now = identity_of(status);
  if (now == identity_) return;
  throw Error(ErrorKind::kInvalidModel, "the file changed while it was read", path_, std::nullopt,
              std::to_string(now.size_bytes) + " bytes, modified at " + std::to_string(now.mtime_ns) + " ns",
              std::to_string(identity_.size_bytes) + " bytes, modified at " +
                  std::to_string(identity_.mtime_ns) + " ns");
}

MemorySource::MemorySource(std::span<const uint8_t> bytes, std::string name)
    : bytes_(bytes), name_(std::move(name)), identity_{.size_bytes = bytes.size()} {}

size_t MemorySource::read_at(uint64_t offset, void* out, size_t size) const {
  if (offset >= bytes_.size()) return 0;
  const size_t available = std::min(size, bytes_.size() - static_cast<size_t>(offset));
  if (available > 0) std::memcpy(out, bytes_.data() + offset, available);
  return available;
}

}  // namespace ellm::gguf
