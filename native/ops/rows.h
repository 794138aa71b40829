// Ops that treat rows one by one: embedding, norms, rotation with KV append.
#pragma once

#include "ops/step.h"

namespace ellm {

std::unique_ptr<Op> make_embed(Matrix matrix, float scale, int out);
std::unique_ptr<Op> make_rms_norm(int x, std::vector<float> weight, float epsilon, int out);
std::unique_ptr<Op> make_rms_norm_add(int x, std::vector<float> weight, float epsilon, int residual);

// cos and sin of every position, (positions, rotated / 2) each.
struct RopeTable {
  int64_t half;                        // rotated / 2
  bool interleaved;
  std::vector<float> cosine;
  std::vector<float> sine;
};
RopeTable make_rope_table(const std::vector<double>& inverse_frequencies, double magnitude, bool interleaved,
                          int64_t positions);

struct RopeAppendSpec {
  int qkv;
  int layer;
  int num_heads;
  int num_kv_heads;
  int head_dim;
  std::shared_ptr<const RopeTable> table;
  std::vector<float> q_norm;           // (D) or empty
  std::vector<float> k_norm;
  float epsilon;
};
std::unique_ptr<Op> make_rope_append(RopeAppendSpec spec);

}  // namespace ellm
