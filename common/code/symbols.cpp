#include "common/code/symbols.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "common/os/file_descriptor.hpp"
#include "common/protocol/function_address.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::code {

namespace {

/// A file, mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const os::FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!fd.is_open() || ::fstat(fd.get(), &status) != 0 || status.st_size <= 0) return;
    void* memory = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (memory != MAP_FAILED)
      bytes_ = {static_cast<const std::byte*>(memory), static_cast<std::size_t>(status.st_size)};
  }
  ~MappedFile() {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// `count` objects at `offset`; none if the file does not hold that many.
  template <class T>
  std::span<const T> at(std::size_t offset, std::size_t count) const {
    if (offset > bytes_.size() || count > (bytes_.size() - offset) / sizeof(T)) return {};
    return {reinterpret_cast<const T*>(bytes_.data() + offset), count};
  }

 private:
  std::span<const std::byte> bytes_;
};

/// The mangled name of the function at `offset` of an image, from its file's symbol table.
std::string symbol_in_file(const std::string& path, std::uint64_t offset) {
  const MappedFile file(path);
  const auto headers = file.at<ElfW(Ehdr)>(0, 1);
  if (headers.empty() || std::memcmp(headers[0].e_ident, ELFMAG, SELFMAG) != 0) return {};
  const auto sections = file.at<ElfW(Shdr)>(headers[0].e_shoff, headers[0].e_shnum);
  for (const auto& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const auto names = file.at<char>(sections[section.sh_link].sh_offset, sections[section.sh_link].sh_size);
    for (const auto& symbol : file.at<ElfW(Sym)>(section.sh_offset, section.sh_size / sizeof(ElfW(Sym)))) {
      const bool is_function = (symbol.st_info & 0xfU) == STT_FUNC;
      if (!is_function || symbol.st_value != offset || symbol.st_name >= names.size()) continue;
      const char* name = names.data() + symbol.st_name;
      return {name, ::strnlen(name, names.size() - symbol.st_name)};
    }
  }
  return {};
}

}  // namespace

std::string demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  return status == 0 && name ? name.get() : symbol;
}

std::string short_function_name(const std::string& demangled) {
  // A lambda is "program(Session&)::{lambda(Scattered<float const, 2>)#2}::_FUN(...)" for GCC, and
  // "program(Session&)::$_2::__invoke(...)" for Clang. Only the function that contains it is kept.
  const auto lambda = std::min(demangled.find("::{lambda"), demangled.find("::$_"));
  if (lambda != std::string::npos) return "lambda in " + short_function_name(demangled.substr(0, lambda));
  std::string name;
  int depth = 0;
  for (std::size_t i = 0; i < demangled.size(); ++i) {
    if (demangled.compare(i, 21, "(anonymous namespace)") == 0 && depth == 0) {
      i += 20;
      if (demangled.compare(i + 1, 2, "::") == 0) i += 2;
      continue;
    }
    const char c = demangled[i];
    if (c == '(' && depth == 0) break;  // the parameters begin
    if (c == '<') ++depth;
    if (c == ' ' && depth == 0) name.clear();  // the text before was the result type
    else name += c;
    if (c == '>') --depth;
  }
  return name;
}

std::string function_name_at(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) != 0 && info.dli_sname != nullptr && info.dli_saddr == address) {
    return short_function_name(demangled(info.dli_sname));
  }
  try {
    const protocol::ImageAddress place = protocol::locate(address);
    const std::string symbol = symbol_in_file(std::string(text::get_text(place.path)), place.offset);
    return symbol.empty() ? std::string() : short_function_name(demangled(symbol));
  } catch (const Error&) {
    return {};  // no image contains the address; the code that calls the function reports this
  }
}

}  // namespace syncrun::detail::code
