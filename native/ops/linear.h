// Matrix products: concatenated, added to a residual, gated, and the output head.
#pragma once

#include "ops/step.h"

namespace ellm {

std::unique_ptr<Op> make_linear(int x, std::vector<Matrix> parts, int out);
std::unique_ptr<Op> make_linear_add(int x, Matrix matrix, int residual);
enum class Activation { kSilu, kGeluTanh };
std::unique_ptr<Op> make_gated_linear(int x, Matrix gate, Matrix up, Activation activation, int out);
std::unique_ptr<Op> make_head(int x, std::vector<float> norm, float epsilon, Matrix matrix);

}  // namespace ellm
