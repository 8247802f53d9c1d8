# Finds LibTorch. The build and the installed package include this file.

# Sets `version_variable` to the version that was found and defines the target `Syncrun::libtorch`, or sets `problem_variable` to the
# reason why there is no LibTorch that Syncrun can use. This is a function, because the files of LibTorch set many
# variables.
function(syncrun_find_torch version_variable problem_variable)
  # With C++20, the files of LibTorch's CUDA build fail when they choose the GPUs to compile for. Syncrun compiles
  # nothing for GPUs with them, so the choice does not matter.
  if(NOT DEFINED TORCH_CUDA_ARCH_LIST AND NOT DEFINED ENV{TORCH_CUDA_ARCH_LIST})
    set(TORCH_CUDA_ARCH_LIST 8.0)
  endif()
  set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
  # LibTorch's files search the system's folders for its libraries before its own. With Torch_DIR alone, they would take
  # the headers of one LibTorch and the libraries of another.
  if(Torch_DIR)
    get_filename_component(prefix "${Torch_DIR}/../../.." ABSOLUTE)
    list(PREPEND CMAKE_PREFIX_PATH "${prefix}")
  endif()
  find_package(Torch QUIET)
  set(problem "")
  if(NOT Torch_FOUND AND NOT TORCH_FOUND)
    set(problem "LibTorch was not found. Install libtorch-dev, or set Torch_DIR to its share/cmake/Torch")
  elseif("${TORCH_CXX_FLAGS}" MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
    string(CONCAT problem "LibTorch in ${Torch_DIR} was built with the old ABI of the C++ library "
      "(_GLIBCXX_USE_CXX11_ABI=0), and Syncrun requires the new one. Take LibTorch's cxx11 ABI download, "
      "libtorch-dev, or a wheel of 2.6 or later")
  elseif(Torch_VERSION VERSION_LESS 1.13)
    set(problem "LibTorch in ${Torch_DIR} has version ${Torch_VERSION}, and Syncrun requires 1.13 or later")
  elseif(TORCH_INSTALL_PREFIX AND TORCH_LIBRARY)
    cmake_path(IS_PREFIX TORCH_INSTALL_PREFIX "${TORCH_LIBRARY}" NORMALIZE is_one_copy)
    if(NOT is_one_copy)
      string(CONCAT problem "two copies of LibTorch were found: the headers of ${TORCH_INSTALL_PREFIX}, and the library "
        "${TORCH_LIBRARY}. Configure in a fresh folder with CMAKE_PREFIX_PATH=${TORCH_INSTALL_PREFIX}")
    endif()
  endif()
  if(NOT problem AND TARGET torch AND NOT TARGET Syncrun::libtorch)
    add_library(Syncrun::libtorch INTERFACE IMPORTED GLOBAL)
    if(TARGET torch_cuda_library AND TARGET torch_cpu_library)
      # Programs and libsyncrun_torch use LibTorch's libraries for CPUs only. Each process of a program with the CUDA
      # libraries of the wheel of 2.11 would take 350 MiB and a quarter of a second more.
      separate_arguments(flags NATIVE_COMMAND "${TORCH_CXX_FLAGS}")
      set_target_properties(Syncrun::libtorch PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}"
        INTERFACE_COMPILE_OPTIONS "${flags}"
        INTERFACE_LINK_LIBRARIES "torch_cpu_library;c10")
      # For Syncrun's own part for CUDA devices, a library that only workers with a GPU load. Nothing there refers to
      # libtorch_cuda, which adds its kernels to LibTorch when it is loaded.
      # Older versions lack functions that it calls.
      if(Torch_VERSION VERSION_GREATER_EQUAL 2.6)
        get_filename_component(folder "${TORCH_LIBRARY}" DIRECTORY)
        set(kernels "-Wl,--push-state,--no-as-needed,${folder}/libtorch_cuda.so,--pop-state")
        add_library(Syncrun::libtorch_cuda INTERFACE IMPORTED GLOBAL)
        set_target_properties(Syncrun::libtorch_cuda PROPERTIES
          INTERFACE_LINK_LIBRARIES "Syncrun::libtorch;${kernels};${folder}/libc10_cuda.so")
      endif()
    else()
      set_target_properties(Syncrun::libtorch PROPERTIES INTERFACE_LINK_LIBRARIES torch)
    endif()
  endif()
  set(${problem_variable} "${problem}" PARENT_SCOPE)
  set(${version_variable} "${Torch_VERSION}" PARENT_SCOPE)
endfunction()

# Sets `result` to the version that a header defines by PREFIX_MAJOR, PREFIX_MINOR and the third name. Sets it to "" if
# there is no such header.
function(syncrun_header_version result header prefix patch)
  set(version "")
  if(EXISTS "${header}")
    file(READ "${header}" text)
    foreach(part IN ITEMS MAJOR MINOR ${patch})
      if(text MATCHES "#define ${prefix}_${part} +([0-9]+)")
        list(APPEND version ${CMAKE_MATCH_1})
      endif()
    endforeach()
    list(JOIN version "." version)
  endif()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

# Sets `problem` if Syncrun would be built with another version of a CUDA library than the one that comes with LibTorch's
# wheel and that both will use. The major version must be the same, and LibTorch's must not be older.
function(syncrun_compare_with_torch name own_header wheel_header prefix patch)
  syncrun_header_version(own "${own_header}" ${prefix} ${patch})
  syncrun_header_version(wheel "${wheel_header}" ${prefix} ${patch})
  if(NOT own OR NOT wheel)
    return()
  endif()
  string(REGEX MATCH "^[0-9]+" own_major "${own}")
  string(REGEX MATCH "^[0-9]+" wheel_major "${wheel}")
  if(NOT own_major EQUAL wheel_major OR wheel VERSION_LESS own)
    string(TOUPPER ${name} variable)
    set(problem "Syncrun would be built with ${name} ${own} (${own_header}), and LibTorch in ${Torch_DIR} comes with \
${wheel} (${wheel_header}), which both would use. Expected the same major version and not an older one. Configure with \
${variable}_ROOT set to the folder of LibTorch's, or take another LibTorch" PARENT_SCOPE)
  endif()
endfunction()
