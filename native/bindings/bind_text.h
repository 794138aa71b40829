// Python door of what is done with the tokens of a text.
#pragma once

#include <nanobind/nanobind.h>

namespace ellm {

void bind_text(nanobind::module_& m);

}  // namespace ellm
