# Written by tools/make_stubs.py.
from . import arranging as arranging
from . import model as model
from .arranging import Packing as Packing
from .model import PackedBatches as PackedBatches
from .model import PackedTransformer as PackedTransformer
from .model import pack as pack
