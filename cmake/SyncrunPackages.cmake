# The packages of Debian and Ubuntu: one for each component of the installation. scripts/package.sh makes them. This file
# is included with SYNCRUN_PACKAGES=ON.

# Builds all that the packages contain.
get_property(packaged GLOBAL PROPERTY SYNCRUN_INSTALLED_TARGETS)
add_custom_target(packaged DEPENDS ${packaged})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME syncrun)
set(CPACK_PACKAGE_VENDOR "The Syncrun developers")
# A maintainer is required, and there is no public address.
set(CPACK_PACKAGE_CONTACT "The Syncrun developers <syncrun@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each package has its own
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
# The permissions of the files do not depend on the user's umask.
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
# The dependencies on other packages are those of the libraries that the files link, in the versions of this system. They
# also depend on the system, so the version names it: 0.1.0-1~debian12.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib)
# A package of a program that links the library can find out that it depends on this package.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
cmake_host_system_information(RESULT system QUERY DISTRIB_INFO)
set(CPACK_DEBIAN_PACKAGE_RELEASE "1~${system_ID}${system_VERSION_ID}")
set(package_version "${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")

# syncrun_package(COMPONENT NAME SECTION SUMMARY [AND NAME...] [DESCRIPTION LINE...]): a package, which requires the other
# packages that are named, in its own version.
set(CPACK_COMPONENTS_ALL "")
macro(syncrun_package component name section summary)
  cmake_parse_arguments(ARG "" "SUGGESTS" "AND;DESCRIPTION" ${ARGN})
  string(TOUPPER ${component} upper)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  list(TRANSFORM ARG_AND APPEND " (= ${package_version})" OUTPUT_VARIABLE same_version)
  list(JOIN same_version ", " CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SUGGESTS "${ARG_SUGGESTS}")
  list(JOIN ARG_DESCRIPTION "\n" text)
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${summary}\n${text}")
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name} RENAME copyright
    COMPONENT ${component})
endmacro()

syncrun_package(runtime syncrun libs "runs a serial program on all GPUs and CPU cores"
  SUGGESTS "syncrun-dev, syncrun-demos, libdw1, libhwloc15"
  DESCRIPTION "The command syncrun, the library that programs of Syncrun link, and its pages."
    "With libdw1, the report of a deadline shows the native stacks of the ranks."
    "With libhwloc15, workers can be bound to cores and sockets.")
syncrun_package(development syncrun-dev libdevel "runs a serial program on all devices (development files)"
  AND syncrun SUGGESTS "g++, cmake, pkgconf"
  DESCRIPTION "The headers of Syncrun, and its files for CMake and pkg-config.")
if(TARGET syncrun_cuda)
  syncrun_package(cuda syncrun-cuda libs "runs a serial program on all devices (GPUs of NVIDIA)" AND syncrun
    DESCRIPTION "The part of Syncrun that workers with a GPU load. It requires CUDA ${CMAKE_CUDA_COMPILER_VERSION},"
      "cuBLAS, NCCL and a driver of NVIDIA, which may be no packages.")
endif()
if("openmpi" IN_LIST SYNCRUN_MPIS)
  syncrun_package(openmpi syncrun-openmpi libs "runs a serial program on several machines (Open MPI)"
    AND syncrun SUGGESTS openmpi-bin
    DESCRIPTION "Carries messages between machines if srun or Open MPI starts syncrun.")
endif()
if("mpich" IN_LIST SYNCRUN_MPIS)
  syncrun_package(mpich syncrun-mpich libs "runs a serial program on several machines (MPICH)"
    AND syncrun SUGGESTS mpich
    DESCRIPTION "Carries messages between machines if srun or MPICH starts syncrun.")
endif()
if(TARGET syncrun_torch)
  syncrun_package(torch syncrun-torch libs "trains models of LibTorch on all devices"
    AND syncrun SUGGESTS "syncrun-dev, libtorch-dev"
    DESCRIPTION "The part of Syncrun for models of LibTorch, PyTorch's C++ API, with its headers.")
endif()
if(TARGET syncrun_mnist)
  syncrun_package(demos syncrun-demos science "trains on handwritten digits, and a ResNet (demos of Syncrun)" AND syncrun
    SUGGESTS python3-pil
    DESCRIPTION "syncrun-mnist trains on the digits that come with it."
      "syncrun-resnet trains on your images, which a script packs.")
endif()
if(TARGET syncrun_gpt)
  syncrun_package(torch_demos syncrun-torch-demos science "trains a small language model (demo of Syncrun)"
    AND syncrun syncrun-torch SUGGESTS python3
    DESCRIPTION "syncrun-gpt trains a language model of LibTorch on the text that comes with it.")
endif()
include(CPack)
