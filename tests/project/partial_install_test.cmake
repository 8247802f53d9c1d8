# `cmake --install` installs what was built, and says what it leaves out. This test uses two build folders: one with the
# targets that scripts/demo.sh builds, and one with none. They are configured again, but their files are copied from the
# real build folder, because compiling again would take minutes.
# Given: SOURCE, BUILD, GENERATOR, COMPILER, SCRATCH, LIBRARY_FOLDER.
cmake_minimum_required(VERSION 3.25)

function(expect_exists is_there)
  foreach(file IN LISTS ARGN)
    if(is_there AND NOT EXISTS ${prefix}/${file})
      message(FATAL_ERROR "not installed: ${file}")
    elseif(NOT is_there AND EXISTS ${prefix}/${file})
      message(FATAL_ERROR "installed, though it was not built: ${file}")
    endif()
  endforeach()
endfunction()

set(build ${SCRATCH}/build)
set(prefix ${SCRATCH}/prefix)
file(REMOVE_RECURSE ${SCRATCH})
# The copies have the run path of the real build folder. The installation would not find the one that it is to replace.
# So this configuration has no run paths.
execute_process(COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET COMMAND ${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${build}
  -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_SKIP_RPATH=ON -D SYNCRUN_CUDA=OFF
  -D SYNCRUN_TESTS=OFF -D SYNCRUN_BENCH=OFF -D SYNCRUN_DEMOS=ON)

execute_process(COMMAND ${CMAKE_COMMAND} --install ${build} --prefix ${prefix}
  RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE errors)
if(code EQUAL 0 OR NOT errors MATCHES "libsyncrun[.]so")
  message(FATAL_ERROR "without a library there is nothing to install, which has to be an error: ${code}\n${errors}")
endif()

file(GLOB libraries ${BUILD}/lib/libsyncrun.so*)
file(COPY ${libraries} DESTINATION ${build}/lib)
file(COPY ${BUILD}/bin/syncrun ${BUILD}/bin/syncrun-mnist DESTINATION ${build}/bin)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${build} --prefix ${prefix}
  RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "failed (${code}):\n${output}")
endif()
if(NOT output MATCHES "Left out, since it was not built: syncrun-resnet" OR output MATCHES "not built: syncrun-mnist")
  message(FATAL_ERROR "does not say what it leaves out:\n${output}")
endif()
expect_exists(TRUE bin/syncrun bin/syncrun-mnist include/syncrun/syncrun.hpp ${LIBRARY_FOLDER}/libsyncrun.so
  ${LIBRARY_FOLDER}/cmake/Syncrun/SyncrunConfig.cmake ${LIBRARY_FOLDER}/cmake/Syncrun/SyncrunTargets.cmake)
expect_exists(FALSE bin/syncrun-resnet)
file(REMOVE_RECURSE ${SCRATCH})
