#include "tensor.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <new>

namespace tvmstack {

namespace ffi = tvm::ffi;

namespace {

const std::map<std::string, DLDataType>& Dtypes() {
  static const std::map<std::string, DLDataType> known = {
      {"bool", {kDLBool, 8, 1}},       {"int8", {kDLInt, 8, 1}},      {"int16", {kDLInt, 16, 1}},
      {"int32", {kDLInt, 32, 1}},      {"int64", {kDLInt, 64, 1}},    {"uint8", {kDLUInt, 8, 1}},
      {"uint16", {kDLUInt, 16, 1}},    {"uint32", {kDLUInt, 32, 1}},  {"uint64", {kDLUInt, 64, 1}},
      {"float16", {kDLFloat, 16, 1}},  {"float32", {kDLFloat, 32, 1}}, {"float64", {kDLFloat, 64, 1}},
      {"bfloat16", {kDLBfloat, 16, 1}}};
  return known;
}

struct Own {
  void AllocData(DLTensor* tensor) {
    const size_t size = (ffi::GetDataSize(*tensor) + kAlign) / kAlign * kAlign;
    tensor->data = std::aligned_alloc(kAlign, size);
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

struct Borrow {
  void AllocData(DLTensor* tensor, void* data) { tensor->data = data; }
  void FreeData(DLTensor*) {}
};

// Copy dimension `axis` and those below it; `from` moves by strides of elements, `to` is dense.
uint8_t* CopyAxis(const DLTensor& tensor, int32_t axis, const uint8_t* from, uint8_t* to, size_t item) {
  if (axis == tensor.ndim) {
    std::memcpy(to, from, item);
    return to + item;
  }
  const int64_t step = tensor.strides[axis] * static_cast<int64_t>(item);
  for (int64_t i = 0; i < tensor.shape[axis]; ++i) to = CopyAxis(tensor, axis + 1, from + i * step, to, item);
  return to;
}

}  // namespace

bool DtypeOf(const std::string& name, DLDataType* dtype) {
  auto found = Dtypes().find(name);
  if (found == Dtypes().end()) return false;
  *dtype = found->second;
  return true;
}

bool Same(DLDataType a, DLDataType b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

std::string DtypeName(DLDataType dtype) {
  for (const auto& pair : Dtypes())
    if (Same(pair.second, dtype)) return pair.first;
  return "DLPack type " + std::to_string(dtype.code) + " of " + std::to_string(dtype.bits) + " bits";
}

std::string ShapeText(const int64_t* shape, int32_t ndim) {
  std::string text = "[";
  for (int32_t i = 0; i < ndim; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

uint8_t* DataOf(const DLTensor& tensor) { return static_cast<uint8_t*>(tensor.data) + tensor.byte_offset; }

bool IsDense(const DLTensor& tensor) { return tensor.strides == nullptr || ffi::IsContiguous(tensor); }

bool IsInPlace(const DLTensor& tensor) {
  return IsDense(tensor) && reinterpret_cast<uintptr_t>(DataOf(tensor)) % kAlign == 0;
}

ffi::Tensor NewTensor(ffi::ShapeView shape, DLDataType dtype) {
  return ffi::Tensor::FromNDAlloc(Own{}, shape, dtype, DLDevice{kDLCPU, 0});
}

ffi::Tensor ViewOf(void* data, ffi::ShapeView shape, DLDataType dtype) {
  return ffi::Tensor::FromNDAlloc(Borrow{}, shape, dtype, DLDevice{kDLCPU, 0}, data);
}

void CopyInto(const DLTensor& from, const DLTensor& to) {
  const size_t size = ffi::GetDataSize(to);
  if (size == 0) return;
  if (IsDense(from))
    std::memcpy(DataOf(to), DataOf(from), size);
  else
    CopyAxis(from, 0, DataOf(from), DataOf(to), from.dtype.bits / 8);
}

}  // namespace tvmstack
