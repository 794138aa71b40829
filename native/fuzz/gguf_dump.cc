// Reads each GGUF file named on the command line and prints one line per file: what it holds, or
// the error it ends in. Tests build it with sanitizers and run it over every hostile file.
//
//   gguf_dump [--missing-bytes N] FILE...
//
// With --missing-bytes every file claims to be N bytes longer than it is, as if it had been cut
// after it was opened.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "base/error.h"
#include "fuzz/touch_model.h"
#include "gguf/byte_source.h"
#include "gguf/shards.h"

namespace {

using ellm::Error;
using ellm::ErrorKind;
using ellm::gguf::ByteSource;
using ellm::gguf::FileIdentity;
using ellm::gguf::FileSource;

class CutSource final : public ByteSource {
 public:
  CutSource(const std::string& path, uint64_t missing_bytes)
      : file_(path), identity_(file_.identity()) {
    identity_.size_bytes += missing_bytes;
  }

  const std::string& name() const override { return file_.name(); }
  const FileIdentity& identity() const override { return identity_; }
  size_t ReadAt(uint64_t offset, void* out, size_t size) const override {
    return file_.ReadAt(offset, out, size);
  }
  void CheckUnchanged() const override { file_.CheckUnchanged(); }

 private:
  FileSource file_;
  FileIdentity identity_;
};

const char* NameOf(ErrorKind kind) {
  return kind == ErrorKind::kInvalidModel  ? "invalid"
         : kind == ErrorKind::kUnsupported ? "unsupported"
                                           : "other";
}

void Dump(const char* path, uint64_t missing_bytes) {
  const auto open = [&](const std::string& shard) -> std::unique_ptr<ByteSource> {
    return std::make_unique<CutSource>(shard, missing_bytes);
  };
  try {
    const ellm::gguf::Model model = ellm::gguf::ReadModel(path, open);
    ellm::gguf::TouchModel(model, open);
    std::printf("ok %zu keys, %zu tensors, %zu shards\n", model.metadata.size(),
                model.tensors.size(), model.shards.size());
  } catch (const Error& error) {
    std::printf("%s %s\n", NameOf(error.kind), error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t missing_bytes = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--missing-bytes") == 0 && i + 1 < argc) {
      missing_bytes = std::strtoull(argv[++i], nullptr, 10);
      continue;
    }
    Dump(argv[i], missing_bytes);
  }
  return 0;
}
