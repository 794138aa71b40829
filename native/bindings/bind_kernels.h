// Python door of kernels and formats: repacking, decoding, and single kernels for tests.
#pragma once

#include <nanobind/nanobind.h>

namespace ellm {

void bind_kernels(nanobind::module_& m);

}  // namespace ellm
