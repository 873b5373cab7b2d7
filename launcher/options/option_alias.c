#include "launcher/options/option_alias.h"

#include <string.h>

#define SAME(theirs, ours)                                                                                   \
  { .alias = (theirs), .name = (ours) }
#define INSTEAD(theirs, clause)                                                                              \
  { .alias = (theirs), .advice = (clause) }

#define DATASET                                                                                              \
  "--data takes files: download them (hf download NAME --repo-type dataset --local-dir DIR) and prepare "    \
  "them "                                                                                                    \
  "with"
#define EVALUATE "fsdp_eval evaluates alone: fsdp_eval -e NAME, or --model DIR, with --data FILE"
#define SHAPE    "the shape is the model's: --model takes a preset or a folder, whose config.json holds it"

#define NO_FLASH "attention never keeps its scores, whichever kernel computes it: leave it out"
#define WORKERS  "data is mapped and read beside the step: leave it out"
#define ADAPTERS "adapters are not built: every parameter is trained"
#define RANKS    "fsdp_train: mpirun -np N sets the ranks, one per GPU; fsdp_plan: --ranks N does"
#define WANDB    "use --tensorboard DIR; wandb sync --sync-tensorboard DIR uploads what it wrote"
#define WHOLE    "a step is planned whole before the first one: leave it out"

#define OFFLOADS                                                                                             \
  "use --offload-activations NAMES, such as residual,attention@8 for the first 8 layers, or auto"

