/* sink_edges.c - the edges of sinks: few queries, keys in parts, several
 * passes, every way to combine branches, and sinks that are not finite. */
#include "edge.h"

const int32_t ragged[] = {100, 0, 1, 63};

const edge sink_edges[] = {
    {"sinks", P("input z : f32[H] gradient; sink z[h]; " LONGNET), S(150, 150)},
    {"sinks, few queries", P("sink h + exp(0.1 * row); causal; branch { }"),
     S(3, 300)},
    {"sinks, keys in parts", P("sink 2; branch { sink log(b + 2); }"),
     S(2, 5000)},
    {"sinks of branches", P("input z : f32[H]; sink log(2.0); branch { segment "
     "32; sink z[h]; } branch { heads 1..2; segment 64; dilation 3; "
     "sink 0.1 * i; sink -0.5; }"), S(150, 150)},
    {"sinks of several passes", P("sink 1; branch { segment 96; sink 0.5; } "
     "branch { segment 200; dilation 99; sink 3; }"), S(500, 500)},
    {"sinks, union", P("combine union; sink 0.01 * i; branch { segment 20; "
     "dilation 3; sink 1.5; } branch { window 9, 9; }"), S(90, 90)},
    {"sinks, mean", P("combine mean; sink -0.5; branch { segment 32; } "
     "branch { dilation 3; sink 1.5; } branch { heads 0..1; sink 0.01 * i; }"),
     S(120, 120)},
    {"sinks, sum, a branch a head", P("combine sum; heads split; sink 0.5; "
     "branch { dilation 2; sink 2.0; } branch { segment 30; } branch { } "
     "branch { dilation 5; }"), S(120, 120)},
    {"sinks of heads without a branch", P("sink 0.5; branch { heads 1..2; }"),
     S(50, 50)},
    {"sinks, more queries than keys", P("causal; sink 0.5; branch { segment 32; "
     "sink 2.0; } branch { dilation 2; sink i; }"), S(110, 60)},
    {"sinks, no keys", P("sink 0.01 * row; branch { dilation 2; sink 1.0; }"),
     S(40, 0)},
    {"sinks, lengths", P("sink 0.1 * i - 0.05 * M; causal; " LONGNET),
     {.batch = 4, .queries = 100, .keys = 100, .lengths = ragged}},
    {"sinks, dropout", P("dropout 0.3; sink 1.0; causal; " LONGNET),
     S_(90, 90, .train = true, .dropout_seed = 5)},
    {"sinks that are not finite", P("sink h == 0 ? -inf : h == 1 ? inf : 0.5; "
     "branch { dilation 3; sink i % 5 == 0 ? inf - inf : -inf; }"), S(60, 60)},
    {"sinks that are not finite, mean", P("combine mean; sink i == 7 ? inf : "
     "-inf; branch { dilation 3; sink i == 6 ? inf : -inf; } branch { "
     "dilation 2; }"), S(60, 60)},
    {"sinks that count as infinite", P("sink h == 0 ? 2.5e38 : h == 1 ? -2.5e38 : "
     "h == 2 ? 2.3e38 : -2.3e38; branch { dilation 2; mask j < i - 2; }"), S(60, 60)},
    {"large sinks", P("sink h == 0 ? 1e8 : h == 1 ? -1e8 : h == 2 ? 50 : -50; "
     LONGNET), S(90, 90)},
};
const int32_t sink_edge_count = sizeof sink_edges / sizeof *sink_edges;
