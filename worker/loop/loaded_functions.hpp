#pragma once

// The functions that this worker has called: where their code is in this process.

#include <cstdint>
#include <unordered_map>

#include "common/protocol/function_address.hpp"
#include "worker/process/attachment.hpp"

namespace syncrun::detail::worker::loop {

struct LoadedFunction {
  std::uint64_t id;
  Thunk thunk;
  BodyPointer pointer;
};

class LoadedFunctions {
 public:
  explicit LoadedFunctions(const process::Attachment& attachment) noexcept : attachment_(attachment) {}

  /// The addresses of the thunk and the body. Finds them at the first call. `offset` is that of the FunctionEntry.
  const LoadedFunction& at(std::uint64_t offset) {
    const auto* entry = attachment_.segment.at<const protocol::FunctionEntry>(offset);
    if (entry->id == last_id_) return *last_;
    LoadedFunction& loaded = functions_[offset];
    if (loaded.id != entry->id) {
      const protocol::BodyEntry& body = attachment_.body_of(*entry);
      loaded = {entry->id, reinterpret_cast<Thunk>(protocol::resolve(body.thunk)), protocol::resolve_pointer(body)};
    }
    last_id_ = loaded.id;
    return *(last_ = &loaded);
  }

 private:
  const process::Attachment& attachment_;
  // By the offset of the FunctionEntry. The master uses the offset again when it has dropped the function.
  std::unordered_map<std::uint64_t, LoadedFunction> functions_;
  std::uint64_t last_id_ = 0;  // most calls are of the same function as the last one
  const LoadedFunction* last_ = nullptr;
};

}  // namespace syncrun::detail::worker::loop
