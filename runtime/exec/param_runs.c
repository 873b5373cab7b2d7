#include "runtime/exec/param_runs.h"

#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/plan/mesh/boxes.h"

#include <stdlib.h>

// Whether the run is the next row of the segment, with what makes a segment of one row one of rows.
static bool is_next_row(fsdp_param_run *segment, const fsdp_shard_run *run, uint64_t stream) {
  int64_t width = segment->row_numel > 0 ? segment->row_numel : segment->numel;
  int64_t step = segment->row_numel > 0 ? segment->row_step : run->element_index - segment->element_index;
  if (stream != segment->random_stream || run->numel > width || segment->numel % width != 0 || step < width ||
      segment->numel > FSDP_ROUNDING_ROWS_NUMEL - run->numel ||
      run->shard_offset != segment->shard_offset + segment->numel ||
      run->element_index != segment->element_index + segment->numel / width * step)
    return false;
  segment->row_numel = width;
  segment->row_step = step;
  return true;
}

fsdp_param_run *fsdp_param_runs(const fsdp_plan *plan, int unit, int rank, int *count) {
  int run_count;
  fsdp_shard_run *runs = fsdp_units_shard_runs(plan->units, plan->graph, unit, rank, &run_count);
  fsdp_param_run *segments = fsdp_alloc_zeroed((size_t)run_count + 1, sizeof *segments);
  *count = 0;
  for (int i = 0; i < run_count; i++) {
    uint64_t stream = fsdp_random_stream(plan->graph->params[runs[i].param].name);
    if (*count > 0 && is_next_row(&segments[*count - 1], &runs[i], stream)) {
      segments[*count - 1].numel += runs[i].numel;
      continue;
    }
    segments[(*count)++] = (fsdp_param_run){
        .shard_offset = runs[i].shard_offset,
        .numel = runs[i].numel,
        .element_index = runs[i].element_index,
        .random_stream = stream,
        .undecayed = !fsdp_hyper_decays(&plan->config.hyper, &plan->graph->params[runs[i].param]),
    };
  }
  free(runs);
  return segments;
}
