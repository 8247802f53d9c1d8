#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "syncrun/torch/units_interface.hpp"

namespace syncrun::libtorch::detail {

namespace {

bool are_alike(const ParameterGroup& a, const ParameterGroup& b) {
  return a.learning_rate == b.learning_rate && a.weight_decay == b.weight_decay && a.momentum == b.momentum &&
         a.beta1 == b.beta1 && a.beta2 == b.beta2;
}

}  // namespace

syncrun::detail::GroupsByRank divide_groups(const std::vector<ParameterGroup>& groups,
                                            std::span<const std::int64_t> begins, std::span<const std::int64_t> places,
                                            int world_size) {
  struct Place {
    std::int64_t first;     // of the parameter among all parameters
    std::int64_t in_unit;   // of the parameter in its unit
    std::int64_t elements;  // of the parameter
    std::int64_t part;      // the length of a rank's part of the unit
    std::int64_t begin;     // of this part in the rank's copy
  };
  std::vector<Place> by_copy;
  for (std::size_t i = 0; i < begins.size(); ++i)
    by_copy.push_back({begins[i], places[4 * i], places[4 * i + 1], places[4 * i + 2], places[4 * i + 3]});
  std::sort(by_copy.begin(), by_copy.end(), [](const Place& a, const Place& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.in_unit < b.in_unit;
  });
  syncrun::detail::GroupsByRank divided(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<ParameterGroup>& own = divided[static_cast<std::size_t>(rank)];
    for (const Place& place : by_copy) {
      const std::int64_t of_rank = rank * place.part;
      for (const ParameterGroup& group : groups) {
        // in the unit
        const std::int64_t to_unit = place.in_unit - place.first;
        const auto begin = std::max({group.begin + to_unit, place.in_unit, of_rank});
        const auto end = std::min({group.end + to_unit, place.in_unit + place.elements, of_rank + place.part});
        if (begin >= end) continue;
        ParameterGroup part = group;
        part.begin = place.begin + begin - of_rank;
        part.end = place.begin + end - of_rank;
        if (!own.empty() && own.back().end == part.begin && are_alike(own.back(), part)) own.back().end = part.end;
        else own.push_back(part);
      }
    }
  }
  return divided;
}

}  // namespace syncrun::libtorch::detail
