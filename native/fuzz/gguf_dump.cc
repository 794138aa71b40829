// Reads each GGUF file named on the command line and prints one line per file: what it holds, or
// the error it ends in. Tests build it with sanitizers and run it over every hostile file.
//
//   gguf_dump [--missing-bytes N] [--grow] FILE...
//
// Both options change a file between opening and reading it: with --missing-bytes it has N bytes
// fewer than it claimed, with --grow it gets one more at the first read.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
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

struct Change {
  uint64_t missing_bytes = 0;
  bool grow = false;
};

class ChangingSource final : public ByteSource {
 public:
  ChangingSource(const std::string& path, const Change& change)
      : file_(path), identity_(file_.identity()), grow_(change.grow) {
    identity_.size_bytes += change.missing_bytes;
  }

  const std::string& name() const override { return file_.name(); }
  const FileIdentity& identity() const override { return identity_; }
  size_t read_at(uint64_t offset, void* out, size_t size) const override {
    if (grow_) std::ofstream(name(), std::ios::binary | std::ios::app).put('x');
    grow_ = false;
    return file_.read_at(offset, out, size);
  }
  void check_unchanged() const override { file_.check_unchanged(); }

 private:
  FileSource file_;
  FileIdentity identity_;
  mutable bool grow_;
};

const char* name_of(ErrorKind kind) {
  return kind == ErrorKind::kInvalidModel  ? "invalid"
         : kind == ErrorKind::kUnsupported ? "unsupported"
                                           : "other";
}

void dump(const char* path, const Change& change) {
  const auto open = [&](const std::string& shard) -> std::unique_ptr<ByteSource> {
    return std::make_unique<ChangingSource>(shard, change);
  };
  try {
    const ellm::gguf::Model model = ellm::gguf::read_model(path, open);
    ellm::gguf::touch_model(model, open);
    std::printf("ok %zu keys, %zu tensors, %zu shards\n", model.metadata.size(), model.tensors.size(),
                model.shards.size());
  } catch (const Error& error) {
    std::printf("%s %s\n", name_of(error.kind), error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Change change;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--missing-bytes") == 0 && i + 1 < argc) {
      change.missing_bytes = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--grow") == 0) {
      change.grow = true;
    } else {
      dump(argv[i], change);
    }
  }
  return 0;
}
