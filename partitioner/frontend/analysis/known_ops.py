"""What ops and modules are known for by their names: views, random numbers, errors, results that are no tensor.

`tests/op_database.py` holds these names, and what `static.py` makes of them, against every op that PyTorch knows samples of.
"""

from __future__ import annotations

from torch import nn

VIEWS = frozenset(
    """adjoint alias as_strided broadcast_tensors broadcast_to chunk conj contiguous detach diagonal dsplit expand expand_as
    flatten hsplit imag mH mT H T movedim moveaxis narrow permute positive pin_memory ravel real requires_grad_ reshape
    reshape_as resolve_conj resolve_neg select slice split split_with_sizes squeeze swapaxes swapdims t tensor_split to
    transpose unbind unflatten unfold unsafe_chunk unsqueeze values view view_as view_as_complex view_as_real vsplit
    atleast_1d atleast_2d atleast_3d meshgrid type type_as float double half bfloat16 int long short bool byte char cpu
    cuda data grad lift_fresh __getitem__ unsafe_split dropout alpha_dropout feature_dropout dropout1d dropout2d dropout3d
    feature_alpha_dropout pad channel_shuffle pixel_shuffle pixel_unshuffle interpolate upsample identity
    einsum as_tensor asarray cartesian_prod conj_physical histogramdd local_response_norm sum_to_size
    coalesce to_dense indices _indices _values crow_indices col_indices ccol_indices row_indices""".split()
)
"""Ops whose result may share a storage with an input; those that only sometimes do so included."""

SOMETIMES_VIEWS = frozenset(
    """conj contiguous flatten pin_memory positive ravel reshape reshape_as resolve_conj resolve_neg to type type_as float
    double half bfloat16 int long short bool byte char coalesce to_dense""".split()
)
"""Views on some inputs and copies on others of the same shape and dtype, so that one observation does not settle it."""

RANDOM = frozenset(
    """alpha_dropout bernoulli bernoulli_ binomial cauchy_ dropout dropout1d dropout2d dropout3d exponential_
    feature_alpha_dropout feature_dropout fractional_max_pool2d fractional_max_pool3d geometric_ gru gumbel_softmax
    log_normal_ lstm multi_head_attention_forward multinomial native_dropout normal normal_ poisson rand rand_like randint
    randint_like randn randn_like random_ randperm rnn_relu rnn_tanh rrelu rrelu_ scaled_dot_product_attention
    uniform_""".split()
)
"""Ops that draw from the random generator, at least in some modes."""

RAISING = frozenset(
    """bernoulli binary_cross_entropy bincount cholesky cross_entropy ctc_loss det embedding embedding_bag gather getitem inv
    index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_put index_put_ index_select inverse lstsq
    lu_factor masked_scatter multi_margin_loss multinomial nll_loss one_hot qr repeat_interleave scatter scatter_ scatter_add
    scatter_add_ scatter_reduce scatter_reduce_ solve svd take take_along_dim eigh""".split()
)
"""Ops that raise errors for some values of their arguments."""

METADATA = frozenset(
    "size shape dim ndim ndimension numel nelement stride device dtype is_contiguous layout requires_grad".split()
)
"""Attributes and methods whose result is no tensor."""

ALIASING_MODULES = (
    nn.Identity,
    nn.modules.dropout._DropoutNd,
    nn.Flatten,
    nn.Unflatten,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    nn.ChannelShuffle,
    nn.Upsample,
    nn.Fold,
    nn.Unfold,
    nn.ConstantPad1d,
    nn.ConstantPad2d,
    nn.ConstantPad3d,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.ParameterList,
    nn.ParameterDict,
)
RANDOM_MODULES = (
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.Transformer,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)
BATCH_NORMS = frozenset(
    "batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm instance_norm _native_batch_norm_legit".split()
)
