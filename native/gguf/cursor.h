// Reads the header of one file front to back through a window, every read checked first.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "gguf/byte_source.h"

namespace ellm::gguf {

// Headers of real models are below 20 MB (a 262K vocabulary with 514K merges). A larger one would
// cost memory in proportion, so it is refused before it is read.
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{64} << 20;

class Cursor {
 public:
  explicit Cursor(const ByteSource& source);

  uint64_t offset() const { return offset_; }

  // Bytes that the header may still take: to the end of the file or to kMaxHeaderBytes.
  uint64_t remaining() const { return limit_ - offset_; }

  // A little-endian number; `what` names it in the error if the file ends before it does.
  template <typename T>
  T read(const char* what) {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    read_bytes(&value, sizeof value, what);
    return value;
  }

  void read_bytes(void* out, uint64_t size, const char* what);

  // Throws unless `size` more bytes can be read.
  void require(uint64_t size, const char* what) const;

  // An error of this file, at `offset`.
  Error invalid(std::string what, uint64_t offset, std::string found, std::string expected) const;

 private:
  void fill();

  const ByteSource& source_;
  const uint64_t limit_;
  uint64_t offset_ = 0;
  uint64_t window_start_ = 0;
  std::vector<char> window_;
};

}  // namespace ellm::gguf
