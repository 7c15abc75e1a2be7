/* command_print.c - `dil print --after STAGE FILE`: prints what a stage
 * made. */
#include "call_setup.h"

enum { COVER_QUERIES = 4096 };

static dil_status print_cover(arena *a, const options *o, driver_request *r,
                              compilation *c) {
  call_setup b;
  r->last = STAGE_pattern;
  dil_status status = driver_compile(r, c);
  if (status) return status;
  status = call_setup_open(a, o, c->pattern, &b);
  if (!status) status = call_setup_sizes(&b, COVER_QUERIES);
  if (!status) status = call_setup_inputs(&b, false);
  r->last = STAGE_cover;
  r->call = &b.call;
  r->dump = stdout;
  if (!status) status = driver_compile(r, c);
  call_setup_free(&b);
  return status;
}

/* The first stage that reads an option. */
static const struct {
  option_id option;
  stage first;
  const char *words;
} readers[] = {
    {OPTION_DEFINE, STAGE_pattern, "--define is for --after pattern and later"},
    {OPTION_KERNEL, STAGE_pattern, "--kernel is for --after pattern and later"},
    {OPTION_AS, STAGE_pattern, "--dtype is for --after pattern and later"},
    {OPTION_HEADS, STAGE_pattern, "--heads is for --after pattern and later"},
    {OPTION_KV_HEADS, STAGE_pattern,
     "--kv-heads is for --after pattern and later"},
    {OPTION_HEAD_DIM, STAGE_pattern,
     "--head-dim is for --after pattern and later"},
    {OPTION_VALUE_DIM, STAGE_pattern,
     "--value-dim is for --after pattern and later"},
    {OPTION_TOPOLOGY, STAGE_place, "--topology is for --after place and later"},
    {OPTION_FORCE, STAGE_normalise,
     "--force is for --after normalise and later"},
    {OPTION_CPU, STAGE_schedule, "--cpu is for --after schedule, ir and asm"},
    {OPTION_VARIANT, STAGE_ir, "--variant is for --after ir and asm"},
};

static dil_status check_stage(const options *o) {
  bool sized = o->seen[OPTION_SEQ] || o->seen[OPTION_KEYS] || o->input.count;
  if (!o->seen[OPTION_AFTER])
    return message_error(DIL_USAGE, STAGE_NAMES,
                         "`dil print` needs --after STAGE");
  if (sized && o->after != STAGE_cover)
    return message_error(DIL_USAGE, NULL,
                         "--seq, --keys and --input are for --after cover");
  if (o->seen[OPTION_CUDA] && (o->after < STAGE_fuse || o->after > STAGE_ptxas))
    return message_error(DIL_USAGE, NULL,
                         "--cuda is for --after fuse, plan, cuda and ptxas");
  for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
    if (o->seen[readers[i].option] && o->after < (int32_t)readers[i].first)
      return message_error(DIL_USAGE, NULL, "%s", readers[i].words);
  return DIL_OK;
}

dil_status command_print(arena *a, const options *o) {
  const char *chips = o->cuda ? o->cuda : "sm_90a";
  dil_status status = check_stage(o);
  compilation c = {.arena = a, .diag = diag_new(a)};
  driver_request r = command_request(o, 0);
  if (!status) status = command_arch(&chips, &r.arch);
  if (!status && *chips)
    status = message_error(DIL_USAGE, NULL,
                           "`dil print` takes one chip, got '%s' too", chips);
  if (status) return status;
  r.last = (stage)o->after;
  if (r.last > STAGE_plan || o->seen[OPTION_CUDA]) r.device = KNOB_CUDA;
  if (r.last >= STAGE_schedule) r.device = KNOB_CPU;
  r.dump = stdout;
  if (r.last == STAGE_cover && !r.from_plan) {
    r.dump = NULL;
    status = print_cover(a, o, &r, &c);
  } else {
    status = driver_compile(&r, &c);
  }
  return message_compiled(o, &c, status);
}
