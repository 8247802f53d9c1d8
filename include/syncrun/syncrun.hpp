#pragma once

// Syncrun: a serial program, every device. This header is the whole public API.

#include "syncrun/arguments.hpp"
#include "syncrun/array.hpp"
#include "syncrun/cuda_worker.hpp"
#include "syncrun/data.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/error.hpp"
#include "syncrun/function.hpp"
#include "syncrun/options.hpp"
#include "syncrun/output.hpp"
#include "syncrun/producer.hpp"
#include "syncrun/queue.hpp"
#include "syncrun/reduction.hpp"
#include "syncrun/run.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/task.hpp"
#include "syncrun/version.hpp"
#include "syncrun/worker.hpp"
