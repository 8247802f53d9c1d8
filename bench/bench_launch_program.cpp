// A Syncrun program that does nothing: what launching costs.

#include "syncrun/syncrun.hpp"

int main(int argc, char** argv) {
  return syncrun::run(argc, argv, [](syncrun::Session&) {});
}
