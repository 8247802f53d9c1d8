// A test for a warning of g++ 12. If insert() put a message into the vector of bytes, g++ would inline so much of this
// program that it takes the growth of the empty vector for an overflow, and warns. With a second task in it, g++
// inlines less. The program is compiled with the optimizer, and never run.

#include <syncrun/syncrun.hpp>

namespace sr = syncrun;

namespace {

void echo(sr::Pipe<int, int>& pipe) {
  while (auto number = pipe.receive()) pipe.send(*number);
}

}  // namespace

int main(int argc, char** argv) {
  return sr::run(argc, argv, [](sr::Session&) {
    auto task = sr::task(echo);
    task.send(int(3));
    static_cast<void>(task.receive());
  });
}
