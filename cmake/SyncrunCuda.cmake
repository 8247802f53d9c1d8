# Support for CUDA devices. With SYNCRUN_CUDA=AUTO, it is built if a CUDA compiler and NCCL are found. With ON, their
# absence is an error. With OFF, this file does not look for them. Sets SYNCRUN_HAVE_CUDA, and defines the targets
# CUDA::* and syncrun_nccl, and syncrun_cudnn if cuDNN is found.

set(SYNCRUN_HAVE_CUDA OFF)

function(syncrun_without_cuda reason)
  if(SYNCRUN_CUDA STREQUAL "AUTO")
    message(STATUS "Without CUDA devices: ${reason}")
  else()
    message(FATAL_ERROR "SYNCRUN_CUDA=${SYNCRUN_CUDA}, but ${reason}. Install what is missing, or choose "
      "SYNCRUN_CUDA=OFF for CPU devices only")
  endif()
endfunction()

# Defines an imported target for a header and a library that have no CMake package. Defines nothing if they are not
# found.
function(syncrun_import target header library)
  string(TOUPPER ${library} name)
  find_path(${name}_INCLUDE_DIR ${header} HINTS ${${name}_ROOT} $ENV{${name}_ROOT} ${CUDAToolkit_INCLUDE_DIRS}
    PATH_SUFFIXES include)
  find_library(${name}_LIBRARY ${library} HINTS ${${name}_ROOT} $ENV{${name}_ROOT} ${CUDAToolkit_LIBRARY_DIR}
    PATH_SUFFIXES lib lib64)
  mark_as_advanced(${name}_INCLUDE_DIR ${name}_LIBRARY)
  if(${name}_INCLUDE_DIR AND ${name}_LIBRARY)
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    target_include_directories(${target} INTERFACE ${${name}_INCLUDE_DIR})
    target_link_libraries(${target} INTERFACE ${${name}_LIBRARY})
  endif()
endfunction()

if(SYNCRUN_CUDA STREQUAL "AUTO" OR SYNCRUN_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    syncrun_without_cuda("CMake found no CUDA compiler (put nvcc on PATH, or set CUDACXX)")
  else()
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80 90 CACHE STRING "GPUs to compile for")
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # one CUDA runtime per process: the program and Syncrun share it
    enable_language(CUDA)
    # CMake 3.25 does not know that this compiler supports C++20.
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
      list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
    endif()
    find_package(CUDAToolkit REQUIRED)
    syncrun_import(syncrun_nccl nccl.h nccl)
    syncrun_import(syncrun_cudnn cudnn.h cudnn)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
      syncrun_without_cuda("CUDA ${CMAKE_CUDA_COMPILER_VERSION} was found, and CUDA 12.0 or later is required")
    elseif(TARGET syncrun_nccl)
      set(SYNCRUN_HAVE_CUDA ON)
    else()
      syncrun_without_cuda("NCCL was not found (set NCCL_ROOT)")
    endif()
  endif()
endif()
