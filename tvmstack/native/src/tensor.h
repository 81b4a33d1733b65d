// Tensors as kernels need them: dense, on the CPU, beginning at a multiple of 64 bytes. Kernels crash on others.
#pragma once
#include <tvm/ffi/container/tensor.h>

#include <string>
#include <vector>

namespace tvmstack {

constexpr size_t kAlign = 64;

// numpy's name as a DLPack type; false where DLPack has none.
bool DtypeOf(const std::string& name, DLDataType* dtype);
std::string DtypeName(DLDataType dtype);
bool Same(DLDataType a, DLDataType b);
std::string ShapeText(const int64_t* shape, int32_t ndim);

uint8_t* DataOf(const DLTensor& tensor);
bool IsDense(const DLTensor& tensor);
// Whether kernels can read it where it is.
bool IsInPlace(const DLTensor& tensor);

// Uninitialised memory of its own.
tvm::ffi::Tensor NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype);
// A tensor on somebody's memory.
tvm::ffi::Tensor ViewOf(void* data, tvm::ffi::ShapeView shape, DLDataType dtype);
// Fill a dense tensor from one of any strides, of the same shape and dtype.
void CopyInto(const DLTensor& from, const DLTensor& to);

}  // namespace tvmstack
