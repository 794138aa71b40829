#include "platform/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "base/error.h"

namespace ellm {

Pages::Pages(size_t bytes, Size size) : size_(bytes) {
  if (bytes == 0) return;
  void* address =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    throw Error(ErrorKind::kCapacity, "the system refused " + std::to_string(bytes) + " bytes of memory");
  }
  // Advice only: without huge pages the kernels are slower, not wrong.
  madvise(address, bytes, size == Size::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  data_ = static_cast<uint8_t*>(address);
}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, size_);
}

void Pages::give_back(size_t offset, size_t bytes) const {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = (offset + bytes) / page * page;
  if (begin < end) madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace ellm
