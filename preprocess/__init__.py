"""Raw text -> Megatron shards and a table of their documents. Nothing here imports torch. Start at prepare.py."""
