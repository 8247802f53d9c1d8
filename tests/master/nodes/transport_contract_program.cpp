// Checks a promise of the contract of transports on MPI. An engine starts it on every node:
//
//   mpirun -np 3 transport_contract_program openmpi|mpich PROMISE
//
// Prints "node N keeps PROMISE" or "node N breaks PROMISE: why". Without arguments, it prints the names of the promises.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <thread>

#include "master/nodes/mpi_library.hpp"
#include "tests/master/nodes/transport_contract.hpp"

namespace {

using namespace syncrun;
using test::TransportPromise;

const TransportPromise* find_promise(std::string_view name) {
  for (const TransportPromise& promise : test::transport_contract()) {
    if (promise.name == name) return &promise;
  }
  return nullptr;
}

/// Returns why the promise is broken, or nothing.
std::string check(const TransportPromise& promise, detail::master::nodes::Transport& transport) {
  try {
    promise.check(transport);
    if (promise.end != TransportPromise::End::closes || transport.close(test::kContractGrace)) return {};
    return "close() has failed";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    for (const TransportPromise& promise : test::transport_contract()) std::printf("%s\n", promise.name);
    return argc == 1 ? 0 : 2;
  }
  const TransportPromise* const promise = find_promise(argv[2]);
  if (promise == nullptr) return 2;
  const auto transport = detail::master::nodes::load_mpi_transport(
      std::string_view(argv[1]) == "mpich" ? detail::master::nodes::Mpi::mpich : detail::master::nodes::Mpi::open_mpi);
  transport->open();
  const std::string why = check(*promise, *transport);
  std::printf("node %d %s %s%s%s (%s)\n", transport->node(), why.empty() ? "keeps" : "breaks", promise->name,
              why.empty() ? "" : ": ", why.c_str(), transport->description().c_str());
  std::fflush(stdout);
  // An engine may kill the other nodes as soon as one ends without closing. So node 0, whose verdict counts, ends first.
  if (promise->end == TransportPromise::End::does_not_close) {
    std::this_thread::sleep_for(std::chrono::seconds(transport->node() == 0 ? 1 : 3));
  }
  // If the transport was not closed in order, MPI must not run any more.
  ::_exit(why.empty() ? 0 : 1);
}
