#include "common/protocol/function_address.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "common/text/errors.hpp"

namespace syncrun::detail::protocol {

namespace {

struct Visit {
  bool (*matches)(const dl_phdr_info& module, const void* wanted);
  const void* wanted;
  std::optional<std::uintptr_t> base;
  ImageAddress image;
};

void read_build_id(const dl_phdr_info& module, ImageAddress& image) {
  image.build_id_bytes = 0;
  for (int i = 0; i < module.dlpi_phnum; ++i) {
    const auto& segment = module.dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* note = reinterpret_cast<const std::byte*>(module.dlpi_addr + segment.p_vaddr);
    const auto* end = note + segment.p_memsz;
    const std::size_t alignment = segment.p_align == 8 ? 8 : 4;
    const auto padded = [&](std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
    while (note + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) header;
      std::memcpy(&header, note, sizeof(header));
      const std::byte* name = note + sizeof(header);
      const std::byte* description = name + padded(header.n_namesz);
      if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
        image.build_id_bytes = std::min<std::uint32_t>(header.n_descsz, image.build_id.size());
        std::memcpy(image.build_id.data(), description, image.build_id_bytes);
        return;
      }
      note = description + padded(header.n_descsz);
    }
  }
}

std::string path_of(const dl_phdr_info& module) {
  if (module.dlpi_name != nullptr && module.dlpi_name[0] != '\0') return module.dlpi_name;
  std::array<char, 4096> path{};
  const auto length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return length > 0 ? std::string(path.data(), static_cast<std::size_t>(length)) : std::string();
}

int on_module(dl_phdr_info* module, std::size_t, void* data) {
  auto& visit = *static_cast<Visit*>(data);
  if (!visit.matches(*module, visit.wanted)) return 0;
  visit.base = module->dlpi_addr;
  read_build_id(*module, visit.image);
  text::put_text(visit.image.path, path_of(*module));
  return 1;
}

bool holds_address(const dl_phdr_info& module, const void* wanted) {
  const auto address = reinterpret_cast<std::uintptr_t>(wanted);
  for (int i = 0; i < module.dlpi_phnum; ++i) {
    const auto& segment = module.dlpi_phdr[i];
    const auto start = module.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && address >= start && address < start + segment.p_memsz) return true;
  }
  return false;
}

bool is_image(const dl_phdr_info& module, const void* wanted) {
  const auto& image = *static_cast<const ImageAddress*>(wanted);
  if (image.build_id_bytes == 0) return path_of(module) == text::get_text(image.path);
  ImageAddress found{};
  read_build_id(module, found);
  return found.build_id_bytes == image.build_id_bytes &&
         std::memcmp(found.build_id.data(), image.build_id.data(), found.build_id_bytes) == 0;
}

Visit find_module(bool (*matches)(const dl_phdr_info&, const void*), const void* wanted) {
  Visit visit{matches, wanted, std::nullopt, {}};
  ::dl_iterate_phdr(on_module, &visit);
  return visit;
}

}  // namespace

ImageAddress locate(const void* address) {
  Visit found = find_module(holds_address, address);
  if (!found.base) {
    text::throw_usage(
        "a replicated function must be code of the program or of a loaded library, which every worker has too");
  }
  found.image.offset = reinterpret_cast<std::uintptr_t>(address) - *found.base;
  return found.image;
}

void* resolve(const ImageAddress& place) {
  Visit found = find_module(is_image, &place);
  if (!found.base && ::dlopen(std::string(text::get_text(place.path)).c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
    found = find_module(is_image, &place);
  }
  if (!found.base) {
    throw Error(ErrorKind::system, "this worker has no image of " + std::string(text::get_text(place.path)) + " with " +
                                       describe_build_id(place) + ", where the master's function lies");
  }
  return reinterpret_cast<void*>(*found.base + place.offset);
}

BodyPointer resolve_pointer(const BodyEntry& body) {
  BodyPointer pointer;
  pointer.is_member = body.is_member;
  pointer.words = {body.words[0], body.words[1]};
  if (body.is_relocated) pointer.words[0] = reinterpret_cast<std::uintptr_t>(resolve(body.pointer));
  return pointer;
}

ImageAddress program_image() {
  // The program is the first module that dl_iterate_phdr visits.
  return find_module([](const dl_phdr_info&, const void*) { return true; }, nullptr).image;
}

std::string describe_build_id(const ImageAddress& image) {
  if (image.build_id_bytes == 0) return "no build id";
  std::string text = "build id ";
  for (std::uint32_t i = 0; i < std::min<std::uint32_t>(image.build_id_bytes, 8); ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[image.build_id[i] >> 4U];
    text += kDigits[image.build_id[i] & 0xfU];
  }
  return text;
}

}  // namespace syncrun::detail::protocol
