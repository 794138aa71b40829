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

void Cursor::Require(uint64_t size, const char* what) const {
  if (size <= remaining()) return;
  if (size <= source_.size() - offset_) {
    throw Invalid(std::string(what) + " does not fit into the header", offset_,
                  Bytes(size) + " more",
                  "a header of at most " + std::to_string(kMaxHeaderBytes) + " bytes");
  }
  throw Invalid(std::string(what) + " runs past the end of the file", offset_,
                Bytes(source_.size() - offset_) + " left", std::to_string(size) + " or more");
}

void Cursor::ReadBytes(void* out, uint64_t size, const char* what) {
  Require(size, what);
  auto* destination = static_cast<char*>(out);
  while (size > 0) {
    if (offset_ >= window_start_ + window_.size()) Fill();
    const uint64_t at = offset_ - window_start_;
    const uint64_t count = std::min(size, window_.size() - at);
    std::memcpy(destination, window_.data() + at, count);
    destination += count;
    offset_ += count;
    size -= count;
  }
}

void Cursor::Fill() {
  const uint64_t wanted = std::min(kWindowBytes, limit_ - offset_);
  window_.resize(wanted);
  window_start_ = offset_;
  const uint64_t got = source_.ReadAt(offset_, window_.data(), wanted);
  if (got == wanted) return;
  window_.resize(got);
  throw Invalid("the file shrank while it was read", offset_, Bytes(got) + " left",
                Bytes(wanted) + " of the " + std::to_string(source_.size()) + " it had");
}

Error Cursor::Invalid(std::string what, uint64_t offset, std::string found,
                      std::string expected) const {
  return gguf::Invalid(source_, std::move(what), offset, std::move(found), std::move(expected));
}

}  // namespace ellm::gguf
