// The one exception type of the native core; bindings turn it into the Python error tree.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace ellm {

// Each kind is one class of `ellm.errors`.
enum class ErrorKind {
  kInvalidModel,  // a file is damaged, hostile or inconsistent
  kUnsupported,   // valid, but not implemented here
  kCapacity,      // more bytes or tokens needed than there are
  kConfig,        // an option has a value that cannot work
  kAborted,       // the running step was asked to stop
  kInternal,      // a bug
};

class Error : public std::exception {
 public:
  // `path` "" means bytes in memory; no `offset` means the file as a whole.
  Error(ErrorKind kind, std::string what_failed, std::string path, std::optional<uint64_t> offset,
        std::string found, std::string expected)
      : kind(kind),
        what_failed(std::move(what_failed)),
        path(std::move(path)),
        offset(offset),
        found(std::move(found)),
        expected(std::move(expected)) {
    compose();
  }

  Error(ErrorKind kind, std::string what_failed) : kind(kind), what_failed(std::move(what_failed)) {
    compose();
  }

  // kCapacity with both numbers kept beside the message.
  static Error capacity(std::string what_failed, uint64_t needed, uint64_t available) {
    Error error(ErrorKind::kCapacity, std::move(what_failed));
    error.needed = needed;
    error.available = available;
    return error;
  }

  // The same words as Python's InvalidModelError, for errors that hold only a message.
  const char* what() const noexcept override { return message_.c_str(); }

  ErrorKind kind;
  std::string what_failed;
  std::string path;
  std::optional<uint64_t> offset;
  std::string found;
  std::string expected;
  uint64_t needed = 0;     // kCapacity only
  uint64_t available = 0;  // kCapacity only

 private:
  void compose() {
    if (!path.empty()) message_ = path + ": ";
    message_ += what_failed;
    if (offset) message_ += " at byte " + std::to_string(*offset);
    if (!found.empty()) message_ += ": found " + found;
    if (!expected.empty()) message_ += ", expected " + expected;
  }

  std::string message_;
};

}  // namespace ellm
