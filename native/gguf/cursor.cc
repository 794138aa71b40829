#include "gguf/cursor.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "gguf/text.h"

namespace ellm::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie");

// Large enough that a header of some MB takes a few dozen system calls, small enough for L2.
constexpr uint64_t kWindowBytes = 256 << 10;

}  // namespace

Cursor::Cursor(const ByteSource& source)
    : source_(source), limit_(std::min(source.size(), kMaxHeaderBytes)) {}

void Cursor::require(uint64_t size, const char* what) const {
  if (size <= remaining()) return;
  if (size <= source_.size() - offset_) {
    throw invalid(std::string(what) + " does not fit into the header", offset_, bytes_text(size) + " more",
                  "a header of at most " + std::to_string(kMaxHeaderBytes) + " bytes");
  }
  throw invalid(std::string(what) + " runs past the end of the file", offset_,
                bytes_text(source_.size() - offset_) + " left", std::to_string(size) + " or more");
}

void Cursor::read_bytes(void* out, uint64_t size, const char* what) {
  require(size, what);
  auto* destination = static_cast<char*>(out);
  while (size > 0) {
    if (offset_ >= window_start_ + window_.size()) fill();
    const uint64_t at = offset_ - window_start_;
    const uint64_t count = std::min(size, window_.size() - at);
    std::memcpy(destination, window_.data() + at, count);
    destination += count;
    offset_ += count;
    size -= count;
  }
}

void Cursor::fill() {
  const uint64_t wanted = std::min(kWindowBytes, limit_ - offset_);
  window_.resize(wanted);
  window_start_ = offset_;
  const uint64_t got = source_.read_at(offset_, window_.data(), wanted);
  if (got == wanted) return;
  window_.resize(got);
  throw invalid("the file shrank while it was read", offset_, bytes_text(got) + " left",
                bytes_text(wanted) + " of the " + std::to_string(source_.size()) + " it had");
}

Error Cursor::invalid(std::string what, uint64_t offset, std::string found, std::string expected) const {
  return gguf::invalid(source_, std::move(what), offset, std::move(found), std::move(expected));
}

}  // namespace ellm::gguf
