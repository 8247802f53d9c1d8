# LibTorch, PyTorch's C++ API, for the part in libtorch/. With SYNCRUN_TORCH=AUTO, the part is built if LibTorch and
# nlohmann-json are found. With ON, it is an error if they are not. With OFF, this file does not look for LibTorch. Sets
# SYNCRUN_HAVE_TORCH and SYNCRUN_TORCH_VERSION.

include(CheckCXXSourceCompiles)
include(${CMAKE_CURRENT_LIST_DIR}/SyncrunFindTorch.cmake)

set(SYNCRUN_HAVE_TORCH OFF)
set(SYNCRUN_TORCH_VERSION "")
find_package(nlohmann_json QUIET)

# Sets SYNCRUN_TORCH_VERSION, or `problem` to the reason why the part cannot be built.
macro(syncrun_look_for_torch)
  set(problem "")
  if(NOT nlohmann_json_FOUND)
    set(problem "nlohmann-json was not found. Install nlohmann-json3-dev")
  elseif(SYNCRUN_SANITIZER)
    # Its containers would be filled by code without the sanitizer's checks, which reports errors that do not exist.
    set(problem "LibTorch was not built with the sanitizer ${SYNCRUN_SANITIZER}")
  else()
    syncrun_find_torch(SYNCRUN_TORCH_VERSION problem)
  endif()
  if(NOT problem AND SYNCRUN_HAVE_CUDA AND TARGET Syncrun::libtorch_cuda)
    set(wheel "${Torch_DIR}/../../../../nvidia")
    syncrun_compare_with_torch(NCCL "${NCCL_INCLUDE_DIR}/nccl.h" "${wheel}/nccl/include/nccl.h" NCCL PATCH)
  endif()
  if(NOT problem AND SYNCRUN_HAVE_CUDA AND TARGET Syncrun::libtorch_cuda)
    syncrun_compare_with_torch(cuDNN "${CUDNN_INCLUDE_DIR}/cudnn_version.h"
      "${wheel}/cudnn/include/cudnn_version.h" CUDNN PATCHLEVEL)
  endif()
  # The headers of 1.13 do not compile with clang 16 in C++20. g++ was tested, so it needs no check.
  if(NOT problem AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(CMAKE_REQUIRED_LIBRARIES torch)
    check_cxx_source_compiles("#include <torch/torch.h>\nint main() {}" SYNCRUN_TORCH_COMPILES)
    unset(CMAKE_REQUIRED_LIBRARIES)
    if(NOT SYNCRUN_TORCH_COMPILES)
      string(CONCAT problem "the headers of LibTorch ${SYNCRUN_TORCH_VERSION} in ${Torch_DIR} do not compile with "
        "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} in C++20. Take g++ or another LibTorch")
    endif()
  endif()
endmacro()

if(SYNCRUN_TORCH STREQUAL "AUTO" OR SYNCRUN_TORCH)
  syncrun_look_for_torch()
  if(NOT problem)
    set(SYNCRUN_HAVE_TORCH ON)
    set(devices "CPU devices only")
    if(TARGET Syncrun::libtorch_cuda AND SYNCRUN_HAVE_CUDA)
      set(devices "CPU devices and GPUs")
    endif()
    message(STATUS "Models of LibTorch: on ${devices}, LibTorch ${SYNCRUN_TORCH_VERSION} in ${Torch_DIR}")
  elseif(SYNCRUN_TORCH STREQUAL "AUTO")
    message(STATUS "Without models of LibTorch: ${problem}")
  else()
    message(FATAL_ERROR "SYNCRUN_TORCH=${SYNCRUN_TORCH}, but ${problem}. Or choose SYNCRUN_TORCH=OFF to build without models of LibTorch")
  endif()
endif()
