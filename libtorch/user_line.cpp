#include "libtorch/user_line.hpp"

#if defined(SYNCRUN_HAVE_LIBDW)

#include <dlfcn.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/code/optional_library.hpp"
#include "common/code/symbols.hpp"

namespace syncrun::libtorch::detail {

namespace {

constexpr std::size_t kMostFrames = 128;

/// The functions of libdw, as found in the library.
struct DwarfLibrary {
  decltype(&::dwfl_begin) begin;
  decltype(&::dwfl_end) end;
  decltype(&::dwfl_linux_proc_find_elf) find_elf;
  decltype(&::dwfl_linux_proc_report) report;
  decltype(&::dwfl_report_end) report_end;
  decltype(&::dwfl_addrmodule) module_at;
  decltype(&::dwfl_module_addrinfo) symbol_at;
  decltype(&::dwfl_module_getsrc) line_at;
  decltype(&::dwfl_lineinfo) line_info;
  decltype(&::dwfl_module_addrdie) unit_at;
  decltype(&::dwarf_getscopes) scopes_at;
  decltype(&::dwarf_tag) tag;
  decltype(&::dwarf_attr) attribute;
  decltype(&::dwarf_formudata) number;
  decltype(&::dwarf_getsrcfiles) files;
  decltype(&::dwarf_filesrc) file_name;
};

/// Returns nothing if the library is not installed, or if it lacks a function.
std::optional<DwarfLibrary> load_library() {
  syncrun::detail::code::OptionalLibrary library("libdw.so.1");
  DwarfLibrary dw{};
  library.find(dw.begin, "dwfl_begin");
  library.find(dw.end, "dwfl_end");
  library.find(dw.find_elf, "dwfl_linux_proc_find_elf");
  library.find(dw.report, "dwfl_linux_proc_report");
  library.find(dw.report_end, "dwfl_report_end");
  library.find(dw.module_at, "dwfl_addrmodule");
  library.find(dw.symbol_at, "dwfl_module_addrinfo");
  library.find(dw.line_at, "dwfl_module_getsrc");
  library.find(dw.line_info, "dwfl_lineinfo");
  library.find(dw.unit_at, "dwfl_module_addrdie");
  library.find(dw.scopes_at, "dwarf_getscopes");
  library.find(dw.tag, "dwarf_tag");
  library.find(dw.attribute, "dwarf_attr");
  library.find(dw.number, "dwarf_formudata");
  library.find(dw.files, "dwarf_getsrcfiles");
  library.find(dw.file_name, "dwarf_filesrc");
  return library.has_all() ? std::optional(dw) : std::nullopt;
}

/// On some machines libdw would fetch files with debugging information over the network.
int find_no_file(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word, char**) {
  return -1;
}

struct SourceLine {
  std::string file;
  int line = 0;
};

/// The file name without its folders.
std::string_view base_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool is_of_a_library(std::string_view path) {
  constexpr std::array<std::string_view, 7> kFolders{
      "/include/c++/", "/ATen/", "/c10/", "/torch/csrc/", "/include/torch/", "syncrun/torch/", "syncrun/detail/"};
  return std::any_of(kFolders.begin(), kFolders.end(),
                     [&](std::string_view folder) { return path.find(folder) != std::string_view::npos; });
}

bool is_in_a_library(std::string_view function) {
  constexpr std::array<std::string_view, 7> kNamespaces{
      "syncrun::", "at::", "torch::", "c10::", "std::", "__gnu_cxx::", "lambda in syncrun::"};
  return std::any_of(kNamespaces.begin(), kNamespaces.end(),
                     [&](std::string_view name) { return function.starts_with(name); });
}

/// Reads the places of this process.
class OwnImage {
 public:
  explicit OwnImage(const DwarfLibrary& dw) : dw_(dw), process_(dw.begin(&callbacks(dw)), dw.end) {
    if (!process_ || dw_.report(process_.get(), ::getpid()) != 0) process_.reset();
    else dw_.report_end(process_.get(), nullptr, nullptr);
  }

  /// The place of the program at this address, or an empty text if the address is in a library.
  std::string place_at(Dwarf_Addr address) const {
    Dwfl_Module* const module = process_ ? dw_.module_at(process_.get(), address) : nullptr;
    if (module == nullptr) return {};
    const std::string function = function_at(module, address);
    for (const SourceLine& line : lines_at(module, address)) {
      if (is_of_a_library(line.file)) continue;
      // The function at the address may be one of Syncrun's, into which the program's was inlined.
      const std::string name = function.empty() || is_in_a_library(function) ? "" : function + " ";
      const std::string place = std::string(base_of(line.file)) + ":" + std::to_string(line.line);
      return name.empty() ? place : name + "(" + place + ")";
    }
    const bool is_program = !function.empty() && !is_in_a_library(function) && is_main_image(address);
    return is_program ? function : std::string();
  }

