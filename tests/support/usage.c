/* usage.c - the table of public functions: see usage.h. */
#include "usage.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what a good call is given -------------------------------------------- */

usage_world usage;
#define w usage

static const char text[] = "let n = 2; pattern p { heads n; head_dim 16;\n"
                           " dtype f32; input doc : i32[B, M];\n"
                           " branch { mask doc[b, i] == doc[b, j]; } }\n"
                           "topology alone { devices 1; }\n";

/* Where a ring of one meets: each test has a process of its own. */
static const char *meet_at(const char *name) {
  static char path[2][80];
  char *own = path[*name == 'n'];
  snprintf(own, sizeof path[0], "/tmp/usage.%d.%s", (int)getpid(), name);
  return own;
}

static void set_options(void) {
  w.define = (dil_define){"n", "2"};
  w.window = (dil_define){"w", "3"};
  w.segment = 16, w.dilation = 2;
  w.sides[0] = w.sides[1] = 8;
  w.context_options = (dil_context_options)DIL_CONTEXT_OPTIONS_INIT;
  w.context_options.device = "cpu";
  w.context_options.threads = 1;
  w.program_options = (dil_program_options)DIL_PROGRAM_OPTIONS_INIT;
  w.program_options.defines = &w.define;
  w.program_options.define_count = 1;
  w.kernel_options = (dil_kernel_options)DIL_KERNEL_OPTIONS_INIT;
  w.kernel_options.isa = "avx2";
  w.kernel_options.dtype = "f32";
  w.kernel_options.sizes = &w.tuned;
  w.tuned = w.sizes = host_sizes;
  w.branches = (dil_attention_options)DIL_ATTENTION_OPTIONS_INIT;
  w.branches.heads = w.branches.kv_heads = 2;
  w.branches.head_dim = w.branches.value_dim = 16;
  w.branches.dtype = "f32";
  w.branches.branch_count = 1;
  w.branches.segments = &w.segment;
  w.branches.dilations = &w.dilation;
  w.branches.window = w.sides;
  w.branches.combine = "softmax";
  w.preset = (dil_attention_options)DIL_ATTENTION_OPTIONS_INIT;
  w.preset.preset = "sliding";
  w.preset.defines = &w.window;
  w.preset.define_count = 1;
  w.stats = (dil_stats)DIL_STATS_INIT;
  w.info = (dil_kernel_info)DIL_KERNEL_INFO_INIT;
  w.tensor = (dil_tensor_info)DIL_TENSOR_INFO_INIT;
  w.topology = (dil_topology_info)DIL_TOPOLOGY_INFO_INIT;
  w.rank_options = (dil_rank_options)DIL_RANK_OPTIONS_INIT;
  w.rank_options.meet = meet_at("new");
}

static void set_pointers(void) {
  w.context_given = &w.context_options;
  w.program_given = &w.program_options;
  w.kernel_given = &w.kernel_options;
  w.branches_given = &w.branches;
  w.preset_given = &w.preset;
  w.sizes_given = &w.sizes;
  w.stats_given = &w.stats;
  w.info_given = &w.info;
  w.topology_given = &w.topology;
  w.rank_given = &w.rank_options;
  w.rank_place = &w.new_rank;
  w.positions_place = w.positions;
  w.rows = 96;
  w.tensor_given = &w.tensor;
  w.arguments_given = &w.call.arguments;
  w.gradients_given = &w.gradients;
  w.context_place = &w.new_context;
  w.program_place = &w.new_program;
  w.kernel_place = &w.new_kernel;
  w.memory_place = &w.new_memory;
  w.bytes_place = &w.bytes;
  w.text_place = w.text;
  w.room = sizeof w.text;
  w.name = "test.dil", w.path = "preset:sliding", w.kernel_name = "p";
  w.topology_name = "alone";
  w.source = text, w.length = strlen(text);
  w.host = w.text;
  w.copied = sizeof w.text;
}

