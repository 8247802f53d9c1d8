# Tests which LibTorch syncrun_find_torch() takes, and which it refuses. The LibTorchs are empty files in SCRATCH.
#   cmake -D SCRATCH=FOLDER -P find_torch_test.cmake
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/SyncrunFindTorch.cmake)

# As a project for Linux sets them.
set(CMAKE_FIND_LIBRARY_PREFIXES lib)
set(CMAKE_FIND_LIBRARY_SUFFIXES .so)
set(CMAKE_SYSTEM_PREFIX_PATH ${SCRATCH}/system)

# Makes a LibTorch in FOLDER whose files search for its library as those of the real one do.
function(make_torch folder version flags)
  file(WRITE ${folder}/lib/libtorch.so "")
  file(WRITE ${folder}/share/cmake/Torch/TorchConfigVersion.cmake "set(PACKAGE_VERSION ${version})")
  file(WRITE ${folder}/share/cmake/Torch/TorchConfig.cmake "
    get_filename_component(TORCH_INSTALL_PREFIX \"\${CMAKE_CURRENT_LIST_DIR}/../../../\" ABSOLUTE)
    find_library(TORCH_LIBRARY torch PATHS \"\${TORCH_INSTALL_PREFIX}/lib\")
    set(TORCH_CXX_FLAGS \"${flags}\")")
endfunction()

# expect(FOLDER VERSION PROBLEM): looks for the LibTorch in FOLDER.
function(expect folder wanted_version wanted_problem)
  set(Torch_DIR ${folder}/share/cmake/Torch)
  syncrun_find_torch(version problem)
  if(wanted_problem STREQUAL "" AND NOT problem STREQUAL "")
    message(SEND_ERROR "${folder}: ${problem}")
  elseif(NOT problem MATCHES "${wanted_problem}")
    message(SEND_ERROR "${folder}: expected a problem with '${wanted_problem}', got '${problem}'")
  elseif(NOT version STREQUAL wanted_version)
    message(SEND_ERROR "${folder}: expected version ${wanted_version}, got '${version}'")
  elseif(problem STREQUAL "" AND NOT TORCH_LIBRARY STREQUAL "${folder}/lib/libtorch.so")
    message(SEND_ERROR "${folder}: its headers go with ${TORCH_LIBRARY}")
  endif()
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
make_torch(${SCRATCH}/system 1.13.0 "")
make_torch(${SCRATCH}/wheel 2.11.0 "-D_GLIBCXX_USE_CXX11_ABI=1")
make_torch(${SCRATCH}/old_abi 2.3.0 "-D_GLIBCXX_USE_CXX11_ABI=0")
make_torch(${SCRATCH}/old 1.12.1 "")

expect(${SCRATCH}/wheel 2.11.0 "")
# The build folder knows the library of the wheel by now.
expect(${SCRATCH}/system 1.13.0 "two copies of LibTorch were found: the headers of ${SCRATCH}/system, and the library ${SCRATCH}/wheel")
unset(TORCH_LIBRARY CACHE)
expect(${SCRATCH}/system 1.13.0 "")
expect(${SCRATCH}/old_abi 2.3.0 "old ABI")
expect(${SCRATCH}/old 1.12.1 "has version 1.12.1, and Syncrun requires 1.13")

# expect_comparison(OWN WHEEL PROBLEM): compares two versions of NCCL, as MAJOR MINOR PATCH.
function(expect_comparison own wheel wanted_problem)
  foreach(side IN ITEMS own wheel)
    list(GET ${side} 0 major)
    list(GET ${side} 1 minor)
    list(GET ${side} 2 patch)
    file(WRITE ${SCRATCH}/${side}.h
      "#define NCCL_MAJOR ${major}\n#define NCCL_MINOR ${minor}\n#define NCCL_PATCH ${patch}\n")
  endforeach()
  set(problem "")
  syncrun_compare_with_torch(NCCL ${SCRATCH}/own.h ${SCRATCH}/wheel.h NCCL PATCH)
  if(wanted_problem STREQUAL "" AND NOT problem STREQUAL "" OR NOT problem MATCHES "${wanted_problem}")
    message(SEND_ERROR "NCCL ${own} and ${wheel}: expected a problem with '${wanted_problem}', got '${problem}'")
  endif()
endfunction()

expect_comparison("2;28;9" "2;28;9" "")
expect_comparison("2;28;3" "2;28;9" "")
expect_comparison("2;28;9" "2;28;3" "built with NCCL 2.28.9 .*comes with 2.28.3 ")
expect_comparison("2;9;1" "2;28;9" "")
expect_comparison("3;0;1" "2;28;9" "built with NCCL 3.0.1 ")
expect_comparison("2;28;9" "3;0;1" "comes with 3.0.1 ")
# Without a header there is nothing to compare.
set(problem "")
syncrun_compare_with_torch(NCCL ${SCRATCH}/own.h ${SCRATCH}/none.h NCCL PATCH)
if(problem)
  message(SEND_ERROR "${problem}")
endif()
