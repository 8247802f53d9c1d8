// A program that g++ 12 inlines until it warns, if a message is put into its vector of bytes by insert(): it takes the growth of
// the empty vector for an overflow. A second task in it, and g++ inlines less. Compiled with the optimizer; never run.

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
