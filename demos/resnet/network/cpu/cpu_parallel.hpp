#pragma once

// A loop that is divided among the cores of a CPU device if the build found OpenMP. Otherwise it is an ordinary loop.

#include <cstddef>

namespace resnet {

/// The piece `part` of `count` items, which are divided into `parts` consecutive pieces of nearly equal size.
struct Piece {
  Piece(std::size_t count, std::size_t part, std::size_t parts)
      : begin(count * part / parts), end(count * (part + 1) / parts) {}
  std::size_t begin;
  std::size_t end;
};

/// Calls body(part) for each part from 0 to `parts` - 1, in any order and possibly at the same time. Returns after the
/// last part. The body must not throw. OpenMP uses as many threads as OMP_NUM_THREADS says.
template <typename Body>
void for_each_part(std::size_t parts, const Body& body) {
  if (parts == 1) return body(0);  // a team of one thread would end the threads of the team before
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
  for (std::size_t part = 0; part < parts; ++part) body(part);
}

}  // namespace resnet
