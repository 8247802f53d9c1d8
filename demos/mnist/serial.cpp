// Trains a classifier of handwritten digits on one processor: the serial twin of main.cpp.

#include "demos/mnist/serial_program.hpp"
#include "demos/mnist/serial_trainer.hpp"

int main(int argc, char** argv) {
  return mnist::run_serial_program<mnist::Trainer>(
      argc, argv, "syncrun-mnist-serial",
      R"(Trains a classifier of handwritten digits on one processor and prints its test accuracy.

usage: syncrun-mnist-serial [OPTION...]
)");
}
