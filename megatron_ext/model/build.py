"""Run -> the model chunks of this rank: GPTModels from megatron-core's specs, wrapped for mixed precision and DDP."""

from __future__ import annotations

from typing import Any, List

from megatron_ext.config import megatron, schema
from megatron_ext.config.schema import Run
from megatron_ext.model.init import initialise
from megatron_ext.model.spec import block_spec
from megatron_ext.runtime.parallel import Grid


def build(run: Run, grid: Grid) -> List[Any]:
    """One DistributedDataParallel chunk per virtual stage, weights initialised, gradients bucketed.

    Communication: tied embeddings are compared between first and last stage by Megatron when it builds them.
    """
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.transformer.module import Float16Module

    config = megatron.transformer_config(run)
    models = [_chunk(run, grid, config, stage) for stage in range(grid.virtual_stages)]
    initialise(models, run, grid)
    for model in models:
        _mark_experts(model)
    if config.bf16:
        models = [Float16Module(config, model) for model in models]
    ddp = megatron.ddp_config(run)
    # Only the first chunk's buckets overlap with its backward pass; the later chunks' finish while others compute.
    chunks = [
        DistributedDataParallel(config, ddp, model, disable_bucketing=index > 0, pg_collection=grid.groups)
        for index, model in enumerate(models)
    ]
    _connect(config, chunks, run)
    return chunks


def _chunk(run: Run, grid: Grid, config: Any, stage: int) -> Any:
    from megatron.core.models.gpt import GPTModel

    model, last = run.model, grid.virtual_stages - 1
    virtual = stage if grid.virtual_stages > 1 else None
    return GPTModel(
        config=config,
        transformer_layer_spec=block_spec(run, config, virtual, grid),
        vocab_size=schema.padded_vocab_size(model),
        max_sequence_length=model.seq_length,
        pre_process=grid.is_first_stage and stage == 0,
        post_process=grid.is_last_stage and stage == last,
        parallel_output=True,  # logits stay split over the vocabulary; model/loss.py takes them so
        share_embeddings_and_output_weights=model.tie_embeddings,
        position_embedding_type="rope" if model.position == schema.Position.rope else "learned_absolute",
        rotary_base=int(model.rope_base),
        rope_scaling=model.rope_scaling_factor > 1,
        rope_scaling_factor=model.rope_scaling_factor,
        pg_collection=grid.groups,
        vp_stage=virtual,
    )


def _mark_experts(model: Any) -> None:
    """Expert weights are reduced over the experts' own data-parallel group.

    megatron-core marks them only when EP > 1; with EP 1 and another tensor size for experts than for attention their
    gradients would be summed over the wrong ranks.
    """
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            parameter.allreduce = False


def _connect(config: Any, chunks: List[Any], run: Run) -> None:
    """Give Megatron's schedule the functions with which it synchronises gradients and parameters."""
    from megatron.core.distributed import finalize_model_grads

    def one_or_list(functions: List[Any]) -> Any:
        return functions[0] if len(functions) == 1 else functions

    config.finalize_model_grads_func = finalize_model_grads
    if run.parallel.overlap_grad_reduce:
        config.no_sync_func = one_or_list([chunk.no_sync for chunk in chunks])
        if len(chunks) > 1:
            config.grad_sync_func = one_or_list([chunk.start_grad_sync for chunk in chunks])
    if run.parallel.overlap_param_gather and len(chunks) > 1:
        config.param_sync_func = one_or_list([chunk.start_param_sync for chunk in chunks])
