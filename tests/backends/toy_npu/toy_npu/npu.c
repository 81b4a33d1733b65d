/* The imagined NPU: NHWC, channels in groups of 16, int8 values, int32 sums, one float32 scale for each output channel. */
#include <math.h>
#include <stdint.h>

static int8_t saturated(float value, int zero) {
  long rounded = lrintf(value) + zero;
  return (int8_t)(rounded < -128 ? -128 : rounded > 127 ? 127 : rounded);
}

/* x [h][w][c], weights [o][k][k][c], y [oh][ow][o]; pad is added at each side and holds the zero point. */
void toy_conv(const int8_t* x, int h, int w, int c, int x_zero, const int8_t* weights, int o, int k, int pad, int stride,
              const int32_t* bias, const float* scale, int y_zero, int8_t* y) {
  const int oh = (h + 2 * pad - k) / stride + 1, ow = (w + 2 * pad - k) / stride + 1;
  for (int i = 0; i < oh; ++i)
    for (int j = 0; j < ow; ++j)
      for (int f = 0; f < o; ++f) {
        int32_t sum = bias[f];
        for (int a = 0; a < k; ++a)
          for (int b = 0; b < k; ++b) {
            const int r = i * stride + a - pad, s = j * stride + b - pad;
            if (r < 0 || r >= h || s < 0 || s >= w) continue;
            for (int d = 0; d < c; ++d)
              sum += (x[(r * w + s) * c + d] - x_zero) * weights[((f * k + a) * k + b) * c + d];
          }
        y[(i * ow + j) * o + f] = saturated((float)sum * scale[f], y_zero);
      }
}

void toy_relu(const int8_t* x, int size, int8_t* y) {
  for (int i = 0; i < size; ++i) y[i] = x[i] < 0 ? 0 : x[i];
}

/* Adds one value for each channel to x [n][c]; what is too large wraps around, as ONNX says. */
void toy_add(const int8_t* x, int n, int c, const int8_t* added, int8_t* y) {
  for (int i = 0; i < n; ++i)
    for (int d = 0; d < c; ++d) y[i * c + d] = (int8_t)(uint8_t)((uint8_t)x[i * c + d] + (uint8_t)added[d]);
}
