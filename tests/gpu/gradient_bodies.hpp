#pragma once

// Bodies of train steps that say what of their gradient is final, as soon as it is. In every one the gradient of element i
// is mean(x) * (i % 7 + 1) + params[i], computed in kPieces pieces from the end.

#include <syncrun/syncrun.hpp>

#include "tests/gpu/bodies.hpp"

namespace gpu_test {

inline constexpr std::int64_t kPieces = 5;

/// Where piece k begins; piece kPieces is the end.
constexpr std::int64_t begin_of_piece(std::int64_t k, std::int64_t elements) { return elements * k / kPieces; }

enum class Says { nothing, each_piece, half, all_at_the_end };

/// Returns mean(x). T is float or double.
template <class T, Says kSays>
sr::Avg<double> gradient_in_pieces(sr::CudaWorker& worker, sr::GradientReady& ready, sr::Scattered<const T, 1> x,
                                   sr::Local<T, 1> params, sr::Local<T, 1> gradient);

/// The same with a collective of its own before each piece, as synchronised normalisation has: to the gradient of piece k is
/// added the sum over all ranks of (rank + 1) * (k + 1).
void gradient_with_sums(sr::CudaWorker& worker, sr::Comm& comm, sr::GradientReady& ready,
                        sr::Scattered<const float, 1> x, sr::Local<float, 1> params, sr::Local<float, 1> gradient);

/// Says all pieces, and one rank goes wrong after the second: exception, kill, or other_length, which here is to come to an
/// all_reduce that the others come to after the last piece.
void gradient_with_fault(sr::CudaWorker& worker, sr::Comm& comm, sr::GradientReady& ready,
                         sr::Scattered<const float, 1> x, int rank, Fault fault, sr::Local<float, 1> params,
                         sr::Local<float, 1> gradient);

/// After the second piece the rank throws, and the others launch a kernel for the first time.
void gradient_with_late_kernel(sr::CudaWorker& worker, sr::GradientReady& ready, sr::Scattered<const float, 1> x,
                               int rank, sr::Local<float, 1> params, sr::Local<float, 1> gradient);

/// Replayable: after the second piece the rank that the number names writes to where there is nothing.
void gradient_with_crash(sr::CudaWorker& worker, sr::GradientReady& ready, sr::Scattered<const float, 1> x,
                         sr::DeviceScalar<int> rank, sr::Local<float, 1> params, sr::Local<float, 1> gradient);

}  // namespace gpu_test
