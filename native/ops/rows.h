// Ops that treat rows one by one: embedding, norms, rotation with KV append.
#pragma once

#include "ops/step.h"

namespace ellm {

std::unique_ptr<Op> make_embed(Matrix matrix, float scale, int out);
std::unique_ptr<Op> make_rms_norm(int x, std::vector<float> weight, float epsilon, int out);
std::unique_ptr<Op> make_rms_norm_add(int x, std::vector<float> weight, float epsilon, int residual);

// cos and sin by position, filled as far as a step needs: a long context costs no time at start.
class RopeTable {
 public:
  RopeTable(std::vector<double> inverse_frequencies, double magnitude, bool interleaved, int64_t positions);

  // Makes positions [0, positions) readable. Not while a step runs.
  void fill(int64_t positions);

  int64_t half() const { return static_cast<int64_t>(inverse_frequencies_.size()); }
  bool interleaved() const { return interleaved_; }
  // (half) each
  const float* cosine(int64_t position) const { return values() + position * 2 * half(); }
  const float* sine(int64_t position) const { return cosine(position) + half(); }

 private:
  float* values() const { return reinterpret_cast<float*>(pages_.data()); }

  std::vector<double> inverse_frequencies_;
  double magnitude_;
  bool interleaved_;
  int64_t filled_ = 0;
  int64_t positions_;
  Pages pages_;
};

struct RopeAppendSpec {
  int qkv;
  int layer;
  int num_heads;
  int num_kv_heads;
  int head_dim;
  std::shared_ptr<const RopeTable> table;
  std::vector<float> q_norm;  // (D) or empty
  std::vector<float> k_norm;
  float epsilon;
};
std::unique_ptr<Op> make_rope_append(RopeAppendSpec spec);

}  // namespace ellm
