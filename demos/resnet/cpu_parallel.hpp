#pragma once

// A loop over the cores that a CPU device has, where the build found OpenMP; else a loop.

#include <cstddef>

namespace resnet {

/// The `part`-th of `parts` nearly equal consecutive pieces of `count` things.
struct Piece {
  Piece(std::size_t count, std::size_t part, std::size_t parts)
      : begin(count * part / parts), end(count * (part + 1) / parts) {}
  std::size_t begin;
  std::size_t end;
};

/// Calls body(part) for each part from 0 to `parts` - 1, in any order, perhaps at the same time, and returns after the
/// last. The body does not throw. With OpenMP as many threads as it is told to (OMP_NUM_THREADS).
template <typename Body>
void for_each_part(std::size_t parts, const Body& body) {
  if (parts == 1) return body(0);  // a team of one would end the threads of the last one
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
  for (std::size_t part = 0; part < parts; ++part) body(part);
}

}  // namespace resnet
