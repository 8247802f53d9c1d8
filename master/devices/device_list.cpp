#include "master/devices/device_list.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/control_block.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::master::devices {

namespace {

/// The form of a list, and where it comes from.
struct ListForm {
  std::string_view option;
  std::string_view text;
  char separator;          // between two entries
  std::string_view arrow;  // between a name and its device
};

/// One entry as the user has written it.
struct Entry {
  std::string_view text;
  std::optional<std::string_view> name;
  std::string_view device;
};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

[[noreturn]] void refuse(const ListForm& form, const std::string& what) {
  text::throw_usage(std::string(form.option) + ": " + what);
}

/// An entry, and the whole list unless it has no other entry: "'x' in 'x,cpu0'".
std::string with_list(const ListForm& form, std::string_view entry) {
  return quoted(entry) + (entry == form.text ? "" : " in " + quoted(form.text));
}

Entry entry_of(const ListForm& form, std::string_view text) {
  const auto at = text.find(form.arrow);
  if (at == std::string_view::npos) return {text, std::nullopt, text};
  return {text, text.substr(0, at), text.substr(at + form.arrow.size())};
}

std::string_view without_spaces_around(std::string_view text) {
  const auto begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return text.substr(0, 0);
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

bool is_good_name(std::string_view name) {
  // Every byte of a character outside ASCII is negative or larger than 127, so such characters are allowed.
  const auto is_space_or_control = [](char c) { return (c >= 0 && c <= ' ') || c == '\x7f'; };
  constexpr std::array<std::string_view, 4> kSeparators{"->", ";", ",", "="};
  return !name.empty() && !name.starts_with("cpu") && !name.starts_with("cuda") &&
         std::none_of(name.begin(), name.end(), is_space_or_control) &&
         std::none_of(kSeparators.begin(), kSeparators.end(),
                      [&](std::string_view separator) { return name.find(separator) != std::string_view::npos; });
}

void check_device_name(const ListForm& form, std::string_view name) {
  if (is_good_name(name)) return;
  refuse(form,
         "expected a name that is not empty, does not begin with cpu or cuda, and has no spaces and none of -> ; , =; "
         "got " +
             quoted(name) + " in " + quoted(form.text) + "; choose another name, such as dev0");
}

DeviceId device_of(const ListForm& form, const Entry& entry) {
  if (const auto device = parse_device(entry.device)) return *device;
  if (!entry.name) {
    refuse(form, "expected a list such as cpu0,cpu1 or dev0=cuda0,dev1=cuda1; got " + with_list(form, entry.text));
  }
  const std::string name(*entry.name);
  refuse(form, "expected a device such as cpu0 or cuda0 for the name " + name + ", got " + quoted(entry.device) +
                   " in " + quoted(form.text) + "; write for example " + name + std::string(form.arrow) + "cpu0");
}

/// Adds entries to a choice, one after the other.
class Collector {
 public:
  explicit Collector(const ListForm& form) : form_(form) {}

  void add(const Entry& entry) {
    if (entry.name) check_device_name(form_, *entry.name);
    const DeviceId device = device_of(form_, entry);
    const auto found = std::find(chosen_.by_rank.begin(), chosen_.by_rank.end(), device);
    const auto rank = found - chosen_.by_rank.begin();
    if (found == chosen_.by_rank.end()) {
      chosen_.by_rank.push_back(device);
      is_named_.push_back(entry.name.has_value());
    } else if (!entry.name || !is_named_[static_cast<std::size_t>(rank)]) {
      const std::string id = to_string(device);
      refuse(form_, "expected each device once, got " + id + " twice in " + quoted(form_.text) +
                        "; list it once, or give it a name in each place, such as " + named("a", id) + form_.separator +
                        named("b", id));
    }
    if (entry.name) add_name(entry, static_cast<int>(rank));
  }

  ChosenDevices take() { return std::move(chosen_); }

 private:
  std::string named(const std::string& name, const std::string& device) const {
    return name + std::string(form_.arrow) + device;
  }
  void add_name(const Entry& entry, int rank) {
    for (std::size_t i = 0; i < chosen_.names.size(); ++i) {
      if (chosen_.names[i].name != *entry.name) continue;
      refuse(form_, "expected each name once, got " + quoted(name_texts_[i]) + " and " + quoted(entry.text) + " in " +
                        quoted(form_.text) + "; give one of them another name");
    }
    chosen_.names.push_back({std::string(*entry.name), rank});
    name_texts_.push_back(entry.text);
  }

  const ListForm& form_;
  ChosenDevices chosen_;
  std::vector<bool> is_named_;                // by rank
  std::vector<std::string_view> name_texts_;  // the entries of chosen_.names
};

std::vector<std::string_view> entries_in(const ListForm& form) {
  auto entries = split(form.text, form.separator);
  if (entries.size() <= static_cast<std::size_t>(protocol::kMaxWorldSize)) return entries;
  refuse(form, "expected at most " + std::to_string(protocol::kMaxWorldSize) + " devices, got " +
                   std::to_string(entries.size()) + "; leave some out");
}

}  // namespace

ChosenDevices parse_device_list(std::string_view option, std::string_view text) {
  const ListForm form{option, text, ',', "="};
  Collector collector(form);
  for (const auto entry : entries_in(form)) collector.add(entry_of(form, entry));
  return collector.take();
}

ChosenDevices parse_contexts(std::string_view option, std::string_view text) {
  const ListForm form{option, text, ';', "->"};
  Collector collector(form);
  for (const auto part : entries_in(form)) {
    Entry entry = entry_of(form, without_spaces_around(part));
    if (!entry.name) {
      refuse(form, "expected NAME->DEVICE between semicolons, such as dev0->cuda0, got " + with_list(form, part) +
                       "; give each device a name");
    }
    entry.name = without_spaces_around(*entry.name);
    entry.device = without_spaces_around(entry.device);
    collector.add(entry);
  }
  return collector.take();
}

}  // namespace syncrun::detail::master::devices
