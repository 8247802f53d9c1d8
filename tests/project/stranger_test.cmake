# Installs the build, moves the prefix, builds the program of a user against it, and runs it with the installed command.
# Given: BUILD, GENERATOR, COMPILER, SCRATCH, LIBRARY_FOLDER, PYTHON, STEP_LIMIT_S (the time that each step may take),
# RESNET_COMPUTES (on CPU devices), FAULTY_LIBRARY (the library with fault points, if the tests have one).
cmake_minimum_required(VERSION 3.25)

function(run)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "" "OUTPUT" "COMMAND")
  execute_process(COMMAND ${ARG_COMMAND} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output
    TIMEOUT ${STEP_LIMIT_S})
  list(JOIN ARG_COMMAND " " command)
  message(STATUS "${command}\n${output}")
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "failed (${code}): ${command}")
  endif()
  if(ARG_OUTPUT AND NOT output MATCHES "${ARG_OUTPUT}")
    message(FATAL_ERROR "printed something else than '${ARG_OUTPUT}': ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
run(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/before)
file(RENAME ${SCRATCH}/before ${SCRATCH}/prefix)
set(prefix ${SCRATCH}/prefix)

foreach(file include/syncrun/syncrun.hpp include/syncrun/detail/signature.hpp bin/syncrun
             ${LIBRARY_FOLDER}/libsyncrun.so ${LIBRARY_FOLDER}/cmake/Syncrun/SyncrunConfig.cmake
             ${LIBRARY_FOLDER}/cmake/Syncrun/SyncrunConfigVersion.cmake ${LIBRARY_FOLDER}/pkgconfig/syncrun.pc
             share/bash-completion/completions/syncrun share/zsh/vendor-completions/_syncrun
             share/fish/vendor_completions.d/syncrun.fish share/doc/syncrun/docs/api/command-line.md)
  if(NOT EXISTS ${prefix}/${file})
    message(FATAL_ERROR "not installed: ${file}")
  endif()
endforeach()

# The package must not contain paths of the machine where it was built.
file(GLOB configs ${prefix}/${LIBRARY_FOLDER}/cmake/Syncrun/*.cmake ${prefix}/${LIBRARY_FOLDER}/pkgconfig/syncrun.pc)
foreach(config IN LISTS configs)
  file(READ ${config} text)
  foreach(place ${BUILD} ${SCRATCH})
    string(FIND "${text}" ${place} position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${config} names ${place}")
    endif()
  endforeach()
endforeach()

run(COMMAND ${CMAKE_COMMAND} -G ${GENERATOR} -S ${CMAKE_CURRENT_LIST_DIR}/stranger -B ${SCRATCH}/build
  -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${prefix})
run(COMMAND ${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(COMMAND ${prefix}/bin/syncrun help nodes OUTPUT "\nMore: ${prefix}/share/doc/syncrun/docs/nodes.md\n")
run(COMMAND ${prefix}/bin/syncrun -n 2 ${SCRATCH}/build/stranger
  OUTPUT "2 workers, 500 rows, ranks 0 1, version [0-9]+[.][0-9]+[.][0-9]+")

# The installed files must not have fault points (tests/fault/points), which an environment variable could trigger. The
# same search finds them in the tests' library. The installed library ignores a value that the tests' library refuses.
function(count_fault_points count file)
  file(STRINGS ${file} found REGEX "SYNCRUN_FAULT|injected fault|FaultPoints|strike")
  list(LENGTH found found)
  set(${count} ${found} PARENT_SCOPE)
endfunction()
file(GLOB images ${prefix}/${LIBRARY_FOLDER}/*.so* ${prefix}/bin/*)
foreach(image IN LISTS images)
  count_fault_points(count ${image})
  if(NOT count EQUAL 0)
    message(FATAL_ERROR "${image} has fault points")
  endif()
endforeach()
if(FAULTY_LIBRARY)
  count_fault_points(count ${FAULTY_LIBRARY})
  if(count EQUAL 0)
    message(FATAL_ERROR "found no fault points in ${FAULTY_LIBRARY}, which has some")
  endif()
endif()
foreach(fault "rank=1,phase=function,way=kill" "nonsense")
  run(COMMAND ${CMAKE_COMMAND} -E env SYNCRUN_FAULT=${fault} ${prefix}/bin/syncrun -n 2 ${SCRATCH}/build/stranger
    OUTPUT "2 workers, 500 rows")
endforeach()

# After the move, the demos find their library and the digits.
if(EXISTS ${prefix}/bin/syncrun-mnist)
  run(COMMAND ${prefix}/bin/syncrun -n 2 ${prefix}/bin/syncrun-mnist --epochs 1
    OUTPUT "test accuracy: [0-9]+[.][0-9]+ %")
endif()
if(EXISTS ${prefix}/bin/syncrun-gpt)
  run(COMMAND ${prefix}/bin/syncrun -n 2 ${prefix}/bin/syncrun-gpt --n-embd 16 --block-size 16 --batch-size 2 --max-iters 1
    --max-new-tokens 1 OUTPUT "held-out loss: [0-9]+[.][0-9]+ nats per token")
endif()
if(EXISTS ${prefix}/bin/syncrun-resnet)
  set(digits ${prefix}/share/syncrun/digits/digits)
  run(COMMAND ${PYTHON} -B ${prefix}/share/syncrun/pack_images.py --idx ${digits}-train-images-idx3-ubyte
    ${digits}-train-labels-idx1-ubyte --size 32 ${SCRATCH}/packed)
  run(COMMAND ${prefix}/bin/syncrun-resnet --help OUTPUT "usage: syncrun-resnet --data DIR")
  if(RESNET_COMPUTES)
    run(COMMAND ${prefix}/bin/syncrun -n 2 ${prefix}/bin/syncrun-resnet --data ${SCRATCH}/packed --depth 18 --width 8
      --epochs 1 --batch 120 --evaluate-fraction 0.2 OUTPUT "evaluation accuracy: [0-9]+[.][0-9]+ %")
  endif()
endif()
file(REMOVE_RECURSE ${SCRATCH})
