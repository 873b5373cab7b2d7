#include "launcher/options/option_alias.h"

#include "runtime/base/check.h"

#include <string.h>

enum { ALIASES_MAX = 320 };

#define SAME(ours, theirs)                                                                                   \
  { .words = (theirs), .name = (ours) }
#define INSTEAD(theirs, clause)                                                                              \
  { .words = (theirs), .advice = (clause) }

#define WANDB "use --tensorboard DIR; wandb sync --sync-tensorboard DIR uploads what it wrote"

// The names of Transformers' and TRL's trainers, Accelerate, DeepSpeed, Megatron, torchtitan, nanoGPT and
// litgpt. A row is SAME only if each value means the same in both.
// `words` are names with a space between two, which all mean the same.
static const struct meaning {
  const char *words, *name, *on, *off, *advice, *script;
} meanings[] = {
    // Model and data.
    SAME("model", "model-name model-path base-model model-name-or-path pretrained-model-name-or-path"),
    {.words = "dataset-name-or-path dataset-name dataset datasets",
     .advice = "--data takes files: download them (hf download NAME --repo-type dataset --local-dir DIR) and "
               "prepare them with",
     .script = "prepare_data.py"},
    SAME("eval-split", "val-set-size val-size"),
    INSTEAD("dataloader-num-workers num-workers", "data is mapped and read beside the step: leave it out"),
    INSTEAD("lora use-lora qlora finetuning-type load-in-4bit load-in-8bit lora-r lora-rank lora-alpha "
            "lora-dropout lora-target-modules use-peft",
            "adapters are not built: every parameter is trained"),
    INSTEAD("freeze", "parts cannot be frozen: every parameter is trained"),
    INSTEAD("resize-vocab", "use --resize-embeddings, for a tokenizer with more tokens than the model"),
    INSTEAD("resize-token-embeddings-to-32x", "use --resize-embeddings N"),
    INSTEAD("num-layers hidden-size ffn-hidden-size num-attention-heads max-position-embeddings "
            "n-layer n-embd n-head",
            "the shape is the model's: --model takes a preset or a folder, whose config.json holds it"),
    SAME("tokenizer", "tokenizer-path tokenizer-file"),
    SAME("data", "data-path train-data train-file"),
    SAME("eval-data", "eval-file validation-file"),
    {.words = "template",
     .advice = "conversations get their form before training: --chat-template of",
     .script = "prepare_data.py"},
    INSTEAD("hub-model-id push-to-hub", "fsdp_export writes a folder, which hf upload ORG/NAME DIR uploads"),
    INSTEAD("do-train", "fsdp_train always trains: leave it out"),
    // The batch.
    SAME("batch-size", "micro-batch-size mbs per-device-batch-size per-device-train-batch-size "
                       "train-micro-batch-size-per-gpu"),
    SAME("grad-accum", "ga gradient-accumulation-steps grad-accum-steps accumulation-steps"),
    SAME("seq-length",
         "seq-len cutoff-len sequence-length sequence-len max-seq-len max-seq-length max-length "
         "model-max-length block-size context-length"),
    {.words = "sample-packing", .name = "packing", .on = "best-fit", .off = "off"},
    INSTEAD("group-by-length", "rows are packed with whole documents: --packing best-fit; leave it out"),
    INSTEAD("global-batch-size gbs train-batch-size",
            "the global batch is --batch-size x --grad-accum x data-parallel ranks"),
    // How long.
    SAME("num-epochs", "epochs max-epochs num-train-epochs"),
    SAME("max-steps", "max-train-steps train-steps steps max-iters train-iters"),
    SAME("tokens", "total-tokens"),
    INSTEAD("price-per-hour dollars-per-hour", "use --gpu-hour X, what an hour of one GPU costs"),
    // The optimizer.
    INSTEAD("optim optimizer", "the optimizer is AdamW, as PyTorch's: leave it out"),
    SAME("lr", "learning-rate"),
    SAME("min-lr", "min-learning-rate"),
    SAME("lr-schedule", "lr-scheduler lr-scheduler-type lr-decay-style"),
    SAME("warmup-steps", "num-warmup-steps lr-warmup-steps warmup-iters lr-warmup-iters"),
    SAME("warmup-ratio", "lr-warmup-fraction"),
    SAME("lr-decay-ratio", "decay-ratio"),
    INSTEAD("no-decay", "use --decay matrices: norms and biases do not decay"),
    INSTEAD("num-decay-steps lr-wsd-decay-iters",
            "use --lr-schedule wsd --lr-decay-ratio P, a share of all steps"),
    SAME("beta1", "adam-beta1"),
    SAME("beta2", "adam-beta2"),
    SAME("eps", "adam-eps adam-epsilon"),
    SAME("grad-clip", "max-grad-norm clip-grad clip-grad-norm gradient-clipping"),
    // Sharding.
    SAME("tensor-parallel", "tp tensor-model-parallel-size tensor-parallel-size tensor-parallel-degree"),
    SAME("context-parallel", "cp context-parallel-size context-parallel-degree"),
    {.words = "sp", .name = "sequence-parallel", .on = "on", .off = "off"},
    INSTEAD("dp", "use --strategy no for replicas on all ranks, or --mesh data=N,..."),
    SAME("expert-parallel",
         "ep ep-size expert-model-parallel-size expert-parallel-size expert-parallel-degree"),
    INSTEAD("pp pipeline-model-parallel-size",
            "pipeline parallelism is not built yet: --strategy shards every layer"),
    SAME("strategy", "sharding-strategy fsdp-sharding-strategy"),
    SAME("numel-to-wrap", "min-num-params fsdp-min-num-params"),
    {.words = "offload-params fsdp-offload-params", .name = "cpu-offload", .on = "on", .off = "off"},
    INSTEAD(
        "fsdp",
        "every run is sharded: --strategy sets how, --wrap the units, --mesh fsdp=N,... over how many ranks"),
    INSTEAD("deepspeed", "use --strategy zero1, zero2 or zero3, and --cpu-offload on"),
    INSTEAD("zero zero-stage", "use --strategy zero3, zero2, zero1 or zero0"),
    INSTEAD("ddp", "use --strategy no: every rank has all of the model"),
    INSTEAD("use-distributed-optimizer", "use --strategy zero1"),
    INSTEAD("auto-wrap-policy", "use --wrap size|block|none|module:NAME,..."),
    INSTEAD("transformer-layer-cls-to-wrap fsdp-transformer-layer-cls-to-wrap",
            "use --wrap block, or --wrap module:NAME,..."),
    INSTEAD("backward-prefetch", "use --prefetch N, the number of wrapped modules that are gathered ahead"),
    // Memory and precision.
    {.words = "gc gradient-checkpointing activation-checkpointing fsdp-activation-checkpointing "
              "enable-activation-checkpointing",
     .name = "recompute",
     .on = "block",
     .off = "none"},
    INSTEAD("recompute-activations", "use --recompute OPS, such as rmsnorm,swiglu; attention's scores are "
                                     "never saved"),
    INSTEAD("recompute-granularity", "use --recompute block for full, --recompute OPS for selective"),
    INSTEAD("recompute-method recompute-num-layers", "use --recompute block:K for the first K layers"),
    INSTEAD("recompute-modules", "use --recompute OPS, such as rmsnorm,swiglu"),
    INSTEAD("cpu-checkpointing", "use --recompute block --offload-activations block_inputs"),
    INSTEAD("activation-offloading enable-activation-offloading cpu-offloading "
            "cpu-offloading-num-layers",
            "use --offload-activations NAMES, such as residual,attention@8 for the first 8 layers, or auto"),
    INSTEAD("bf16",
            "use --param-dtype bf16, the default on a GPU: compute in bf16 with master weights in fp32"),
    INSTEAD("fp16", "fp16 needs loss scaling, which is not implemented: use --param-dtype bf16"),
    INSTEAD("fp32", "use --param-dtype fp32"),
    INSTEAD("dtype torch-dtype",
            "use --param-dtype bf16|fp32, to compute in; --master-dtype is that of the weights kept"),
    INSTEAD("precision mixed-precision",
            "use --param-dtype bf16|fp32; master weights are in fp32 unless --master-dtype bf16"),
    INSTEAD("gemm-dtype", "products are computed in --param-dtype, bf16 or fp32"),
    INSTEAD("fp8", "fp8 is not built: use --param-dtype bf16"),
    INSTEAD("neftune-noise-alpha", "noise on embeddings is not built: leave it out"),
    INSTEAD("label-smoothing label-smoothing-factor", "label smoothing is not built: leave it out"),
    // Files.
    INSTEAD("output-dir checkpoint-dir",
            "use -e NAME for a run's folder and --save-dir DIR for the one that holds it"),
    INSTEAD("overwrite-output-dir",
            "-e NAME resumes its newest checkpoint: use --resume off --overwrite to begin "
            "again"),
    SAME("experiment-name", "exp exp-name experiment"),
    INSTEAD("checkpoint ckpt from-checkpoint load-checkpoint",
            "use -e NAME --resume PATH to train on from a checkpoint, --ckpt-freq N to save some"),
    INSTEAD("run-name", "use -e NAME, which names the run's folder below --save-dir"),
    SAME("ckpt-freq", "save-steps save-interval save-every checkpointing-steps"),
    SAME("ckpt-keep", "save-total-limit"),
    {.words = "load-best-model-at-end", .name = "ckpt-best", .on = "eval_loss", .off = "off"},
    INSTEAD("metric-for-best-model", "use --ckpt-best eval_loss"),
    SAME("stop-after", "early-stopping-patience patience"),
    INSTEAD("generate", "use --sample-every N --prompt TEXT, or fsdp_eval -e NAME --prompt TEXT"),
    INSTEAD("eval-only do-eval",
            "fsdp_eval evaluates alone: fsdp_eval -e NAME, or --model DIR, with --data FILE"),
    SAME("eval-at-start", "eval-on-start"),
    {.words = "resume-from-checkpoint", .name = "resume", .on = "auto", .off = "off"},
    SAME("log-freq", "logging-steps log-interval"),
    SAME("eval-freq", "eval-steps eval-interval"),
    INSTEAD("eval-strategy evaluation-strategy",
            "use --eval-freq N, with --eval-data FILE or --eval-split 0.05"),
    SAME("tensorboard", "tensorboard-dir"),
    INSTEAD("save-strategy", "use -e NAME with --ckpt-freq N"),
    INSTEAD("wandb wandb-project use-wandb", WANDB),
    INSTEAD("log-loss", "the loss is always logged: leave it out"),
    INSTEAD("logging-dir", "use --tensorboard DIR for event files, --log FILE for the log"),
    INSTEAD("report-to", WANDB "; --log FILE is the log"),
    INSTEAD("mlflow", "use --log FILE, a JSON object per step, or --tensorboard DIR for event files"),
    // Processes.
    INSTEAD("nproc-per-node num-processes",
            "fsdp_train: mpirun -np N sets the ranks; fsdp_plan: --ranks N does"),
    INSTEAD("nnodes nodes",
            "fsdp_train: mpirun --host A,B sets the nodes; fsdp_plan: --ranks-per-node N does"),
    INSTEAD("gpus ngpus num-gpus world-size",
            "fsdp_train: mpirun -np N sets the ranks, one per GPU; fsdp_plan: --ranks N does"),
    INSTEAD("accelerator", "leave it out, or use --backend cpu|cuda"),
    INSTEAD("device", "use --backend cpu|cuda"),
    INSTEAD("cpu use-cpu", "use --backend cpu"),
    INSTEAD("no-fa flash-attn flash-attention use-flash-attn use-flash-attention-2 attn-implementation",
            "attention never keeps its scores, whichever kernel computes it: leave it out"),
    INSTEAD("torch-compile compile", "a step is planned whole before the first one: leave it out"),
    INSTEAD("local-rank", "leave it out: MPI numbers the ranks"),
};

// An alias for each of the words, made when they are first asked for.
const fsdp_option_alias *fsdp_option_alias_table(int *count) {
  static fsdp_option_alias table[ALIASES_MAX];
  static int known;
  for (size_t i = 0; i < sizeof meanings / sizeof *meanings && (i > 0 || !known); i++) {
    const struct meaning *m = &meanings[i];
    char *words = fsdp_strdup(m->words, "names of options");
    for (char *word; (word = strsep(&words, " "));) {
      FSDP_CHECK(known < ALIASES_MAX, "more than %d aliases", known);
      table[known++] = (fsdp_option_alias){word, m->name, m->on, m->off, m->advice, m->script};
    }
  }
  *count = known;
  return table;
}

const fsdp_option_alias *fsdp_option_alias_find(const char *name) {
  int count;
  const fsdp_option_alias *table = fsdp_option_alias_table(&count);
  for (int i = 0; i < count; i++)
    if (strcmp(table[i].alias, name) == 0) return &table[i];
  return NULL;
}
