# The installed package. It provides find_package(Syncrun) and Syncrun::syncrun, from a prefix that can be moved. This
# file is included before the demos, so that the library is installed first.
#
# `cmake --install` installs what was built. Only the library is required. For each other target that was not built, it
# prints a line and leaves the target out.
#
# Each file belongs to a component: runtime (what a program requires to run, with the command), development (what a
# compiler requires), cuda, openmpi, mpich, torch, demos and torch_demos. Each component is a package of Debian
# (SyncrunPackages.cmake).

include(CMakePackageConfigHelpers)

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Syncrun)

function(syncrun_report_if_left_out target component)
  set_property(GLOBAL APPEND PROPERTY SYNCRUN_INSTALLED_TARGETS ${target})
  install(CODE "
    if(NOT EXISTS \"$<TARGET_FILE:${target}>\")
      message(STATUS \"Left out, since it was not built: $<TARGET_FILE_NAME:${target}>\")
    endif()" COMPONENT ${component})
endfunction()

# Programs, and libraries that Syncrun loads by their names. Nobody links these, so they have no link without a version.
function(syncrun_install_if_built target component)
  install(TARGETS ${target}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component} OPTIONAL NAMELINK_SKIP
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${component} OPTIONAL)
  syncrun_report_if_left_out(${target} ${component})
endfunction()

# Installs a program that links the library. The folders of the demos install the other files that their programs
# require (demos/mnist, demos/resnet, demos/gpt).
function(syncrun_install_demo target component)
  file(RELATIVE_PATH from_bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/${from_bin_to_lib}")
  syncrun_install_if_built(${target} ${component})
endfunction()

install(TARGETS syncrun EXPORT SyncrunTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
set_target_properties(syncrun PROPERTIES INSTALL_RPATH "$ORIGIN")
set_property(GLOBAL APPEND PROPERTY SYNCRUN_INSTALLED_TARGETS syncrun)
syncrun_install_if_built(syncrun_command runtime)
install(TARGETS syncrun_probe RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/syncrun COMPONENT runtime OPTIONAL)
syncrun_report_if_left_out(syncrun_probe runtime)
if(TARGET syncrun_cuda)
  syncrun_install_if_built(syncrun_cuda cuda)
endif()
foreach(name IN LISTS SYNCRUN_MPIS)
  syncrun_install_if_built(syncrun_${name} ${name})
endforeach()

# The man page and the completions, which the command has written (master/command_line/CMakeLists.txt).
set(help_folder ${PROJECT_BINARY_DIR}/share)
install(FILES ${help_folder}/syncrun.1 ${help_folder}/syncrun.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
  COMPONENT runtime OPTIONAL)
install(FILES ${help_folder}/syncrun.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
  RENAME syncrun COMPONENT runtime OPTIONAL)
install(FILES ${help_folder}/syncrun.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions
  RENAME _syncrun COMPONENT runtime OPTIONAL)
install(FILES ${help_folder}/syncrun.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
  COMPONENT runtime OPTIONAL)

# The pages, in the folders that their links expect.
set(pages_folder ${CMAKE_INSTALL_DATADIR}/doc/syncrun)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/LICENSE
  DESTINATION ${pages_folder} COMPONENT runtime)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION ${pages_folder}/docs COMPONENT runtime
  FILES_MATCHING PATTERN *.md PATTERN *.svg PATTERN site EXCLUDE PATTERN samples EXCLUDE)
# The programs that the pages show.
foreach(folder docs/samples demos/examples)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}/ DESTINATION ${pages_folder}/${folder} COMPONENT development
    FILES_MATCHING PATTERN *.cpp PATTERN *.hpp PATTERN *.cu PATTERN fetch_content EXCLUDE)
endforeach()

if(TARGET syncrun_torch)
  install(TARGETS syncrun_torch EXPORT SyncrunTorchTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT torch OPTIONAL
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT torch)
  syncrun_report_if_left_out(syncrun_torch torch)
  if(TARGET syncrun_torch_cuda)
    syncrun_install_if_built(syncrun_torch_cuda torch)
  endif()
  install(EXPORT SyncrunTorchTargets NAMESPACE Syncrun:: DESTINATION ${config_folder} COMPONENT torch)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/lib/cmake/Syncrun/SyncrunTorchVersion.cmake
    CONTENT "set(built_with \"@SYNCRUN_TORCH_VERSION@\")\n" @ONLY)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/SyncrunFindTorch.cmake ${PROJECT_BINARY_DIR}/lib/cmake/Syncrun/SyncrunTorchVersion.cmake
    DESTINATION ${config_folder} COMPONENT torch)
endif()

install(EXPORT SyncrunTargets NAMESPACE Syncrun:: DESTINATION ${config_folder} COMPONENT development)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/SyncrunConfig.cmake.in ${PROJECT_BINARY_DIR}/SyncrunConfig.cmake
  INSTALL_DESTINATION ${config_folder} NO_SET_AND_CHECK_MACRO)
# Before 1.0, a new minor version may be incompatible.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/SyncrunConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/SyncrunConfig.cmake ${PROJECT_BINARY_DIR}/SyncrunConfigVersion.cmake
  DESTINATION ${config_folder} COMPONENT development)

# For programs that are built without CMake. The paths are relative to the file, so the prefix can be moved. The headers
# require C++20, which no compiler that Syncrun supports has by default before g++ 16.
file(RELATIVE_PATH from_pkgconfig_to_prefix
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" from_pkgconfig_to_prefix "${from_pkgconfig_to_prefix}")
file(RELATIVE_PATH from_prefix_to_lib ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH from_prefix_to_include ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(${CMAKE_CURRENT_LIST_DIR}/syncrun.pc.in ${PROJECT_BINARY_DIR}/syncrun.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/syncrun.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
