"""The typed configuration of a run: what `run.yaml` holds and every rank reads.

Plain frozen dataclasses over the standard library: importing this costs nothing, so launchers on login nodes,
preprocessing workers and ranks all share it. Rules that relate several fields live in `validate.py`; how YAML and
command-line overrides become a `Run` lives in `load.py`; how a `Run` becomes Megatron's own configuration lives in
`megatron.py`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional


class Choice(str, enum.Enum):
    """A string with a closed set of values; each member's name equals its value (enum.StrEnum needs Python 3.11)."""

    def __str__(self) -> str:
        return str(self.value)


class Norm(Choice):
    rmsnorm = "rmsnorm"
    layernorm = "layernorm"


class Activation(Choice):
    swiglu = "swiglu"
    gelu = "gelu"


class Position(Choice):
    rope = "rope"
    learned = "learned"


class Init(Choice):
    normal = "normal"  # N(0, init_std) everywhere
    scaled_normal = "scaled_normal"  # as normal; layers that write to the residual stream by init_std / sqrt(2 L)
    xavier_uniform = "xavier_uniform"  # Glorot & Bengio 2010, from each weight's own fan in and fan out


class Implementation(Choice):
    auto = "auto"  # Transformer Engine when it can be imported, else local
    local = "local"
    transformer_engine = "transformer_engine"


class Dispatcher(Choice):
    alltoall = "alltoall"
    allgather = "allgather"


class RouterScore(Choice):
    softmax = "softmax"
    sigmoid = "sigmoid"


class TokenizerKind(Choice):
    sentencepiece = "sentencepiece"  # a .model file
    huggingface = "huggingface"  # a tokenizer.json file
    tiktoken = "tiktoken"  # a file of ranks


class SentencePieceModel(Choice):
    unigram = "unigram"
    bpe = "bpe"


class Long(Choice):
    drop = "drop"
    truncate = "truncate"


class Schedule(Choice):
    cosine = "cosine"
    linear = "linear"
    wsd = "wsd"  # warm-up, stable, decay (Hu et al. 2024, MiniCPM)
    constant = "constant"


class Precision(Choice):
    bf16 = "bf16"
    fp32 = "fp32"


class Recompute(Choice):
    none = "none"
    selective = "selective"  # core attention only
    full = "full"  # whole layers


class ClusterKind(Choice):
    local = "local"  # torchrun on this machine
    slurm = "slurm"  # submitit


@dataclass(frozen=True)
class Moe:
    """Mixture of experts; `num_experts: 0` is a dense model."""

    num_experts: int = 0
    top_k: int = 2
    expert_ffn_size: Optional[int] = None  # None: model.ffn_size
    shared_expert_ffn_size: int = 0  # 0: no shared expert
    router_score: RouterScore = RouterScore.softmax
    aux_loss_coeff: float = 0.0
    z_loss_coeff: float = 0.0
    dispatcher: Dispatcher = Dispatcher.alltoall


@dataclass(frozen=True)
class Model:
    num_layers: int = 4
    hidden_size: int = 128
    ffn_size: int = 344
    num_heads: int = 8
    num_kv_heads: Optional[int] = None  # None: num_heads (no grouped-query attention)
    head_dim: Optional[int] = None  # None: hidden_size / num_heads
    vocab_size: int = 4096  # ids the tokenizer can produce; padding on top never gets probability
    vocab_multiple: int = 128  # the embedding has a multiple of this many rows, the same in every layout
    seq_length: int = 256  # tokens
    norm: Norm = Norm.rmsnorm
    norm_eps: float = 1e-5
    activation: Activation = Activation.swiglu
    position: Position = Position.rope
    rope_base: float = 10000.0
    rope_scaling_factor: float = 1.0  # above 1: Llama 3.1's frequency scaling by this factor
    linear_bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    init: Init = Init.scaled_normal
    init_std: float = 0.02
    implementation: Implementation = Implementation.auto
    moe: Moe = field(default_factory=Moe)
    megatron: Dict[str, Any] = field(default_factory=dict)  # any other TransformerConfig field, by its own name


