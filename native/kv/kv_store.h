// KV memory: blocks of 64 tokens for all layers and KV heads.
//
// The parts of a block lie apart: for each layer and KV head, consecutive block ids are consecutive
// in memory, so that scanning a sequence reads one stream per head. A part is K, V and, for formats
// to come, scales and summaries behind them; only part_bytes and the offsets know.
#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"
#include "platform/pages.h"

namespace ellm {

struct KvShape {
  int num_layers;
  int num_kv_heads;
  int head_dim;
  KvType type;
};

class KvStore {
 public:
  KvStore(const KvShape& shape, int64_t num_blocks);

  static int64_t part_bytes(const KvShape& shape);
  // Bytes of one block: all layers, all KV heads.
  static int64_t block_bytes(const KvShape& shape);

  uint8_t* keys(int layer, int kv_head, int32_t block) const {
    const int64_t part = (static_cast<int64_t>(layer) * shape_.num_kv_heads + kv_head) * num_blocks_ + block;
    return pages_.data() + part * part_bytes_;
  }
  uint8_t* values(int layer, int kv_head, int32_t block) const {
    return keys(layer, kv_head, block) + values_offset_;
  }
  const KvShape& shape() const { return shape_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t total_bytes() const { return static_cast<int64_t>(pages_.size()); }

 private:
  KvShape shape_;
  int64_t num_blocks_;
  int64_t part_bytes_;
  int64_t values_offset_;
  Pages pages_;
};

}  // namespace ellm
