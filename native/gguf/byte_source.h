// Where the reader's bytes come from: a regular file read with pread, or memory for fuzzing.
//
// Reading instead of mapping is deliberate: a file that shrinks while it is read gives a short
// read, which becomes a typed error; a mapping would give SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"

namespace ellm::gguf {

// What tells one version of a file from another; all zero but `size_bytes` for bytes in memory.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size_bytes = 0;
  int64_t mtime_ns = 0;

  bool operator==(const FileIdentity&) const = default;
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // The path for error messages; "" for bytes in memory.
  virtual const std::string& name() const = 0;

  // The identity when the source was opened; all checks use this size.
  virtual const FileIdentity& identity() const = 0;

  // Copies up to `size` bytes from `offset`; fewer only past the present end of the source.
  virtual size_t read_at(uint64_t offset, void* out, size_t size) const = 0;

  // Throws kInvalidModel if the file behind the source is no longer the one that was opened.
  virtual void check_unchanged() const = 0;

  uint64_t size() const { return identity().size_bytes; }
};

// An error of this source, at `offset`.
Error invalid(const ByteSource& source, std::string what, uint64_t offset, std::string found,
              std::string expected);

class FileSource final : public ByteSource {
 public:
  // Opens a regular file (or a symbolic link to one). Throws kInvalidModel for anything else, and
  // never blocks on a FIFO or touches a device.
  explicit FileSource(std::string path);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  const std::string& name() const override { return path_; }
  const FileIdentity& identity() const override { return identity_; }
  size_t read_at(uint64_t offset, void* out, size_t size) const override;
  void check_unchanged() const override;

 private:
  std::string path_;
  int fd_ = -1;
  FileIdentity identity_;
};

// Bytes owned by the caller, which outlive the source.
class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const uint8_t> bytes, std::string name = "");

  const std::string& name() const override { return name_; }
  const FileIdentity& identity() const override { return identity_; }
  size_t read_at(uint64_t offset, void* out, size_t size) const override;
  void check_unchanged() const override {}

 private:
  std::span<const uint8_t> bytes_;
  std::string name_;
  FileIdentity identity_;
};

}  // namespace ellm::gguf