@dataclass(frozen=True)
class Tokenizer:
    kind: TokenizerKind = TokenizerKind.sentencepiece
    path: str = ""
    pattern: str = ""  # of a tiktoken file: gpt2, r50k_base, p50k_base, cl100k_base or o200k_base; "": by its size
    fast: bool = True  # gigatoken in place of the exact library, if it gives the same ids on a sample of the run
    train_vocab_size: int = 0  # above 0: `llm-preprocess` trains one of this size if path is missing
    train_model: SentencePieceModel = SentencePieceModel.bpe  # of kind sentencepiece; huggingface is byte-level BPE


@dataclass(frozen=True)
class Label:
    """Conversations -> tokens of which only the wanted turns are learned. Without a template the data is plain text."""

    template: str = ""  # of the chat: a tokenizer_config.json or a .jinja file, each with the other beside it
    date: str = ""  # as 2025-12-31, what a template that prints today's date gets: the output must not depend on it
    messages_key: str = "messages"
    prompt_key: str = "prompt"  # records without messages may have a prompt and a completion
    completion_key: str = "completion"
    tools_key: str = "tools"
    train_on: List[str] = field(default_factory=lambda: ["assistant"])  # roles whose turns are learned
    last_turn_only: bool = False  # of these turns
    pack_length: int = 0  # tokens: conversations share packs of at most this many; 0: each is a pack of its own
    long: Long = Long.drop  # what happens to a conversation above pack_length


@dataclass(frozen=True)
class Source:
    """Raw text that `llm-preprocess` turns into shards."""

    inputs: List[str] = field(default_factory=list)  # files, globs, folders, or fsspec addresses as s3://bucket/*.jsonl
    output: str = ""  # shard prefix: <output>.bin, <output>.idx, <output>.parquet, <output>.json
    text_key: str = "text"
    id_key: str = "id"
    steps: List[Any] = field(default_factory=list)  # names of preprocess/steps.py, or {name: {setting: value}}
    append_eod: bool = True
    prepend_bos: bool = False
    label: Label = field(default_factory=Label)
    split_sentences: bool = False  # one sequence a sentence in .idx, for objectives that need them
    shard_tokens: int = 0  # above 0: shards <output>-00000 ... of at most this many tokens, documents whole
    part_bytes: int = 1 << 26  # input is cut into parts of this size: what is resumed, and spread over Slurm tasks
    memory_bytes: int = 1 << 26  # that a search for duplicates sorts at a time
    max_bad_records: int = 0  # records that cannot be read (broken JSON, bad UTF-8) are dropped up to this number
    keep_dropped: bool = False  # write what was dropped, and why, to <output>.dropped.jsonl.zst
    keep_work: bool = False  # keep <output>.work, so that the next run redoes only the parts whose input changed
    workers: int = 0  # 0: one per core
    tasks: int = 16  # of each Slurm array, when cluster.kind=slurm


@dataclass(frozen=True)
class Data:
    blend: List[str] = field(default_factory=list)  # shard prefixes
    weights: List[float] = field(default_factory=list)  # one per prefix; empty: by epochs, or by tokens
    epochs: List[float] = field(default_factory=list)  # one per prefix: how often each is seen, relative to the others
    temperature: float = 1.0  # without weights and epochs: tokens ** (1 / temperature); 1: in proportion to the tokens
    cache: str = ""  # folder for the orders of large sources; "": <root>/.index
    allow_change: bool = False  # resume although the data is not that of the checkpoint
    split: str = "98,2,0"  # train, validation, test; in percent of the documents
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    source: Source = field(default_factory=Source)


