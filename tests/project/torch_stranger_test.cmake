# The component torch of the installed package. Builds a program against it and runs the program. Then checks what CMake
# says if LibTorch does not fit.
# Given: BUILD, GENERATOR, COMPILER, SCRATCH, LIBRARY_FOLDER, STEP_LIMIT_S (the time that each step may take).
cmake_minimum_required(VERSION 3.25)

# Runs a command. Its output must match WORDS. With FAILS, the command must fail.
function(run words)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "FAILS" "" "COMMAND")
  execute_process(COMMAND ${ARG_COMMAND} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output
    TIMEOUT ${STEP_LIMIT_S})
  list(JOIN ARG_COMMAND " " command)
  message(STATUS "${command}\n${output}")
  if((code EQUAL 0) STREQUAL ARG_FAILS)
    message(FATAL_ERROR "ended with ${code}: ${command}")
  endif()
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(NOT output MATCHES "${words}")
    message(FATAL_ERROR "printed something else than '${words}': ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
set(prefix ${SCRATCH}/prefix)
run("" COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/before)
file(RENAME ${SCRATCH}/before ${prefix})
set(configure ${CMAKE_COMMAND} -G ${GENERATOR} -S ${CMAKE_CURRENT_LIST_DIR}/torch_stranger
  -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_COMPILER=${COMPILER})

run("Syncrun::torch uses LibTorch [0-9.]+ in /"
  COMMAND ${configure} -B ${SCRATCH}/build -D CMAKE_PREFIX_PATH=${prefix})
run("" COMMAND ${CMAKE_COMMAND} --build ${SCRATCH}/build)
run("2 workers: y = 3[.]0 x [+] 1[.]0" COMMAND ${prefix}/bin/syncrun -n 2 ${SCRATCH}/build/torch_stranger)

# A LibTorch that is not there, or whose CMake file says that it does not fit.
function(refuse name version flags words)
  set(folder ${SCRATCH}/${name})
  file(WRITE ${folder}/torch/TorchConfig.cmake "set(TORCH_CXX_FLAGS \"${flags}\")\nset(TORCH_FOUND TRUE)\n")
  file(WRITE ${folder}/torch/TorchConfigVersion.cmake
    "set(PACKAGE_VERSION ${version})\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
  run("${words}" FAILS COMMAND ${configure} -B ${folder}/build -D CMAKE_PREFIX_PATH=${prefix} -D Torch_DIR=${folder}/torch)
endfunction()
refuse(old_abi 99.0 -D_GLIBCXX_USE_CXX11_ABI=0
  "LibTorch in ${SCRATCH}/old_abi/torch was built with the old ABI of the C[+][+] library")
refuse(too_old 1.9 "" "has version 1[.]9, and Syncrun requires 1[.]13 or later")
refuse(other_major 99.0 ""
  "found LibTorch 99[.]0 in ${SCRATCH}/other_major/torch, but Syncrun was built with [0-9.]+[.] Its major version must be the same")
run("LibTorch was not found" FAILS COMMAND ${configure} -B ${SCRATCH}/absent -D CMAKE_PREFIX_PATH=${prefix}
  -D CMAKE_DISABLE_FIND_PACKAGE_Torch=ON)

# A package that was built without LibTorch.
file(REMOVE ${prefix}/${LIBRARY_FOLDER}/cmake/Syncrun/SyncrunTorchTargets.cmake)
run("this Syncrun was built without LibTorch" FAILS
  COMMAND ${configure} -B ${SCRATCH}/without -D CMAKE_PREFIX_PATH=${prefix})
file(REMOVE_RECURSE ${SCRATCH})
