// Sparse COO tensors of the device: pairs of dense ones, for which torch's functions serve every
// device. Only to coalesce needs a kernel: it is done on the host, which waits for the stream, as
// CUDA's does.

#pragma once

#include <ATen/ops/_coalesce_native.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

namespace soft {

inline at::Tensor coalesce(const at::Tensor& self) {
  const at::Tensor here = at::native::_coalesce_sparse_cpu(at::_sparse_coo_tensor_unsafe(
      self._indices().cpu(), self._values().cpu(), self.sizes()));
  return at::_sparse_coo_tensor_unsafe(here._indices().to(self.device()),
                                       here._values().to(self.device()), self.sizes(),
                                       self.options(), /*is_coalesced=*/true);
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, library) {
  namespace native = at::native;
  library.impl("_coalesce", &coalesce);
  library.impl("_coalesced_", &native::_coalesced_sparse_);
  library.impl("_indices", &native::_indices_sparse);
  library.impl("_nnz", &native::_nnz_sparse);
  library.impl("_sparse_coo_tensor_with_dims", &native::new_with_dims_sparse);
  library.impl("_sparse_coo_tensor_with_dims_and_tensors",
               &native::new_with_dims_and_tensor_sparse_symint);
  library.impl("_values", &native::_values_sparse);
  library.impl("clone", &native::clone_sparse);
  library.impl("copy_", &native::copy_sparse_wrapper_);
  library.impl("copy_sparse_to_sparse_", &native::copy_sparse_);
  library.impl("dense_dim", &native::dense_dim_sparse);
  library.impl("empty.memory_format", &native::empty_sparse_symint);
  library.impl("indices", &native::indices_sparse);
  library.impl("is_coalesced", &native::is_coalesced_sparse);
  library.impl("sparse_dim", &native::sparse_dim_sparse);
  library.impl("values", &native::values_sparse);
}

}  // namespace soft
