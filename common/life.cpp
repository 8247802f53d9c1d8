#include "common/life.hpp"

#include <cerrno>

#include "common/errors.hpp"

namespace syncrun::detail {

namespace {
void check(int code, const char* what) {
  if (code != 0) throw_errno(what, code);
}
}  // namespace

void initialise_life(pthread_mutex_t& life) {
  pthread_mutexattr_t attributes;
  check(::pthread_mutexattr_init(&attributes), "pthread_mutexattr_init");
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  const int code = ::pthread_mutex_init(&life, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  check(code, "cannot make a robust mutex");
}

void hold_life(pthread_mutex_t& life) { check(::pthread_mutex_lock(&life), "cannot take the worker's sign of life"); }

void await_death(pthread_mutex_t& life) {
  const int code = ::pthread_mutex_lock(&life);
  if (code == EOWNERDEAD) ::pthread_mutex_consistent(&life);
  if (code == 0 || code == EOWNERDEAD) ::pthread_mutex_unlock(&life);
}

}  // namespace syncrun::detail
