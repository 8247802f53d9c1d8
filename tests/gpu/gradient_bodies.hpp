#pragma once

// Bodies of train steps that say which part of their gradient is final, as soon as it is. In each body, the gradient of
// element i is mean(x) * (i % 7 + 1) + params[i]. The body computes it in kPieces pieces, from the end.

#include <syncrun/syncrun.hpp>

#include "tests/gpu/bodies.hpp"

namespace gpu_test {

inline constexpr std::int64_t kPieces = 5;

/// The first element of piece k. For k = kPieces, this is the number of elements.
constexpr std::int64_t begin_of_piece(std::int64_t k, std::int64_t elements) { return elements * k / kPieces; }

enum class Says { nothing, each_piece, half, all_at_the_end };

/// Computes the gradient, and says what kSays names. Returns mean(x). T is float or double.
template <class T, Says kSays>
sr::Avg<double> gradient_in_pieces(sr::CudaWorker& worker, sr::GradientReady& ready, sr::Scattered<const T, 1> x,
                                   sr::Local<T, 1> params, sr::Local<T, 1> gradient);

/// Calls a collective of its own before each piece, as synchronised normalisation does. The sum over all ranks of (rank
/// + 1) * (k + 1) is added to the gradient of piece k.
void gradient_with_sums(sr::CudaWorker& worker, sr::Comm& comm, sr::GradientReady& ready,
                        sr::Scattered<const float, 1> x, sr::Local<float, 1> params, sr::Local<float, 1> gradient);

/// Says each piece when it is final. One rank goes wrong after the second piece: exception, kill or other_length. Here,
/// other_length means that the rank calls an all_reduce that the other ranks call after the last piece.
void gradient_with_fault(sr::CudaWorker& worker, sr::Comm& comm, sr::GradientReady& ready,
                         sr::Scattered<const float, 1> x, int rank, Fault fault, sr::Local<float, 1> params,
                         sr::Local<float, 1> gradient);

/// After the second piece, rank `rank` throws. The others launch a kernel that they have not launched before.
void gradient_with_late_kernel(sr::CudaWorker& worker, sr::GradientReady& ready, sr::Scattered<const float, 1> x,
                               int rank, sr::Local<float, 1> params, sr::Local<float, 1> gradient);

/// Replayable: after the second piece, the rank with the given number writes to an invalid address.
void gradient_with_crash(sr::CudaWorker& worker, sr::GradientReady& ready, sr::Scattered<const float, 1> x,
                         sr::DeviceScalar<int> rank, sr::Local<float, 1> params, sr::Local<float, 1> gradient);

}  // namespace gpu_test
