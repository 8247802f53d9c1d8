#include "libtorch/unit_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>
#include <system_error>

#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

/// A range of addresses that is reserved for the lifetime of the object.
class UnitMemory::Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(std::max<std::size_t>(bytes, 1)) {
    data_ = ::mmap(nullptr, bytes_, PROT_NONE, kFlags, -1, 0);
    if (data_ == MAP_FAILED) fail("reserve");
  }
  ~Pages() { ::munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  void* data() const noexcept { return data_; }
  /// The pages are zero.
  void open() {
    if (::mprotect(data_, bytes_, PROT_READ | PROT_WRITE) != 0) fail("get");
    ::madvise(data_, bytes_, MADV_HUGEPAGE);  // fewer page faults; it may be refused
  }
  /// One call frees the pages and forbids access. It may fail if the process has too many mappings.
  void close() noexcept {
    if (::mmap(data_, bytes_, PROT_NONE, kFlags | MAP_FIXED, -1, 0) != MAP_FAILED) return;
    ::madvise(data_, bytes_, MADV_DONTNEED);
    ::mprotect(data_, bytes_, PROT_NONE);
  }

 private:
  static constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  [[noreturn]] void fail(const char* what) const {
    throw Error(ErrorKind::system,
                std::string("cannot ") + what + " " + std::to_string(bytes_) +
                    " bytes for the parameters of a unit: " + std::generic_category().message(errno));
  }

  std::size_t bytes_;
  void* data_;
};

UnitMemory::UnitMemory(std::int64_t elements, ::torch::ScalarType type, ::torch::Device device) {
  const auto options = ::torch::TensorOptions().dtype(type).device(device);
  if (device.is_cpu()) {
    pages_ = std::make_shared<Pages>(static_cast<std::size_t>(elements) * c10::elementSize(type));
    flat_ = ::torch::from_blob(
        pages_->data(), {elements}, [pages = pages_](void*) {}, options);
  } else {
    flat_ = ::torch::empty({elements}, options);
  }
  close();
}

void UnitMemory::set_name(const std::string& name) {
  if (pages_) named_.emplace(pages_->data(), static_cast<std::size_t>(bytes()), name);
}

void UnitMemory::open() {
  if (pages_) {
    pages_->open();
  } else {
    c10::StorageImpl* const storage = flat_.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(storage->allocator()->allocate(storage->nbytes()));
  }
  is_open_ = true;
}

void UnitMemory::open_with_zeros() {
  open();
  if (!pages_) flat_.zero_();
}

void UnitMemory::close() noexcept {
  if (!is_open_) return;
  is_open_ = false;
  if (pages_) pages_->close();
  else flat_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, flat_.device()));
}

::torch::Tensor UnitMemory::part_of(const BoundParameter& parameter) const {
  return flat_.as_strided(parameter.sizes, parameter.strides, parameter.offset);
}

}  // namespace syncrun::libtorch::detail