void usage_open(void) {
  host_must(dil_context_new(NULL, &w.context));
  host_must(dil_program_parse(w.context, "t", text, strlen(text), NULL,
                              &w.program));
  host_must(dil_program_kernel(w.program, NULL, NULL, &w.kernel));
  dil_kernel_options backward = DIL_KERNEL_OPTIONS_INIT;
  backward.backward = 1;
  host_must(dil_program_kernel(w.program, NULL, &backward, &w.backward));
  dil_rank_options alone = DIL_RANK_OPTIONS_INIT;
  alone.meet = meet_at("own");
  host_must(dil_rank_new(w.backward, &alone, &w.rank));
}

void usage_close(void) {
  dil_rank_free(w.rank);
  dil_kernel_free(w.kernel);
  dil_kernel_free(w.backward);
  dil_program_free(w.program);
  dil_context_free(w.context);
}

void usage_set(void) {
  set_options();
  set_pointers();
  host_must(dil_memory_take(w.context, sizeof w.text, &w.device));
  host_call_make(&w.call, w.kernel, &host_sizes);
  w.gradients = (dil_gradients)DIL_GRADIENTS_INIT;
  w.gradients.forward = &w.call.arguments;
  w.gradients.d_o = &w.call.tensor[DIL_TENSOR_V];
  memcpy(w.strides, (int64_t[]){96 * 32, 32, 16, 1}, sizeof w.strides);
  w.call.tensor[DIL_TENSOR_Q].strides = w.strides;
}

void usage_unset(void) {
  w.call.tensor[DIL_TENSOR_Q].strides = NULL;
  host_call_free(&w.call);
  dil_memory_give(w.context, w.device);
}

bool usage_made(void) {
  return w.new_context || w.new_program || w.new_kernel || w.new_memory ||
         w.new_rank;
}

void usage_drop(void) {
  dil_rank_free(w.new_rank);
  w.new_rank = NULL;
  dil_context_free(w.new_context);
  dil_program_free(w.new_program);
  dil_kernel_free(w.new_kernel);
  dil_memory_give(w.context, w.new_memory);
  w.new_context = NULL;
  w.new_program = NULL;
  w.new_kernel = NULL;
  w.new_memory = NULL;
}

/* ---- the table ------------------------------------------------------------ */

#define WANTED(x) {'p', &w.x, DIL_USAGE, DIL_OK}
#define OPTIONAL(x) {'p', &w.x, DIL_OK, DIL_OK}
#define STRUCT(x) {'s', &w.x, DIL_USAGE, DIL_USAGE}
#define OPTIONS(x) {'s', &w.x, DIL_OK, DIL_USAGE}
#define WORD(x, zero, other) {'w', &w.x, DIL_##zero, DIL_##other}
#define LONG(x, zero, other) {'l', &w.x, DIL_##zero, DIL_##other}
#define FAR(x, other) {'f', &w.x, DIL_OK, DIL_##other}
#define REAL(x) {'d', &w.x, DIL_OK, DIL_USAGE}
#define F(name, ...) {#name, (void *)name, __VA_ARGS__}

