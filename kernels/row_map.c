#include "kernels/row_map.h"

#include "runtime/base/check.h"

fsdp_row_map fsdp_row_map_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  fsdp_row_map map = {.batch = attrs->batch,
                      .seq = attrs->seq,
                      .piece = attrs->piece ? attrs->piece : attrs->seq,
                      .chunk = attrs->chunk ? attrs->chunk : attrs->seq,
                      .first = attrs->first_index,
                      .second = attrs->second_index};
  if (map.seq == 0) map.piece = 1;
  const char *op = fsdp_op_name(call->kind);
  FSDP_CHECK(map.piece > 0 && map.seq % map.piece == 0, "%s: %lld rows of a sequence in pieces of %lld", op,
             (long long)map.seq, (long long)map.piece);
  FSDP_CHECK(map.chunk >= 0 && map.chunk <= map.seq, "%s: a chunk of %lld of %lld rows", op,
             (long long)map.chunk, (long long)map.seq);
  FSDP_CHECK(map.first >= 0 && map.second >= 0, "%s: positions from %lld and from %lld on", op,
             (long long)map.first, (long long)map.second);
  FSDP_CHECK(map.chunk == map.seq || map.second >= map.first + map.chunk ||
                 map.second + map.seq - map.chunk <= map.first,
             "%s: positions from %lld and from %lld on overlap", op, (long long)map.first,
             (long long)map.second);
  return map;
}

fsdp_key_map fsdp_key_map_of(const fsdp_kernel_call *call, const fsdp_row_map *queries) {
  const fsdp_op_attrs *attrs = call->attrs;
  const char *op = fsdp_op_name(call->kind);
  if (call->kind == FSDP_OP_ATTENTION || call->kind == FSDP_OP_ATTENTION_BACKWARD) {
    FSDP_CHECK(queries->chunk == queries->seq && queries->first == 0,
               "%s: positions from %lld on in the first %lld rows, not from 0 on in all", op,
               (long long)queries->first, (long long)queries->chunk);
    return (fsdp_key_map){queries->batch, queries->seq, 1, queries->seq, queries->piece};
  }
  int64_t parts = attrs->kv_parts ? attrs->kv_parts : 1, chunks = parts > 1 ? 2 * parts : 1;
  FSDP_CHECK(parts > 0 && attrs->kv_seq > 0 && attrs->kv_seq % chunks == 0, "%s: %lld keys in %lld parts", op,
             (long long)attrs->kv_seq, (long long)parts);
  fsdp_key_map map = {attrs->batch, attrs->kv_seq, parts, attrs->kv_seq / chunks, attrs->kv_piece};
  if (map.piece == 0) map.piece = map.seq / parts;
  FSDP_CHECK(map.piece > 0 && map.seq / parts % map.piece == 0, "%s: %lld keys of a part in pieces of %lld",
             op, (long long)(map.seq / parts), (long long)map.piece);
  int64_t rest = queries->seq - queries->chunk;
  FSDP_CHECK(queries->first + queries->chunk <= map.seq && (rest == 0 || queries->second + rest <= map.seq),
             "%s: queries at positions %lld to %lld and from %lld on, keys below %lld", op,
             (long long)queries->first, (long long)(queries->first + queries->chunk - 1),
             (long long)queries->second, (long long)map.seq);
  return map;
}
