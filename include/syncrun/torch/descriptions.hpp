#pragma once

// What the master asks of replicas. Users never name anything in this header.

#include <cstdint>

#include "syncrun/output.hpp"

namespace syncrun::libtorch::detail {

/// The parameters of a replica: those that it has, or those that it will have after change().
enum class Layout : std::uint8_t { present, proposed };

/// What the master asks of a new replica. `layouts` has the text of each rank, each with a zero byte at its end.
struct ReplicaDescription {
  Max<std::int64_t> elements;
  Max<std::int64_t> has_buffers;
  Gather<std::uint8_t, 1> layouts;
};

/// The checksums of a replica's parameters and buffers, and their names, each with a zero byte at its end.
struct ReplicaChecksums {
  Gather<std::uint64_t, 2> sums;  // a row of each rank
  Gather<std::uint8_t, 1> names;
};

/// What load() did not copy: names, each with a zero byte at its end.
struct LoadedNames {
  Gather<std::uint8_t, 1> missing;
  Gather<std::uint8_t, 1> additional;
};

/// The parameters of a replica. `names` has a zero byte after each name. A row of `places` has the first element, the
/// end and the number of dimensions of a parameter.
struct PartsDescription {
  Gather<std::uint8_t, 1> names;
  Gather<std::int64_t, 2> places;
};

/// The parameters of a replica before and after a change. A row has the id, the first element and the end of a parameter.
/// `ids` has the ids of all parameters after it, also of frozen ones.
struct ChangeDescription {
  Gather<std::int64_t, 2> before;
  Gather<std::int64_t, 2> after;
  Gather<std::int64_t, 1> ids;
};

}  // namespace syncrun::libtorch::detail