@dataclass(frozen=True)
class Parallel:
    """How the ranks divide the work; world size = data x tensor x pipeline x context.

    The experts of a mixture divide the same ranks anew: data x tensor x context = expert data x expert x expert_tensor.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1  # model chunks per pipeline stage; above 1: the interleaved schedule
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence: bool = False  # sequence parallelism among the tensor-parallel ranks
    distributed_optimizer: bool = True  # optimizer state sharded over data-parallel ranks
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    bucket_size: Optional[int] = None  # parameters per gradient bucket; None: Megatron's choice
    timeout_minutes: float = 30.0  # of a collective


@dataclass(frozen=True)
class Optim:
    """AdamW (Loshchilov & Hutter 2019) and the learning-rate schedule."""

    lr: float = 3e-4
    min_lr: float = 3e-5
    schedule: Schedule = Schedule.cosine
    warmup_fraction: float = 0.05  # of train.steps
    decay_fraction: float = 0.1  # of train.steps; the decay phase of wsd
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.1  # not on biases, norms and other vectors
    clip_grad: float = 1.0  # global gradient norm; 0: off


@dataclass(frozen=True)
class Train:
    steps: int = 100
    global_batch_size: int = 8  # sequences
    micro_batch_size: int = 1  # sequences
    precision: Precision = Precision.bf16
    label_smoothing: float = 0.0
    recompute: Recompute = Recompute.none
    eval_every: int = 0  # steps; 0: never
    eval_batches: int = 4  # global batches per validation
    save_every: int = 0  # steps; 0: only at the end and on a signal
    keep_last: int = 3  # checkpoints kept; 0: all
    log_every: int = 1  # steps
    init_from: str = ""  # a checkpoint folder whose weights (not optimizer, not data position) start the run


@dataclass(frozen=True)
class Cluster:
    """Where the ranks run; every Slurm flag left at None is not given to Slurm."""

    kind: ClusterKind = ClusterKind.local
    ranks_per_node: int = 8  # on a GPU cluster: one rank per GPU
    threads_per_rank: int = 1  # OMP_NUM_THREADS, and Slurm's cpus-per-task
    partition: Optional[str] = None
    account: Optional[str] = None
    qos: Optional[str] = None
    constraint: Optional[str] = None
    gpus_per_node: Optional[str] = None  # a count or "type:count"
    mem_per_node: Optional[str] = None  # as Slurm writes it: "400G"
    time_limit_minutes: Optional[int] = None
    signal_seconds: int = 120  # this long before the time limit Slurm signals the run to save
    exclusive: bool = False
    setup: List[str] = field(default_factory=list)  # shell lines before the ranks start (module load ...)
    env: Dict[str, str] = field(default_factory=dict)  # NCCL_... and the like, for every rank
    python: Optional[str] = None  # interpreter on the nodes; None: the launcher's own
    max_restarts: int = 20


@dataclass(frozen=True)
class Run:
    name: str = "run"
    root: str = "runs"  # the run folder is <root>/<name>
    seed: int = 1234
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    parallel: Parallel = field(default_factory=Parallel)
    optim: Optim = field(default_factory=Optim)
    train: Train = field(default_factory=Train)
    cluster: Cluster = field(default_factory=Cluster)


def world_size(parallel: Parallel) -> int:
    """Number of ranks of a run."""
    return parallel.data * parallel.tensor * parallel.pipeline * parallel.context


def padded_vocab_size(model: Model) -> int:
    """Rows of the embedding: the same in every layout, so that checkpoints and losses do not depend on it."""
    return -(-model.vocab_size // model.vocab_multiple) * model.vocab_multiple


def num_kv_heads(model: Model) -> int:
    return model.num_heads if model.num_kv_heads is None else model.num_kv_heads


def head_dim(model: Model) -> int:
    return model.hidden_size // model.num_heads if model.head_dim is None else model.head_dim


def expert_ffn_size(model: Model) -> int:
    return model.ffn_size if model.moe.expert_ffn_size is None else model.moe.expert_ffn_size
