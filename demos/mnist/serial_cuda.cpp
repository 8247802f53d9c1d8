// Trains a classifier of handwritten digits on one GPU: the serial twin of main.cpp on a GPU. The code for the GPU is
// in serial_cuda_trainer.cpp.

#include "demos/mnist/serial_cuda_trainer.hpp"
#include "demos/mnist/serial_program.hpp"

int main(int argc, char** argv) {
  return mnist::run_serial_program<mnist::Trainer>(
      argc, argv, "syncrun-mnist-serial-cuda",
      R"(Trains a classifier of handwritten digits on one GPU and prints its test accuracy.

usage: syncrun-mnist-serial-cuda [OPTION...]
)");
}
