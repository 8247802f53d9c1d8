#include "worker/process/failure.hpp"

#include "common/text/errors.hpp"
#include "worker/process/interruption.hpp"
#include "worker/process/user_code.hpp"

namespace syncrun::detail::worker::process {

namespace {

ErrorKind kind_of(const Error& error, ThrownThrough through) noexcept {
  const bool is_misuse = error.kind() == ErrorKind::usage && through == ThrownThrough::user_code;
  return is_misuse ? ErrorKind::function : error.kind();
}

CaughtFailure described_failure(ThrownThrough through) {
  try {
    throw;
  } catch (const SessionLost&) {
    throw;
  } catch (const Abandoned& error) {
    return {ErrorKind::function, 0, error.what(), FailureOf::peer};
  } catch (const Error& error) {
    return {kind_of(error, through), error.native_code(), text::full_text_of(error)};
  } catch (...) {
    const ErrorKind kind = through == ThrownThrough::user_code ? ErrorKind::function : ErrorKind::system;
    return {kind, 0, text::describe_current_exception()};
  }
}

}  // namespace

CaughtFailure current_failure(ThrownThrough through) {
  CaughtFailure failure = described_failure(through);
  { const UserCode ends; }  // asking a user's exception for its text also runs user code
  return failure;
}

}  // namespace syncrun::detail::worker::process