// The names of Transformers' and TRL's trainers, Accelerate, DeepSpeed, Megatron, torchtitan, nanoGPT and
// litgpt. A row is SAME only if each value means the same in both.
static const fsdp_option_alias table[] = {
    // Model and data.
    SAME("model-name", "model"),
    SAME("model-path", "model"),
    SAME("base-model", "model"),
    SAME("model-name-or-path", "model"),
    SAME("pretrained-model-name-or-path", "model"),
    {.alias = "dataset-name-or-path", .advice = DATASET, .script = "prepare_data.py"},
    SAME("val-set-size", "eval-split"),
    SAME("val-size", "eval-split"),
    INSTEAD("dataloader-num-workers", WORKERS),
    INSTEAD("num-workers", WORKERS),
    INSTEAD("lora", ADAPTERS),
    INSTEAD("use-lora", ADAPTERS),
    INSTEAD("qlora", ADAPTERS),
    INSTEAD("finetuning-type", ADAPTERS),
    INSTEAD("load-in-4bit", ADAPTERS),
    INSTEAD("load-in-8bit", ADAPTERS),
    INSTEAD("resize-vocab", "use --resize-embeddings, for a tokenizer with more tokens than the model"),
    INSTEAD("resize-token-embeddings-to-32x", "use --resize-embeddings N"),
    INSTEAD("num-layers", SHAPE),
    INSTEAD("hidden-size", SHAPE),
    INSTEAD("ffn-hidden-size", SHAPE),
    INSTEAD("num-attention-heads", SHAPE),
    INSTEAD("max-position-embeddings", SHAPE),
    SAME("tokenizer-path", "tokenizer"),
    SAME("tokenizer-file", "tokenizer"),
    SAME("data-path", "data"),
    SAME("train-data", "data"),
    SAME("train-file", "data"),
    SAME("eval-file", "eval-data"),
    SAME("validation-file", "eval-data"),
    {.alias = "dataset-name", .advice = DATASET, .script = "prepare_data.py"},
    {.alias = "dataset", .advice = DATASET, .script = "prepare_data.py"},
    {.alias = "datasets", .advice = DATASET, .script = "prepare_data.py"},
    {.alias = "template",
     .advice = "conversations get their form before training: --chat-template of",
     .script = "prepare_data.py"},
    INSTEAD("do-train", "fsdp_train always trains: leave it out"),
    INSTEAD("push-to-hub", "fsdp_export writes a folder, which hf upload ORG/NAME DIR uploads"),
    INSTEAD("n-layer", SHAPE),
    INSTEAD("n-embd", SHAPE),
    INSTEAD("n-head", SHAPE),
    // The batch.
    SAME("micro-batch-size", "batch-size"),
    SAME("mbs", "batch-size"),
    SAME("ga", "grad-accum"),
    SAME("per-device-batch-size", "batch-size"),
    SAME("per-device-train-batch-size", "batch-size"),
    SAME("train-micro-batch-size-per-gpu", "batch-size"),
    SAME("gradient-accumulation-steps", "grad-accum"),
    SAME("grad-accum-steps", "grad-accum"),
    SAME("accumulation-steps", "grad-accum"),
    SAME("seq-len", "seq-length"),
    SAME("cutoff-len", "seq-length"),
    SAME("sequence-length", "seq-length"),
    SAME("sequence-len", "seq-length"),
    SAME("max-seq-len", "seq-length"),
    {.alias = "sample-packing", .name = "packing", .on = "best-fit", .off = "off"},
    SAME("max-seq-length", "seq-length"),
    SAME("max-length", "seq-length"),
    SAME("block-size", "seq-length"),
    SAME("context-length", "seq-length"),
    INSTEAD("global-batch-size", "the global batch is --batch-size x --grad-accum x data-parallel ranks"),
    INSTEAD("train-batch-size", "the global batch is --batch-size x --grad-accum x data-parallel ranks"),
    // How long.
    SAME("epochs", "num-epochs"),
    SAME("max-epochs", "num-epochs"),
    SAME("num-train-epochs", "num-epochs"),
    SAME("max-train-steps", "max-steps"),
    SAME("train-steps", "max-steps"),
    SAME("steps", "max-steps"),
    SAME("max-iters", "max-steps"),
    SAME("train-iters", "max-steps"),
    SAME("total-tokens", "tokens"),
    INSTEAD("price-per-hour", "use --gpu-hour X, what an hour of one GPU costs"),
    INSTEAD("dollars-per-hour", "use --gpu-hour X, what an hour of one GPU costs"),
    // The optimizer.
    INSTEAD("optim", "the optimizer is AdamW, as PyTorch's: leave it out"),
    INSTEAD("optimizer", "the optimizer is AdamW, as PyTorch's: leave it out"),
    SAME("learning-rate", "lr"),
    SAME("min-learning-rate", "min-lr"),
    SAME("lr-scheduler", "lr-schedule"),
    SAME("lr-scheduler-type", "lr-schedule"),
    SAME("lr-decay-style", "lr-schedule"),
    SAME("num-warmup-steps", "warmup-steps"),
    SAME("lr-warmup-steps", "warmup-steps"),
    SAME("warmup-iters", "warmup-steps"),
    SAME("lr-warmup-iters", "warmup-steps"),
    SAME("lr-warmup-fraction", "warmup-ratio"),
    SAME("decay-ratio", "lr-decay-ratio"),
    INSTEAD("num-decay-steps", "use --lr-schedule wsd --lr-decay-ratio P, a share of all steps"),
    INSTEAD("lr-wsd-decay-iters", "use --lr-schedule wsd --lr-decay-ratio P, a share of all steps"),
    SAME("adam-beta1", "beta1"),
    SAME("adam-beta2", "beta2"),
    SAME("adam-eps", "eps"),
    SAME("adam-epsilon", "eps"),
    SAME("max-grad-norm", "grad-clip"),
    SAME("clip-grad", "grad-clip"),
    SAME("clip-grad-norm", "grad-clip"),
    SAME("gradient-clipping", "grad-clip"),
    // Sharding.
    SAME("tp", "tensor-parallel"),
    SAME("cp", "context-parallel"),
    {.alias = "sp", .name = "sequence-parallel", .on = "on", .off = "off"},
    INSTEAD("dp", "use --strategy no for replicas on all ranks, or --mesh data=N,..."),
    SAME("ep", "expert-parallel"),
    SAME("ep-size", "expert-parallel"),
    SAME("expert-model-parallel-size", "expert-parallel"),
    SAME("expert-parallel-size", "expert-parallel"),
    SAME("expert-parallel-degree", "expert-parallel"),
    INSTEAD("pp", "pipeline parallelism is not built yet: --strategy shards every layer"),
    SAME("tensor-model-parallel-size", "tensor-parallel"),
    SAME("tensor-parallel-size", "tensor-parallel"),
    SAME("tensor-parallel-degree", "tensor-parallel"),
    SAME("context-parallel-size", "context-parallel"),
    SAME("context-parallel-degree", "context-parallel"),
    INSTEAD("pipeline-model-parallel-size",
            "pipeline parallelism is not built yet: --strategy shards every layer"),
    SAME("sharding-strategy", "strategy"),
    SAME("fsdp-sharding-strategy", "strategy"),
    SAME("min-num-params", "numel-to-wrap"),
    SAME("fsdp-min-num-params", "numel-to-wrap"),
    {.alias = "offload-params", .name = "cpu-offload", .on = "on", .off = "off"},
    {.alias = "fsdp-offload-params", .name = "cpu-offload", .on = "on", .off = "off"},
    INSTEAD(
        "fsdp",
        "every run is sharded: --strategy sets how, --wrap the units, --mesh fsdp=N,... over how many ranks"),
    INSTEAD("deepspeed", "use --strategy zero1, zero2 or zero3, and --cpu-offload on"),
    INSTEAD("zero", "use --strategy zero3, zero2, zero1 or zero0"),
    INSTEAD("ddp", "use --strategy no: every rank has all of the model"),
    INSTEAD("zero-stage", "use --strategy zero3, zero2, zero1 or zero0"),
    INSTEAD("use-distributed-optimizer", "use --strategy zero1"),
    INSTEAD("auto-wrap-policy", "use --wrap size|block|none|module:NAME,..."),
    INSTEAD("transformer-layer-cls-to-wrap", "use --wrap block, or --wrap module:NAME,..."),
    INSTEAD("fsdp-transformer-layer-cls-to-wrap", "use --wrap block, or --wrap module:NAME,..."),
    INSTEAD("backward-prefetch", "use --prefetch N, the number of wrapped modules that are gathered ahead"),
    // Memory and precision.
    {.alias = "gc", .name = "recompute", .on = "block", .off = "none"},
    {.alias = "gradient-checkpointing", .name = "recompute", .on = "block", .off = "none"},
    {.alias = "activation-checkpointing", .name = "recompute", .on = "block", .off = "none"},
    {.alias = "fsdp-activation-checkpointing", .name = "recompute", .on = "block", .off = "none"},
    {.alias = "enable-activation-checkpointing", .name = "recompute", .on = "block", .off = "none"},
    INSTEAD("recompute-activations", "use --recompute OPS, such as rmsnorm,swiglu; attention's scores are "
                                     "never saved"),
    INSTEAD("recompute-granularity", "use --recompute block for full, --recompute OPS for selective"),
    INSTEAD("recompute-method", "use --recompute block:K for the first K layers"),
    INSTEAD("recompute-num-layers", "use --recompute block:K for the first K layers"),
    INSTEAD("recompute-modules", "use --recompute OPS, such as rmsnorm,swiglu"),
    INSTEAD("cpu-checkpointing", "use --recompute block --offload-activations block_inputs"),
    INSTEAD("activation-offloading", OFFLOADS),
    INSTEAD("enable-activation-offloading", OFFLOADS),
    INSTEAD("cpu-offloading", OFFLOADS),
    INSTEAD("cpu-offloading-num-layers", OFFLOADS),
    INSTEAD("bf16",
            "use --param-dtype bf16, the default on a GPU: compute in bf16 with master weights in fp32"),
    INSTEAD("fp16", "fp16 needs loss scaling, which is not implemented: use --param-dtype bf16"),
    INSTEAD("fp32", "use --param-dtype fp32"),
    INSTEAD("dtype",
            "use --param-dtype bf16|fp32, to compute in; --master-dtype is that of the weights kept"),
    INSTEAD("torch-dtype",
            "use --param-dtype bf16|fp32, to compute in; --master-dtype is that of the weights kept"),
    INSTEAD("precision",
            "use --param-dtype bf16|fp32; master weights are in fp32 unless --master-dtype bf16"),
    INSTEAD("mixed-precision",
            "use --param-dtype bf16|fp32; master weights are in fp32 unless --master-dtype bf16"),
    INSTEAD("gemm-dtype", "products are computed in --param-dtype, bf16 or fp32"),
    INSTEAD("fp8", "fp8 is not built: use --param-dtype bf16"),
    INSTEAD("neftune-noise-alpha", "noise on embeddings is not built: leave it out"),
    INSTEAD("label-smoothing", "label smoothing is not built: leave it out"),
    INSTEAD("label-smoothing-factor", "label smoothing is not built: leave it out"),
    // Files.
    INSTEAD("output-dir", "use -e NAME for a run's folder and --save-dir DIR for the one that holds it"),
    INSTEAD("overwrite-output-dir",
            "-e NAME resumes its newest checkpoint: use --resume off --overwrite to begin "
            "again"),
    SAME("exp-name", "experiment-name"),
    INSTEAD("run-name", "use -e NAME, which names the run's folder below --save-dir"),
    SAME("save-steps", "ckpt-freq"),
    SAME("save-interval", "ckpt-freq"),
    SAME("save-every", "ckpt-freq"),
    SAME("checkpointing-steps", "ckpt-freq"),
    SAME("save-total-limit", "ckpt-keep"),
    {.alias = "load-best-model-at-end", .name = "ckpt-best", .on = "eval_loss", .off = "off"},
    INSTEAD("metric-for-best-model", "use --ckpt-best eval_loss"),
    SAME("early-stopping-patience", "stop-after"),
    INSTEAD("eval-only", EVALUATE),
    INSTEAD("do-eval", EVALUATE),
    SAME("eval-on-start", "eval-at-start"),
    {.alias = "resume-from-checkpoint", .name = "resume", .on = "auto", .off = "off"},
    SAME("logging-steps", "log-freq"),
    SAME("log-interval", "log-freq"),
    SAME("eval-steps", "eval-freq"),
    SAME("eval-interval", "eval-freq"),
    INSTEAD("eval-strategy", "use --eval-freq N, with --eval-data FILE or --eval-split 0.05"),
    INSTEAD("evaluation-strategy", "use --eval-freq N, with --eval-data FILE or --eval-split 0.05"),
    SAME("tensorboard-dir", "tensorboard"),
    INSTEAD("save-strategy", "use -e NAME with --ckpt-freq N"),
    INSTEAD("wandb", WANDB),
    INSTEAD("wandb-project", WANDB),
    INSTEAD("use-wandb", WANDB),
    INSTEAD("log-loss", "the loss is always logged: leave it out"),
    INSTEAD("logging-dir", "use --tensorboard DIR for event files, --log FILE for the log"),
    INSTEAD("report-to", "use --tensorboard DIR for event files, --log FILE for the log"),
    // Processes.
    INSTEAD("nproc-per-node", "fsdp_train: mpirun -np N sets the ranks; fsdp_plan: --ranks N does"),
    INSTEAD("num-processes", "fsdp_train: mpirun -np N sets the ranks; fsdp_plan: --ranks N does"),
    INSTEAD("nnodes", "fsdp_train: mpirun --host A,B sets the nodes; fsdp_plan: --ranks-per-node N does"),
    INSTEAD("gpus", RANKS),
    INSTEAD("ngpus", RANKS),
    INSTEAD("num-gpus", RANKS),
    INSTEAD("world-size", RANKS),
    INSTEAD("nodes", "fsdp_train: mpirun --host A,B sets the nodes; fsdp_plan: --ranks-per-node N does"),
    INSTEAD("accelerator", "leave it out, or use --backend cpu|cuda"),
    INSTEAD("device", "use --backend cpu|cuda"),
    INSTEAD("cpu", "use --backend cpu"),
    INSTEAD("use-cpu", "use --backend cpu"),
    INSTEAD("no-fa", NO_FLASH),
    INSTEAD("flash-attn", NO_FLASH),
    INSTEAD("flash-attention", NO_FLASH),
    INSTEAD("use-flash-attn", NO_FLASH),
    INSTEAD("use-flash-attention-2", NO_FLASH),
    INSTEAD("attn-implementation", NO_FLASH),
    INSTEAD("torch-compile", WHOLE),
    INSTEAD("compile", WHOLE),
    INSTEAD("local-rank", "leave it out: MPI numbers the ranks"),
};

const fsdp_option_alias *fsdp_option_alias_table(int *count) {
  *count = (int)(sizeof table / sizeof *table);
  return table;
}

const fsdp_option_alias *fsdp_option_alias_find(const char *name) {
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (strcmp(table[i].alias, name) == 0) return &table[i];
  }
  return NULL;
}
