// A Syncrun program that does nothing. It shows the cost of a launch.

#include "syncrun/syncrun.hpp"

int main(int argc, char** argv) {
  return syncrun::run(argc, argv, [](syncrun::Session&) {});
}
