// Simulates an empty call on several nodes, and prints a line of JSON for each shape. bench/model_nodes.py runs it. A
// shape is a number of nodes and the fan-out of their tree; without one, the master sends to all nodes itself.
// CALLS is how many calls each shape makes. It prints the time of the last one, and the shortest times of code.
//
//   simulate_nodes OVERHEAD_US LATENCY_US GB_PER_S HERE_US WORKERS_US RANKS_OF_EACH CALLS 16 16:4 ...

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "tests/master/nodes/simulation/call_simulation.hpp"

namespace {

using syncrun::test::simulate_empty_calls;
using syncrun::test::SimulatedSession;

constexpr int kFixed = 7;  // arguments before the shapes

std::chrono::nanoseconds microseconds(const char* text) {
  return std::chrono::nanoseconds(std::llround(std::strtod(text, nullptr) * 1000));
}

void simulate(SimulatedSession session, const std::string& shape, int calls) {
  session.nodes = std::stoi(shape);
  if (const auto colon = shape.find(':'); colon != std::string::npos)
    session.fan_out = std::stoi(shape.substr(colon + 1));
  const auto call = simulate_empty_calls(session, calls);
  using Microseconds = std::chrono::duration<double, std::micro>;
  std::printf(
      "{\"nodes\": %d, \"fan_out\": %d, \"us\": %.3f, \"messages_sent\": %zu, \"bytes_sent\": %zu, "
      "\"bytes_reported\": %zu, \"send_code_us\": %.3f, \"take_code_us\": %.3f}\n",
      session.nodes, session.fan_out.value_or(0), Microseconds(call.time).count(), call.messages_sent, call.bytes_sent,
      call.bytes_reported, Microseconds(call.send_code).count(), Microseconds(call.take_code).count());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc <= kFixed + 1) {
    std::fputs(
        "usage: simulate_nodes OVERHEAD_US LATENCY_US GB_PER_S HERE_US WORKERS_US RANKS_OF_EACH CALLS NODES[:FAN_OUT] "
        "...\n",
        stderr);
    return 2;
  }
  try {
    SimulatedSession session;
    session.network = {microseconds(argv[1]), microseconds(argv[2]), std::strtod(argv[3], nullptr)};
    session.here = microseconds(argv[4]);
    session.workers = microseconds(argv[5]);
    session.ranks_of_each = std::atoi(argv[6]);
    const int calls = std::atoi(argv[kFixed]);
    for (int i = kFixed + 1; i < argc; ++i) simulate(session, argv[i], calls);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulate_nodes: %s\n", error.what());
    return 1;
  }
  return 0;
}