 private:
  static const Dwfl_Callbacks& callbacks(const DwarfLibrary& dw) {
    static const Dwfl_Callbacks kCallbacks{dw.find_elf, find_no_file, nullptr, nullptr};
    return kCallbacks;
  }
  /// Whether an address is in the executable and not in a library.
  static bool is_main_image(Dwarf_Addr address) {
    Dl_info info{};
    Dl_info own{};
    void* const main = ::dlsym(RTLD_DEFAULT, "main");
    if (::dladdr(reinterpret_cast<void*>(address), &info) == 0) return false;
    if (main != nullptr && ::dladdr(main, &own) != 0) return own.dli_fbase == info.dli_fbase;
    return base_of(info.dli_fname).find(".so") == std::string_view::npos;
  }
  std::string function_at(Dwfl_Module* module, Dwarf_Addr address) const {
    GElf_Off offset = 0;
    GElf_Sym symbol{};
    const char* name = dw_.symbol_at(module, address, &offset, &symbol, nullptr, nullptr, nullptr);
    return name == nullptr ? std::string()
                           : syncrun::detail::code::short_function_name(syncrun::detail::code::demangled(name));
  }

  /// The lines of an address: the line itself, and then the lines of the calls that the compiler has inlined there, from
  /// the innermost one outwards. Empty without debugging information.
  std::vector<SourceLine> lines_at(Dwfl_Module* module, Dwarf_Addr address) const {
    std::vector<SourceLine> lines;
    Dwfl_Line* const innermost = dw_.line_at(module, address);
    int line = 0;
    const char* file =
        innermost == nullptr ? nullptr : dw_.line_info(innermost, nullptr, &line, nullptr, nullptr, nullptr);
    if (file == nullptr) return lines;
    lines.push_back({file, line});
    Dwarf_Addr bias = 0;
    Dwarf_Die* const unit = dw_.unit_at(module, address, &bias);
    Dwarf_Die* found = nullptr;
    const int count = unit == nullptr ? 0 : dw_.scopes_at(unit, address - bias, &found);
    const std::unique_ptr<Dwarf_Die, void (*)(void*)> scopes(found, std::free);
    for (int i = 0; i < count; ++i) {
      if (dw_.tag(found + i) != DW_TAG_inlined_subroutine) continue;
      if (const auto call = call_of(unit, found + i)) lines.push_back(*call);
    }
    return lines;
  }
  /// Where an inlined function is called.
  std::optional<SourceLine> call_of(Dwarf_Die* unit, Dwarf_Die* inlined) const {
    Dwarf_Attribute attribute;
    Dwarf_Word line = 0;
    Dwarf_Word file = 0;
    Dwarf_Files* files = nullptr;
    std::size_t count = 0;
    const auto read = [&](unsigned int name, Dwarf_Word& value) {
      return dw_.attribute(inlined, name, &attribute) != nullptr && dw_.number(&attribute, &value) == 0;
    };
    if (!read(DW_AT_call_line, line) || !read(DW_AT_call_file, file)) return std::nullopt;
    if (dw_.files(unit, &files, &count) != 0 || file >= count) return std::nullopt;
    const char* name = dw_.file_name(files, file, nullptr, nullptr);
    return name == nullptr ? std::nullopt : std::optional(SourceLine{name, static_cast<int>(line)});
  }

  DwarfLibrary dw_;
  std::unique_ptr<Dwfl, decltype(DwarfLibrary::end)> process_;
};

std::string innermost_place() {
  const auto dw = load_library();
  if (!dw) return {};
  std::array<void*, kMostFrames> addresses;
  const int count = ::backtrace(addresses.data(), static_cast<int>(addresses.size()));
  const OwnImage image(*dw);
  for (int i = 0; i < count; ++i) {
    // A return address may already belong to the next line.
    const auto address = reinterpret_cast<Dwarf_Addr>(addresses[static_cast<std::size_t>(i)]) - 1;
    std::string place = image.place_at(address);
    if (place == "main" || place.starts_with("main ")) break;
    if (!place.empty()) return place;
  }
  return {};
}

}  // namespace

std::string user_line() noexcept {
  try {
    return innermost_place();
  } catch (const std::exception&) {
    return {};  // the message does without it
  }
}

}  // namespace syncrun::libtorch::detail

#else

namespace syncrun::libtorch::detail {
std::string user_line() noexcept { return {}; }
}  // namespace syncrun::libtorch::detail

#endif
