#pragma once

// Element types and operations as NCCL names them, and groups of its calls.

#include <nccl.h>

#include <optional>
#include <string>

#include "common/arrays/reduce.hpp"
#include "common/text/errors.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail::worker::devices::cuda {

/// Returns nothing for types that NCCL does not support.
inline std::optional<ncclDataType_t> nccl_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::float16: return ncclFloat16;
    case DType::bfloat16: return ncclBfloat16;
    case DType::float32: return ncclFloat32;
    case DType::float64: return ncclFloat64;
    case DType::int8: return ncclInt8;
    case DType::int32: return ncclInt32;
    case DType::int64: return ncclInt64;
    case DType::uint8: return ncclUint8;
    case DType::uint32: return ncclUint32;
    case DType::uint64: return ncclUint64;
    case DType::int16:
    case DType::uint16:
    case DType::boolean: return std::nullopt;
  }
  return std::nullopt;
}

/// For avg, returns the sum, because the values are weighted before or during the operation. Not for gather.
inline ncclRedOp_t nccl_op(Reduction reduction) noexcept {
  switch (reduction) {
    case Reduction::min: return ncclMin;
    case Reduction::max: return ncclMax;
    case Reduction::prod: return ncclProd;
    case Reduction::avg:
    case Reduction::sum: return ncclSum;
    case Reduction::gather: break;
  }
  return ncclNumOps;  // NCCL refuses it
}

/// Throws Error (usage) if NCCL does not support this operation on the type.
inline ncclDataType_t checked_nccl_type(const char* what, DType dtype, Reduction reduction) {
  const auto type = nccl_type(dtype);
  if (!type || !arrays::can_reduce(dtype, reduction)) {
    text::throw_usage(std::string(what) + ": NCCL has no " + std::string(to_string(reduction)) + " of " +
                      std::string(to_string(dtype)));
  }
  return *type;
}

/// Puts one(0), one(1), ... one(count - 1) on the stream, in one launch.
template <class One>
ncclResult_t in_group(int count, One&& one) {
  ncclResult_t code = ncclGroupStart();
  if (code != ncclSuccess) return code;
  for (int i = 0; i < count && code == ncclSuccess; ++i) code = one(i);
  const ncclResult_t end = ncclGroupEnd();  // also after an error, because an open group is a state of the thread
  return code == ncclSuccess ? end : code;
}

}  // namespace syncrun::detail::worker::devices::cuda
