#include "gguf/text.h"

#include <cstdint>
#include <cstring>

namespace ellm::gguf {
namespace {

constexpr size_t kQuotedLimit = 64;  // a message stays one readable line

bool is_continuation(unsigned char c) { return (c & 0xC0) == 0x80; }

// Length of the well-formed sequence that starts at `at` with a byte >= 0x80, or 0.
size_t multi_byte_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> unsigned char {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  const unsigned char lead = byte(0);
  const unsigned char second = byte(1);
  if (lead >= 0xC2 && lead <= 0xDF) return is_continuation(second) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned char low = lead == 0xE0 ? 0xA0 : 0x80;   // overlong below U+0800
    const unsigned char high = lead == 0xED ? 0x9F : 0xBF;  // surrogates
    return second >= low && second <= high && is_continuation(byte(2)) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned char low = lead == 0xF0 ? 0x90 : 0x80;   // overlong below U+10000
    const unsigned char high = lead == 0xF4 ? 0x8F : 0xBF;  // above U+10FFFF
    return second >= low && second <= high && is_continuation(byte(2)) && is_continuation(byte(3)) ? 4 : 0;
  }
  return 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (at + 8 <= text.size()) {
      uint64_t word;
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        at += 8;
        continue;
      }
    }
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const size_t length = multi_byte_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string quoted(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, kQuotedLimit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F && c != '\'' && c != '\\') {
      out += c;
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  out += '\'';
  if (text.size() > kQuotedLimit) out += "... (" + bytes_text(text.size()) + ")";
  return out;
}

std::string bytes_text(unsigned long long count) {
  return std::to_string(count) + (count == 1 ? " byte" : " bytes");
}

}  // namespace ellm::gguf
