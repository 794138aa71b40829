// libFuzzer target of the GGUF reader: any bytes end in a checked model or in an `Error`.
//
// Input that holds the magic a second time is read as two shards, cut there, so that joining is
// reached as well.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "fuzz/touch_model.h"
#include "gguf/byte_source.h"
#include "gguf/shards.h"

namespace {

using ellm::Error;
using ellm::gguf::ByteSource;
using ellm::gguf::MemorySource;

constexpr char kFirst[] = "m-00001-of-00002.gguf";
constexpr char kSecond[] = "m-00002-of-00002.gguf";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t cut = text.find("GGUF", 4);
  const bool sharded = cut != std::string_view::npos;
  const std::span<const uint8_t> bytes(data, size);
  const auto open = [&](const std::string& path) -> std::unique_ptr<ByteSource> {
    if (!sharded) return std::make_unique<MemorySource>(bytes, path);
    if (path == kFirst) return std::make_unique<MemorySource>(bytes.first(cut), path);
    if (path == kSecond) return std::make_unique<MemorySource>(bytes.subspan(cut), path);
    throw Error(ellm::ErrorKind::kInvalidModel, "cannot open", path, std::nullopt, "nothing",
                "one of two shards");
  };
  try {
    touch_model(ellm::gguf::read_model(sharded ? kFirst : "m.gguf", open), open);
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
