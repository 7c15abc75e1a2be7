/* hopper_documents.c - packed calls by the Hopper kernels. In: a call whose batch rows
 * are documents, whose offsets only the device reads. Out: what a launch says of them,
 * and the room for the tiles that the device finds there. */
#include "hopper.h"
#include "runtime/base/arithmetic.h"

void hopper_fill_documents(const cuda_run *r, const hopper_table *table, bool holds_keys,
                           void *tiles, hopper_launch *l) {
  const dil_call *c = r->call;
  l->only_if = r->only_if;
  if (!c->packed.queries) return;
  if (r->alike) {
    l->alike = r->alike->data;
    l->alike_batch = r->alike->rank > 1 ? r->alike->stride[0] : 0;
    l->alike_step = r->alike->stride[r->alike->rank - 1];
    l->mixed = r->mixed;
  }
  l->documents = c->packed.queries;
  l->key_documents = c->packed.keys;
  l->document_rows = (int)(c->q.shape[0] * c->q.shape[1]);
  l->document_keys = (int)(c->k.shape[0] * c->k.shape[1]);
  l->batch_rows = (int)(holds_keys ? c->k.shape[1] : c->q.shape[1]);
  l->document_tiles = tiles;
  int held = holds_keys ? l->document_keys : l->document_rows;
  int streamed = holds_keys ? l->document_rows : l->document_keys;
  for (int32_t i = 0; i < table->stride_count; i++) {
    l->query_rest[i] = (short)(held % table->strides[i]);
    l->key_rest[i] = (short)(streamed % table->strides[i]);
  }
}

const char *hopper_refuses_documents(const cuda_run *r, bool takes, bool endless,
                                     bool bare) {
  enum { UNEVEN = 16 };
  if (!takes) return "masks, dropout, crossing segments or the numbers of documents";
  if (endless) return "documents where only some branches have segments";
  return bare && r->B * r->N > UNEVEN * cuda_rows(r)
             ? "documents of very uneven length, some of whose rows no branch selects"
             : NULL;
}

int64_t hopper_documents_room(const hopper_table *table, int64_t documents, int64_t rows,
                              int64_t tile_rows) {
  int64_t room = 0;
  for (int32_t i = 0; i < table->class_count; i++) {
    const hopper_class *k = &table->classes[i];
    int64_t tall = tile_rows * k->stride, cells = k->cell ? rows / k->cell : 0;
    room += 2 * k->phases * (rows / tall + cells + documents + 1);
  }
  return room;
}

int64_t hopper_documents_bytes(const hopper_table *table, int64_t documents,
                               int64_t rows) {
  enum { LEAST_ROWS = 64, NUMBERS = 4 }; /* of a tile; of what is said of it */
  return round_up(hopper_documents_room(table, documents, rows, LEAST_ROWS) * NUMBERS *
                      (int64_t)sizeof(int),
                  256);
}
