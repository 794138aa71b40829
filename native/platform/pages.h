// Anonymous memory for weights, KV and the arena: zeroed, page aligned, huge pages asked for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ellm {

class Pages {
 public:
  Pages() = default;
  enum class Size { kHuge, kSmall };
  // Reserves `bytes`; memory is taken as it is touched. Throws kCapacity if the system refuses.
  explicit Pages(size_t bytes, Size size = Size::kHuge);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Returns whole pages within [offset, offset + bytes) to the system; they read as zero from then on.
  void give_back(size_t offset, size_t bytes) const;

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ellm
