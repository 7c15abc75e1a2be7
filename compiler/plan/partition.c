/* partition.c - pattern x topology; see partition.h. */
#include "partition.h"

static const char *const layouts[] = {"contiguous", "zigzag", "striped"};

/* ---- choices ------------------------------------------------------------- */

/* Later rows see more keys, however long the sequence: wants balance. */
static bool has_growing_rows(const branch *b) {
  return b->causal && !b->segment && b->left == DIL_ENDLESS;
}

static dil_layout choose_layout(const pattern *p, const topology *t) {
  switch (t->layout) {
  case LAYOUT_CONTIGUOUS: return DIL_CONTIGUOUS;
  case LAYOUT_ZIGZAG: return DIL_ZIGZAG;
  case LAYOUT_STRIPED: return DIL_STRIPED;
  default: break;
  }
  for (int32_t i = 0; i < p->branch_count; i++)
    if (has_growing_rows(&p->branch[i])) return DIL_ZIGZAG;
  return DIL_CONTIGUOUS;
}

mesh place_mesh(const pattern *p, const topology *t) {
  return (mesh){.ring = (int32_t)t->ring,
                .heads = (int32_t)t->heads,
                .batch = (int32_t)t->batch,
                .layout = choose_layout(p, t),
                .gathered = t->exchange == EXCHANGE_GATHER ? ~(uint64_t)0 : 0,
                .timeout = t->timeout};
}

void place_possible(diag *d, const topology *t) {
  enum { RANKS_MOST = 1024 };
  if (t->devices > RANKS_MOST)
    diag_report(d, SEVERITY_ERROR, t->at, NULL,
                "topology '%s' has %lld devices, this build joins at most %d",
                t->name, (long long)t->devices, RANKS_MOST);
}

/* ---- text ---------------------------------------------------------------- */

static const char *link_name(const topology *t) {
  static const char *const names[] = {"thread", "thread", "mpi", "process",
                                      "nccl"}; /* by link_kind */
  return names[t->link];
}

void place_print_mesh(const mesh *m, const topology *t, FILE *out) {
  fprintf(out, "%lld rank%s: ring %d, heads %d, batch %d; layout %s, link %s",
          (long long)t->devices, t->devices == 1 ? "" : "s", m->ring, m->heads,
          m->batch, layouts[m->layout], link_name(t));
}

void place_print(const pattern *p, const topology *t, FILE *out) {
  static const topology alone = {.devices = 1, .ring = 1, .heads = 1,
                                 .batch = 1};
  const topology *on = t ? t : &alone;
  mesh m = place_mesh(p, on);
  fprintf(out, "place %s\n  ", p->name);
  if (on->devices == 1) {
    fprintf(out, "devices 1\n  device 0 owns every row of q, k, v and o\n"
                 "  rows that travel: none\n");
    return;
  }
  place_print_mesh(&m, on, out);
  fprintf(out, "\n  rows that travel: those that a query of the receiver "
               "reaches; with sizes, see `dil explain`\n");
}
