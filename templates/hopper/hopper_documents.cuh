// hopper_documents.cuh - where the rows and the keys of a document stand.
//
// In: the offsets of a packed call, whose batch rows are documents. Out: the extents of
// a document in the tensors, and how its rows are numbered: it has the last of the
// longest one's rows, and its first keys. All other calls have none.
//
// Plain C, as hopper_walk.cuh is.
#ifndef DIL_TEMPLATES_HOPPER_HOPPER_DOCUMENTS_H
#define DIL_TEMPLATES_HOPPER_HOPPER_DOCUMENTS_H
#include "templates/hopper/hopper_launch.h"
#include "templates/shared/document.h"

#ifndef ALIKE
#define ALIKE 0 // 1: a mask keeps documents apart, by hopper_launch.alike
#endif

DEVICE bool has_documents(const hopper_launch *run) {
  return DOCUMENTS && run->documents;
}
// The asm has what follows from a batch row's number computed at each use, since the
// planner has few registers.
DEVICE int again(int batch) {
#ifdef __CUDACC__
  asm volatile("" : "+r"(batch));
#endif
  return batch;
}
// The query rows of the longest document.
DEVICE int most_queries(const hopper_launch *run) {
  return HOLDS_KEYS ? run->key_high - run->key_low : run->queries;
}
// A document's query rows and its keys in the tensors.
DEVICE dil_extent queries_of(const hopper_launch *run, int batch) {
  return document_of(run->documents, again(batch), run->document_rows,
                     most_queries(run));
}
DEVICE dil_extent keys_at(const hopper_launch *run, int batch) {
  return document_of(run->key_documents, again(batch), run->document_keys, run->keys);
}

// How many rows a document has less than the longest: it lacks the first ones.
DEVICE int late_of(const hopper_launch *run, int batch) {
  return has_documents(run) ? most_queries(run) - queries_of(run, batch).count : 0;
}
DEVICE int held_late(const hopper_launch *run, int batch) {
  return HOLDS_KEYS ? 0 : late_of(run, batch);
}

// The number of a document's row in the tensor, less its number in the call: of queries;
// of the rows that tiles hold, and of those that they stream.
DEVICE int queries_shift(const hopper_launch *run, int batch) {
  dil_extent rows = queries_of(run, batch);
  return rows.first + rows.count - most_queries(run);
}
DEVICE int held_shift(const hopper_launch *run, int batch) {
  return HOLDS_KEYS ? keys_at(run, batch).first : queries_shift(run, batch);
}
DEVICE int streamed_shift(const hopper_launch *run, int batch) {
  return HOLDS_KEYS ? queries_shift(run, batch) : keys_at(run, batch).first;
}

#endif
