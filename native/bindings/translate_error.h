// Turns `ellm::Error` into the classes of `ellm.errors`.
#pragma once

namespace ellm {

// Call once, while the module is initialised.
void register_error_translation();

}  // namespace ellm
