"""The layout pass: picks each tensor's representation and each heavy operator's kernel, and packs the weights.

TVM's ConvertLayout knows one block size for a whole model and only layouts its operators declare; this pass carries
three
representations side by side (plain, NCHWc with a block chosen per tensor, rows) and moves a tensor only where the
next operator cannot
take what there is.
"""

from tvmstack.lower.layout.rewriter import choose_layouts

__all__ = ["choose_layouts"]
