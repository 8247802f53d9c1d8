#pragma once

// Models of LibTorch, PyTorch's C++ API, on every device. Programs link Syncrun::torch:
//
//   find_package(Syncrun REQUIRED COMPONENTS torch)
//   target_link_libraries(program PRIVATE Syncrun::torch)
//
// The names are in namespace syncrun::libtorch. This header is not part of <syncrun/syncrun.hpp>, because it includes
// <torch/torch.h>.

#include "syncrun/torch/algorithms.hpp"
#include "syncrun/torch/autocast.hpp"
#include "syncrun/torch/backward.hpp"
#include "syncrun/torch/batch_norm_update.hpp"
#include "syncrun/torch/change.hpp"
#include "syncrun/torch/cross_entropy.hpp"
#include "syncrun/torch/files.hpp"
#include "syncrun/torch/guard.hpp"
#include "syncrun/torch/layers.hpp"
#include "syncrun/torch/loader.hpp"
#include "syncrun/torch/loss.hpp"
#include "syncrun/torch/number.hpp"
#include "syncrun/torch/optimizers.hpp"
#include "syncrun/torch/recompute.hpp"
#include "syncrun/torch/replica.hpp"
#include "syncrun/torch/scaled_step.hpp"
#include "syncrun/torch/sharded_replica.hpp"
#include "syncrun/torch/sharded_units.hpp"
#include "syncrun/torch/staged_loss.hpp"
#include "syncrun/torch/staged_step.hpp"
#include "syncrun/torch/sync_batch_norm.hpp"
#include "syncrun/torch/tensor.hpp"
#include "syncrun/torch/training.hpp"
#include "syncrun/torch/weighted_loss.hpp"
