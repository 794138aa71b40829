// KV memory: blocks of 64 tokens for all layers and KV heads.
//
// The parts of a block lie apart: for each layer and KV head, consecutive block ids are consecutive
// in memory, so that scanning a sequence reads one stream per head. A part is K, V and what the type
// needs beside them; only part_bytes and the offsets know.
//
// int8 blocks are stored when their 64th token is there. Until then, and for the rows of the block
// itself, there is a float form: what a row sees depends on its position alone, however its prompt was
// cut. Float forms have their own addresses for every block id, but memory only for the last two blocks
// of each sequence; older ones are given back.
#pragma once

#include <cstdint>
#include <vector>

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
  // int8 only: K and V of a block as append_f32 writes them.
  uint8_t* float_keys(int layer, int kv_head, int32_t block) const {
    const int64_t part = (int64_t{block} * shape_.num_layers + layer) * shape_.num_kv_heads + kv_head;
    return floats_.data() + part * float_part_bytes_;
  }
  uint8_t* float_values(int layer, int kv_head, int32_t block) const {
    return float_keys(layer, kv_head, block) + float_values_offset_;
  }
  // Bytes of the float form of one block; zero for float types, whose blocks need none beside them.
  static int64_t float_block_bytes(const KvShape& shape);

  // Before a step appends tokens [start, start + count) to the sequence of `blocks`: throws kConfig if
  // the float form of the block that `start` lies in is gone, and gives back those not needed again.
  void prepare(const int32_t* blocks, int32_t start, int32_t count);
  // The sequence that used `block` has ended.
  void forget(int32_t block);

  // A full block as stored, all layers and heads one after another (block_bytes), and back.
  void copy_out(int32_t block, uint8_t* target) const;
  void copy_in(int32_t block, const uint8_t* source);

  const KvShape& shape() const { return shape_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t total_bytes() const { return static_cast<int64_t>(pages_.size()); }

 private:
  void drop_floats(int32_t block);

  KvShape shape_;
  int64_t num_blocks_;
  int64_t part_bytes_;
  int64_t values_offset_;
  Pages pages_;
  int64_t float_part_bytes_ = 0;
  int64_t float_values_offset_ = 0;
  Pages floats_;
  std::vector<uint8_t> float_tokens_;  // per block: leading tokens whose float form is there
};

}  // namespace ellm
