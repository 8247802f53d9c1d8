# The library that users link. It contains the code of the master and the code of the workers, because the same program
# runs as the master in one process and as a worker in others.

# All objects of the library except the one that decides whether phases have hooks (common/protocol/phase_hook.hpp).
set(SYNCRUN_LIBRARY_PARTS syncrun_common syncrun_master syncrun_master_base syncrun_worker)

add_library(syncrun SHARED)
add_library(Syncrun::syncrun ALIAS syncrun)
target_link_libraries(syncrun PRIVATE ${SYNCRUN_LIBRARY_PARTS} syncrun_no_phase_hook)
syncrun_limit_exports(syncrun)
target_compile_features(syncrun PUBLIC cxx_std_20)
set_target_properties(syncrun PROPERTIES
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
  VERIFY_INTERFACE_HEADER_SETS ON)
target_sources(syncrun PUBLIC FILE_SET HEADERS
  BASE_DIRS ${PROJECT_SOURCE_DIR}/include
  FILES
    ${PROJECT_SOURCE_DIR}/include/syncrun/any_shared.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/any_worker.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/arguments.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/array.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/asynchronous.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/averaged_weights.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/checkpoint.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/convert.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/cuda_worker.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/data.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/batch.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/batch_iterator.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/body.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/call.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/construct.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/conversion.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/elements.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/export.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/fields.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/gradient_count.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/helper.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/master_interface.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/names.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/handle.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/handle_access.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/number_text.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/passed.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/result_array.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/signature.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/step.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/step_layout.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/step_plan.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/target.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/update_work.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/verified_call.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/detail/worker_interface.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/device.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/device_memory.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/dtype.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/error.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/function.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/gradient_ready.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/keep.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/metrics.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/npy.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/options.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/output.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/profile.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/producer.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/queue.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/reduction.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/replayable.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/run.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/schedules.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/session.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/shared.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/stop.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/syncrun.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/task.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/train_step.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/train_step_options.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/update_rules.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/updates.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/value.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/verify.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/version.hpp
    ${PROJECT_SOURCE_DIR}/include/syncrun/worker.hpp)
