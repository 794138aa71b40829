// Python door of the GGUF reader.
#pragma once

#include <nanobind/nanobind.h>

namespace ellm {

void bind_gguf(nanobind::module_& m);

}  // namespace ellm
