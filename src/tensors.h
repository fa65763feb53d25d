/*
 * Checks of mla_tensors and of strided arguments, and the contiguous layouts that all-zero
 * strides stand for.
 */
#ifndef MLA_SRC_TENSORS_H
#define MLA_SRC_TENSORS_H

#include "mla.h"
#include "shape.h"

/*
 * Checks what can be checked without reading device memory and writes to *resolved a copy in
 * which every stride is explicit: pool strides in bytes, the others in elements.
 */
mla_status mla_tensors_resolve(const mla_shape *shape, const mla_tensors *tensors,
                               mla_tensors *resolved);

/* The same for the arguments of merge, pack and unpack (cache strides in bytes). */
mla_status mla_merge_args_resolve(const mla_merge_args *args, mla_merge_args *resolved);
mla_status mla_pack_args_resolve(const mla_pack_args *args, mla_pack_args *resolved);

#endif
