# SYNCRUN_CUDA: AUTO looks for a CUDA compiler, ON insists on one, OFF does not look.
#
# There is no CUDA code yet: cuda_is_built() has to stay false, so SYNCRUN_HAVE_CUDA is not set here. The CUDA library
# of the workers sets it when it comes (and calls enable_language(CUDA)).

set(SYNCRUN_CUDA_COMPILER "")
if(SYNCRUN_CUDA STREQUAL "AUTO" OR SYNCRUN_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(SYNCRUN_CUDA_COMPILER ${CMAKE_CUDA_COMPILER})
  elseif(NOT SYNCRUN_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "SYNCRUN_CUDA=${SYNCRUN_CUDA}, but CMake found no CUDA compiler: install the CUDA toolkit and "
      "put nvcc on PATH (or set CUDACXX), or choose SYNCRUN_CUDA=OFF for CPU devices only")
  endif()
endif()