const usage_function functions[] = {
    F(dil_version, 'w', 0, {{0}}),
    F(dil_version_text, 'p', 0, {{0}}),
    F(dil_status_name, 'p', "unknown status", {WORD(status, OK, USAGE)}),
    F(dil_status_text, 'p', "unknown status", {WORD(status, OK, USAGE)}),
    F(dil_last_error, 'p', 0, {{0}}),
    F(dil_context_new, 's', 0, {OPTIONS(context_given), WANTED(context_place)}),
    F(dil_context_free, 'v', 0, {OPTIONAL(no_context)}),
    F(dil_context_device, 'p', "", {WANTED(context)}),
    F(dil_context_threads, 'w', 0, {WANTED(context)}),
    F(dil_context_wait, 's', 0, {WANTED(context), OPTIONAL(stream)}),
    F(dil_context_stats, 's', 0, {WANTED(context), STRUCT(stats_given)}),
    F(dil_memory_take, 's', 0,
      {WANTED(context), LONG(copied, OK, USAGE), WANTED(memory_place)}),
    F(dil_memory_give, 'v', 0, {WANTED(context), OPTIONAL(new_memory)}),
    F(dil_memory_write, 's', 0,
      {WANTED(context), WANTED(device), WANTED(host), LONG(copied, OK, USAGE)}),
    F(dil_memory_read, 's', 0,
      {WANTED(context), WANTED(host), WANTED(device), LONG(copied, OK, USAGE)}),
    F(dil_kernel_free, 'v', 0, {OPTIONAL(no_kernel)}),
    F(dil_kernel_run, 's', 0, {WANTED(kernel), STRUCT(arguments_given)}),
    F(dil_kernel_prepare, 's', 0, {WANTED(kernel), WANTED(sizes_given)}),
    F(dil_kernel_workspace, 's', 0,
      {WANTED(kernel), WANTED(sizes_given), WANTED(bytes_place)}),
    F(dil_kernel_saved, 's', 0,
      {WANTED(backward), WANTED(sizes_given), WANTED(bytes_place)}),
    F(dil_kernel_variant, 's', 0,
      {WANTED(kernel), WANTED(sizes_given), WANTED(text_place),
       LONG(room, OK, OK)}),
    F(dil_kernel_describe, 's', 0, {WANTED(kernel), STRUCT(info_given)}),
    F(dil_kernel_tensor, 's', 0,
      {WANTED(kernel), WORD(index, OK, USAGE), WANTED(sizes_given),
       STRUCT(tensor_given)}),
    F(dil_kernel_backward, 's', 0, {WANTED(backward), STRUCT(gradients_given)}),
    F(dil_kernel_backward_workspace, 's', 0,
      {WANTED(backward), WANTED(sizes_given), WANTED(bytes_place)}),
    F(dil_rank_new, 's', 0,
      {WANTED(kernel), STRUCT(rank_given), WANTED(rank_place)}),
    F(dil_rank_free, 'v', 0, {OPTIONAL(no_rank)}),
    F(dil_rank_positions, 's', 0,
      {WANTED(rank), LONG(rows, OK, USAGE), OPTIONAL(positions_place),
       WANTED(bytes_place)}),
    F(dil_rank_run, 's', 0,
      {WANTED(rank), WANTED(sizes_given), STRUCT(arguments_given)}),
    F(dil_rank_backward, 's', 0,
      {WANTED(rank), WANTED(sizes_given), STRUCT(gradients_given)}),
    F(dil_program_read, 's', 0,
      {WANTED(context), WANTED(path), OPTIONS(no_program),
       WANTED(program_place)}),
    F(dil_program_parse, 's', 0,
      {WANTED(context), OPTIONAL(name), WANTED(source),
       LONG(length, INPUT, USAGE), OPTIONS(program_given),
       WANTED(program_place)}),
    F(dil_program_free, 'v', 0, {OPTIONAL(no_program)}),
    F(dil_program_warnings, 'p', "", {WANTED(program)}),
    F(dil_program_kernel_count, 'w', 0, {WANTED(program)}),
    F(dil_program_kernel_name, 'p', 0,
      {WANTED(program), WORD(index, OK, USAGE)}),
    F(dil_program_topology, 's', 0,
      {WANTED(program), OPTIONAL(topology_name), STRUCT(topology_given)}),
    F(dil_program_kernel, 's', 0,
      {WANTED(program), OPTIONAL(kernel_name), OPTIONS(kernel_given),
       WANTED(kernel_place)}),
    F(dil_preset_count, 'w', 0, {{0}}),
    F(dil_preset_name, 'p', 0, {WORD(index, OK, USAGE)}),
    F(dil_preset_text, 'p', 0, {WANTED(preset.preset)}),
    F(dil_attention, 's', 0,
      {OPTIONAL(context), STRUCT(branches_given), WANTED(kernel_place)}),
    F(dil_attention, 's', 0,
      {OPTIONAL(context), STRUCT(preset_given), WANTED(kernel_place)}),
};
const int function_count = sizeof functions / sizeof *functions;

