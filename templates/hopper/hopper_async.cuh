// hopper_async.cuh - barriers, copies and shared memory of the Hopper kernels.
//
// Most functions are one instruction: stores of boxes, plain loads and stores of
// shared memory. Those that other kernels of sm_90 share stand in barrier.cuh.
#pragma once

#include "templates/shared/barrier.cuh"

DEVICE u32 shared_address(const void *p) {
  return (u32)__cvta_generic_to_shared(p);
}

DEVICE void store_box(const hopper_map *map, u32 from, int column, int row,
                      int phase, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group "
      "[%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
      "r"(from), "r"(column), "r"(row), "r"(phase), "r"(head), "r"(batch)
      : "memory");
}
DEVICE void store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
DEVICE void store_wait_read() { // afterwards the sources may be overwritten
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
DEVICE void store_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
DEVICE int4 shared_load(u32 address) {
  int4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
DEVICE int shared_word(u32 address) {
  int x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
DEVICE void shared_set(u32 address, int x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
DEVICE void shared_store(u32 address, int x, int y, int z, int w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

// Stores eight bytes if `there`. A predicated store replaces a branch, since
// many branches make compilation slow.
DEVICE void store_if(bool there, void *to, u32 x, u32 y) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n"
      "@p st.global.v2.b32 [%1], {%2, %3};}" ::"r"((int)there),
      "l"(to), "r"(x), "r"(y)
      : "memory");
}

// A counter in shared memory: one thread increments it and others poll it.
DEVICE void shared_count(u32 address, u32 more) {
  asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(address), "r"(more)
               : "memory");
}
DEVICE u32 shared_peek(u32 address) {
  u32 x;
  asm volatile("ld.volatile.shared.u32 %0, [%1];"
               : "=r"(x)
               : "r"(address)
               : "memory");
  return x;
}
DEVICE void sleep_for(u32 nanoseconds) {
  asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds));
}

// These are read from the special register at each use, so that no general
// register holds a value that few paths need.
DEVICE u32 thread_index() {
  u32 x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

DEVICE u32 grid_size() {
  u32 x;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(x));
  return x;
}
