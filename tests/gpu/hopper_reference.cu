// hopper_reference.cu - the definition in float64 on sampled rows, straight
// from the language's formulas, and what else the bench needs on the device:
// random data, poison, checksums. Shares no code with the kernel.
typedef unsigned u32;
typedef unsigned long long u64;
typedef unsigned short u16;

struct branch {
  long long segment, dilation, left, right; // 0: no segment; < 0: no bound
  int head_first, head_last;
  int phase[128];
};
struct problem {
  const u16 *q, *k, *v;
  int B, N, M, H, group, D, Dv, element, combine_union, branches;
  double scale;
  struct branch branch[8];
};

__device__ u32 mix(u64 x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  return (u32)x;
}
__device__ u16 from_float(float f, int element) {
  u16 bits;
  if (element == 1) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(f));
  else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f));
  return bits;
}
__device__ float to_float(u16 bits, int element) {
  float f;
  if (element == 1) return __uint_as_float((u32)bits << 16);
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
  return f;
}

extern "C" __global__ void fill(u16 *x, u64 n, u64 seed, int element) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n;
       i += (u64)gridDim.x * blockDim.x) {
    u32 a = mix(2 * i + seed * 0x9e3779b97f4a7c15ull);
    u32 b = mix(2 * i + 1 + seed * 0x9e3779b97f4a7c15ull);
    float radius = sqrtf(-2 * logf((a + 1.f) * 2.3283064e-10f + 1e-12f));
    x[i] = from_float(radius * cosf(6.2831853f * (b * 2.3283064e-10f)),
                      element);
  }
}

// 16-bit elements equal to `what`, and a sum that any changed bit changes.
extern "C" __global__ void inspect(const u16 *x, u64 n, u16 what, u64 *count,
                                   u64 *sum) {
  u64 found = 0, total = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n;
       i += (u64)gridDim.x * blockDim.x) {
    found += x[i] == what;
    total += mix(i * 65536 + x[i]);
  }
  atomicAdd(count, found);
  atomicAdd(sum, total);
}

__device__ bool reaches(const problem &p, int b, int h, long long t,
                        long long j) {
  const branch &x = p.branch[b];
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

__device__ double over_block(double x, bool largest) {
  __shared__ double all[256];
  __syncthreads();
  all[threadIdx.x] = x;
  __syncthreads();
  for (int i = 0; i < 256; i++)
    x = i == 0 ? all[0] : largest ? fmax(x, all[i]) : x + all[i];
  __syncthreads();
  return x;
}

// Block i: row sample[3 i .. + 2] = (b, n, h). out: Dv doubles and lse.
extern "C" __global__ void reference(const __grid_constant__ problem p,
                                     const int *sample, double *scratch,
                                     double *out) {
  int b = sample[3 * blockIdx.x], n = sample[3 * blockIdx.x + 1];
  int h = sample[3 * blockIdx.x + 2], kv_heads = p.H / p.group;
  long long t = n + (long long)p.M - p.N;
  double *w = scratch + (u64)blockIdx.x * p.M, peak = -INFINITY, sum = 0;
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
  __shared__ double part[256];
  int lanes = 256 / p.Dv > 0 ? 256 / p.Dv : 1, d = threadIdx.x % p.Dv;
  double o = 0;
  for (int j = threadIdx.x / p.Dv; j < p.M && threadIdx.x < lanes * p.Dv;
       j += lanes)
    if (w[j] > 0)
      o += w[j] *
           to_float(p.v[(((u64)b * p.M + j) * kv_heads + h / p.group) * p.Dv +
                        d],
                    p.element);
  part[threadIdx.x] = o;
  __syncthreads();
  double *to = out + (u64)blockIdx.x * (p.Dv + 1);
  if (threadIdx.x < p.Dv) {
    for (int i = 1; i < lanes; i++) o += part[i * p.Dv + d];
    to[d] = sum > 0 ? o / sum : 0;
    if (d == 0) to[p.Dv] = sum > 0 ? peak + log(sum) : -INFINITY;
  }
}

// NaN to the rows of K and V that no row of any head may see.
extern "C" __global__ void spoil(const __grid_constant__ problem p, u16 *k,
                                 u16 *v) {
  int j = blockIdx.x, kv_heads = p.H / p.group;
  for (int g = 0; g < kv_heads; g++) {
    bool seen = false;
    for (int n = threadIdx.x; n < p.N && !seen; n += 256)
      for (int h = g * p.group; h < (g + 1) * p.group && !seen; h++)
        seen = copies(p, h, n + (long long)p.M - p.N, j) > 0;
    if (__syncthreads_or(seen)) continue;
    for (int b = 0; b < p.B; b++) {
      u64 row = ((u64)b * p.M + j) * kv_heads + g;
      for (int d = threadIdx.x; d < p.D; d += 256) k[row * p.D + d] = 0x7fff;
      for (int d = threadIdx.x; d < p.Dv; d += 256) v[row * p.Dv + d] = 0x7fff;
    }
  }
}

extern "C" __global__ void gather(const u16 *o, const float *lse,
                                  const int *sample, int N, int H, int Dv,
                                  int element, float *out) {
  u64 b = sample[3 * blockIdx.x], n = sample[3 * blockIdx.x + 1];
  u64 h = sample[3 * blockIdx.x + 2];
  float *to = out + (u64)blockIdx.x * (Dv + 1);
  for (int d = threadIdx.x; d < Dv; d += blockDim.x)
    to[d] = to_float(o[((b * N + n) * H + h) * Dv + d], element);
  if (threadIdx.x == 0) to[Dv] = lse[(b * H + h) * N + n];
}
