// Text of untrusted files: UTF-8 validation, and a form that is safe to print in an error.
#pragma once

#include <string>
#include <string_view>

namespace ellm::gguf {

// True for well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, no surrogates, nothing
// above U+10FFFF. What passes here also passes Python's strict decoder.
bool is_utf8(std::string_view text);

// `text` in single quotes, other than printable ASCII as \xNN, long text cut with its length.
std::string quoted(std::string_view text);

// "1 byte", "17 bytes".
std::string bytes_text(unsigned long long count);

}  // namespace ellm::gguf