#define IN(function, x, ...) {#function, #x, __VA_ARGS__}
#define ATTENTION(x, zero, other) \
  IN(dil_attention, branches.x, WORD(branches.x, zero, other))
#define RUN(x) IN(dil_kernel_run, call.x, WANTED(call.x))
#define RUN_FAR(x, other) IN(dil_kernel_run, call.x, FAR(call.x, other))
#define SIZES(function)                                       \
  IN(function, sizes.batch, LONG(sizes.batch, OK, USAGE)),    \
  IN(function, sizes.queries, LONG(sizes.queries, OK, USAGE)), \
  IN(function, sizes.keys, LONG(sizes.keys, OK, USAGE))
#define TENSOR(n)                                                          \
  IN(dil_kernel_run, #n ".data", WANTED(call.tensor[n].data)),             \
  IN(dil_kernel_run, #n ".shape", WANTED(call.tensor[n].shape)),           \
  IN(dil_kernel_run, #n ".ndim", WORD(call.tensor[n].ndim, USAGE, USAGE)), \
  IN(dil_kernel_run, #n ".device_type",                                    \
     WORD(call.tensor[n].device.device_type, USAGE, USAGE)),               \
  IN(dil_kernel_run, #n ".byte_offset",                                    \
     LONG(call.tensor[n].byte_offset, OK, USAGE)),                         \
  IN(dil_kernel_run, #n ".shape[0]", LONG(call.shape[n][0], USAGE, USAGE)), \
  IN(dil_kernel_run, #n ".shape[1]", LONG(call.shape[n][1], USAGE, USAGE))

const field fields[] = {
    IN(dil_context_new, device, OPTIONAL(context_options.device)),
    IN(dil_context_new, threads, WORD(context_options.threads, OK, USAGE)),
    IN(dil_context_new, log_level, WORD(context_options.log_level, OK, OK)),
    IN(dil_program_parse, defines, WANTED(program_options.defines)),
    IN(dil_program_parse, define_count,
       WORD(program_options.define_count, OK, USAGE)),
    IN(dil_program_parse, json, WORD(program_options.json, OK, OK)),
    IN(dil_program_parse, define.name, WANTED(define.name)),
    IN(dil_program_parse, define.value, WANTED(define.value)),
    IN(dil_program_kernel, isa, OPTIONAL(kernel_options.isa)),
    IN(dil_program_kernel, force, WORD(kernel_options.force, OK, USAGE)),
    IN(dil_program_kernel, json, WORD(kernel_options.json, OK, OK)),
    IN(dil_program_kernel, backward, WORD(kernel_options.backward, OK, OK)),
    IN(dil_program_kernel, dtype, OPTIONAL(kernel_options.dtype)),
    IN(dil_program_kernel, sizes, OPTIONAL(kernel_options.sizes)),
    IN(dil_program_kernel, tuned.batch, LONG(tuned.batch, OK, USAGE)),
    IN(dil_program_kernel, tuned.queries, LONG(tuned.queries, OK, USAGE)),
    IN(dil_program_kernel, tuned.keys, LONG(tuned.keys, OK, USAGE)),
    ATTENTION(heads, USAGE, INPUT),
    ATTENTION(kv_heads, OK, INPUT),
    ATTENTION(head_dim, USAGE, INPUT),
    ATTENTION(value_dim, OK, INPUT),
    ATTENTION(causal, OK, OK),
    ATTENTION(branch_count, OK, USAGE),
    ATTENTION(define_count, OK, USAGE),
    IN(dil_attention, segments, WANTED(branches.segments)),
    IN(dil_attention, dilations, WANTED(branches.dilations)),
    IN(dil_attention, segment, LONG(segment, OK, INPUT)),
    IN(dil_attention, dilation, LONG(dilation, INPUT, INPUT)),
    IN(dil_attention, window, OPTIONAL(branches.window)),
    IN(dil_attention, window[0], FAR(sides[0], INPUT)),
    IN(dil_attention, window[1], FAR(sides[1], INPUT)),
    IN(dil_attention, dtype, OPTIONAL(branches.dtype)),
    IN(dil_attention, combine, OPTIONAL(branches.combine)),
    IN(dil_attention, preset, {'p', &w.preset.preset, DIL_USAGE, DIL_OK}),
    IN(dil_attention, defines, WANTED(preset.defines)),
    IN(dil_attention, define_count, WORD(preset.define_count, OK, USAGE)),
    IN(dil_attention, backward, WORD(preset.backward, OK, OK)),
    IN(dil_attention, window.name, WANTED(window.name)),
    IN(dil_attention, window.value, WANTED(window.value)),
    SIZES(dil_kernel_prepare),
    SIZES(dil_kernel_workspace),
    SIZES(dil_kernel_saved),
    SIZES(dil_kernel_variant),
    SIZES(dil_kernel_tensor),
    SIZES(dil_kernel_backward_workspace),
    IN(dil_kernel_backward, forward, WANTED(gradients.forward)),
    IN(dil_kernel_backward, d_o, WANTED(gradients.d_o)),
    IN(dil_kernel_backward, dlse, OPTIONAL(gradients.dlse)),
    IN(dil_kernel_backward, dq, OPTIONAL(gradients.dq)),
    IN(dil_kernel_backward, inputs, OPTIONAL(gradients.inputs)),
    IN(dil_kernel_backward, input_count,
       WORD(gradients.input_count, OK, USAGE)),
    IN(dil_kernel_backward, workspace_bytes,
       LONG(gradients.workspace_bytes, OK, USAGE)),
    RUN(arguments.q),
    RUN(arguments.k),
    RUN(arguments.v),
    RUN(arguments.o),
    RUN(arguments.inputs),
    RUN(inputs[0]),
    IN(dil_kernel_run, lse, OPTIONAL(call.arguments.lse)),
    IN(dil_kernel_run, lengths, OPTIONAL(call.arguments.lengths)),
    IN(dil_kernel_run, offsets_q, OPTIONAL(call.arguments.offsets_q)),
    IN(dil_kernel_run, offsets_k, OPTIONAL(call.arguments.offsets_k)),
    IN(dil_kernel_run, longest_q, LONG(call.arguments.longest_q, OK, USAGE)),
    IN(dil_kernel_run, longest_k, LONG(call.arguments.longest_k, OK, USAGE)),
    IN(dil_kernel_run, strides, OPTIONAL(call.tensor[DIL_TENSOR_Q].strides)),
    IN(dil_kernel_run, input_count,
       WORD(call.arguments.input_count, USAGE, USAGE)),
    IN(dil_kernel_run, selection, OPTIONAL(call.arguments.selection)),
    IN(dil_kernel_run, selection_count,
       WORD(call.arguments.selection_count, OK, USAGE)),
    IN(dil_kernel_run, train, WORD(call.arguments.train, OK, OK)),
    IN(dil_kernel_run, seed, LONG(call.arguments.seed, OK, OK)),
    IN(dil_kernel_run, scale, REAL(call.arguments.scale)),
    IN(dil_kernel_run, strides[0], FAR(strides[0], OK)),
    IN(dil_kernel_run, strides[1], FAR(strides[1], USAGE)),
    IN(dil_kernel_run, strides[2], FAR(strides[2], USAGE)),
    IN(dil_kernel_run, strides[3], {'f', &w.strides[3], DIL_USAGE, DIL_USAGE}),
    TENSOR(DIL_TENSOR_Q),
    TENSOR(DIL_TENSOR_K),
    TENSOR(DIL_TENSOR_V),
    TENSOR(DIL_TENSOR_O),
    TENSOR(DIL_TENSOR_LSE),
    TENSOR(DIL_TENSOR_INPUT),
};
const int field_count = sizeof fields / sizeof *fields;
