"""FlashMLA's module of this name, which engines import their calls from."""

from libmla import (  # noqa: F401
    FlashMLASchedMeta,
    flash_mla_sparse_fwd,
    flash_mla_with_kvcache,
    get_mla_metadata,
)
