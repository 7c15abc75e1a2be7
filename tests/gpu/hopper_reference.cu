// hopper_reference.cu - the definition in float64 on sampled rows, straight
// from the language's formulas, and what else the bench needs on the device:
// random data, poison, checksums. Shares no code with the kernel. Parameters:
// hopper_reference.h.
typedef unsigned u32;
typedef unsigned long long u64;
typedef unsigned short u16;
#define INFINITY ((double)__int_as_float(0x7f800000))

__device__ u32 mix(u64 x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  return (u32)x;
}
__device__ u16 from_float(float f, int element) {
  u32 bits;
  if (element == 1)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(0.f), "f"(f));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(0.f), "f"(f));
  return (u16)bits;
}
__device__ float to_float(u16 bits, int element) {
  float f;
  if (element == 1) return __uint_as_float((u32)bits << 16);
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
  return f;
}

extern "C" __global__ void fill(const __grid_constant__ fill_job x) {
  u64 seed = x.seed * 0x9e3779b97f4a7c15ull;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < x.count;
       i += (u64)gridDim.x * blockDim.x) {
    u32 a = mix(2 * i + seed), b = mix(2 * i + 1 + seed);
    float radius = sqrtf(-2 * logf((a + 1.f) * 2.3283064e-10f + 1e-12f));
    x.to[i] = from_float(radius * cosf(6.2831853f * (b * 2.3283064e-10f)),
                         x.element);
  }
}

extern "C" __global__ void inspect(const __grid_constant__ inspect_job x) {
  u64 found = 0, sum = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < x.count;
       i += (u64)gridDim.x * blockDim.x) {
    found += x.from[i] == x.what;
    sum += mix(i * 65536 + x.from[i]);
  }
  atomicAdd(x.found, found);
  atomicAdd(x.sum, sum);
}

__device__ bool reaches(const problem &p, int b, int h, long long t,
                        long long j) {
  const reference_branch &x = p.branch[b];
  long long s = x.segment, r = x.dilation, phase = x.phase[h];
  if (h < x.head_first || h > x.head_last) return false;
  if (s && t < 0) return false;
  long long at = s ? t % s : ((t % r) + r) % r, key = s ? j % s : j;
  if (at % r != phase || key % r != phase) return false;
  if (s && t / s != j / s) return false;
  return (x.left < 0 || j - t >= -x.left) && (x.right < 0 || j - t <= x.right);
}
__device__ int copies(const problem &p, int h, long long t, long long j) {
  int count = 0;
  for (int b = 0; b < p.branches; b++) count += reaches(p, b, h, t, j);
  return p.combine_union && count ? 1 : count;
}

extern __shared__ double shared[]; // a number a thread: launches bring room

__device__ double over_block(double x, bool largest) {
  __syncthreads();
  shared[threadIdx.x] = x;
  __syncthreads();
  for (int i = 0; i < 256; i++)
    x = i == 0 ? shared[0] : largest ? fmax(x, shared[i]) : x + shared[i];
  __syncthreads();
  return x;
}

extern "C" __global__ void reference(
    const __grid_constant__ reference_job x) {
  const problem &p = x.of;
  const int *sample = x.sample + 3 * blockIdx.x;
  int b = sample[0], n = sample[1], h = sample[2], kv_heads = p.H / p.group;
  long long t = n + (long long)p.M - p.N;
  double *w = x.scratch + (u64)blockIdx.x * p.M, peak = -INFINITY, sum = 0;
  const u16 *q = p.q + (((u64)b * p.N + n) * p.H + h) * p.D;
  for (int j = threadIdx.x; j < p.M; j += 256) {
    const u16 *k =
        p.k + (((u64)b * p.M + j) * kv_heads + h / p.group) * p.D;
    double s = 0;
    int c = copies(p, h, t, j);
    for (int d = 0; d < p.D && c; d++)
      s += (double)to_float(q[d], p.element) * to_float(k[d], p.element);
    w[j] = c ? s * p.scale : -INFINITY;
    peak = fmax(peak, w[j]);
  }
  peak = over_block(peak, true);
  for (int j = threadIdx.x; j < p.M; j += 256) {
    w[j] = w[j] == -INFINITY ? 0 : exp(w[j] - peak) * copies(p, h, t, j);
    sum += w[j];
  }
  sum = over_block(sum, false);
  int lanes = 256 / p.Dv > 0 ? 256 / p.Dv : 1, d = threadIdx.x % p.Dv;
  double o = 0;
  for (int j = threadIdx.x / p.Dv; j < p.M && threadIdx.x < lanes * p.Dv;
       j += lanes)
    if (w[j] > 0)
      o += w[j] *
           to_float(p.v[(((u64)b * p.M + j) * kv_heads + h / p.group) * p.Dv +
                        d],
                    p.element);
  shared[threadIdx.x] = o;
  __syncthreads();
  double *to = x.to + (u64)blockIdx.x * (p.Dv + 1);
  if (threadIdx.x < p.Dv) {
    for (int i = 1; i < lanes; i++) o += shared[i * p.Dv + d];
    to[d] = sum > 0 ? o / sum : 0;
    if (d == 0) to[p.Dv] = sum > 0 ? peak + log(sum) : -INFINITY;
  }
}

// NaN to the rows of K and V that no row of any head may see.
extern "C" __global__ void spoil(const __grid_constant__ problem p) {
  int j = blockIdx.x, kv_heads = p.H / p.group;
  for (int g = 0; g < kv_heads; g++) {
    bool seen = false;
    for (int n = threadIdx.x; n < p.N && !seen; n += 256)
      for (int h = g * p.group; h < (g + 1) * p.group && !seen; h++)
        seen = copies(p, h, n + (long long)p.M - p.N, j) > 0;
    if (__syncthreads_or(seen)) continue;
    for (int b = 0; b < p.B; b++) {
      u64 row = ((u64)b * p.M + j) * kv_heads + g;
      for (int d = threadIdx.x; d < p.D; d += 256) p.k[row * p.D + d] = 0x7fff;
      for (int d = threadIdx.x; d < p.Dv; d += 256) p.v[row * p.Dv + d] = 0x7fff;
    }
  }
}

extern "C" __global__ void gather(const __grid_constant__ gather_job x) {
  const int *sample = x.sample + 3 * blockIdx.x;
  u64 b = sample[0], n = sample[1], h = sample[2];
  float *to = x.to + (u64)blockIdx.x * (x.Dv + 1);
  const u16 *o = x.o + ((b * x.N + n) * x.H + h) * x.Dv;
  for (int d = threadIdx.x; d < x.Dv; d += blockDim.x)
    to[d] = to_float(o[d], x.element);
  if (threadIdx.x == 0) to[x.Dv] = x.lse[(b * x.H + h) * x.N + n];
}
