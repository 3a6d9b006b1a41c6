"""Operations with a backward pass written by the user."""

from gt._gt import Tensor, _custom_node, _set_grad_enabled, is_grad_enabled


class FunctionCtx:
    """What `forward` leaves for `backward`."""

    def __init__(self, function, needs_input_grad):
        self._function = function
        self.needs_input_grad = needs_input_grad
        self._saved = ()
        self._freed = False
        self._outputs = None
        self._plain = ()
        self._dirty = ()
        self._materialize = True

    def save_for_backward(self, *tensors):
        """Keeps tensors for the backward pass; a change in place before it is an error there."""
        for i, t in enumerate(tensors):
            if t is not None and not isinstance(t, Tensor):
                raise TypeError(
                    f"save_for_backward: expected tensors, got {type(t).__name__} as argument {i}: keep it as an "
                    "attribute of ctx"
                )
        self._saved = tuple((t, None if t is None else t._version) for t in tensors)

    @property
    def saved_tensors(self):
        """The tensors given to `save_for_backward`."""
        if self._freed:
            raise RuntimeError(
                "Trying to backward through the graph a second time (or directly access saved tensors after they have "
                "already been freed). Saved intermediate values of the graph are freed when you call .backward() or "
                "autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time."
            )
        return tuple(self._read(t, version) for t, version in self._saved)

    def _read(self, t, version):
        if isinstance(t, int):
            return self._outputs.get(t)
        if t is not None and t._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{t.dtype} {list(t.shape)}] is at version {t._version}; expected version {version} instead."
            )
        return t

    def mark_non_differentiable(self, *tensors):
        """These outputs carry no gradient."""
        self._plain = tensors

    def mark_dirty(self, *tensors):
        """These inputs were changed in place and are returned."""
        self._dirty = tensors

    def set_materialize_grads(self, value):
        """Whether missing gradients reach `backward` as zeros (the default) or as None."""
        self._materialize = bool(value)

    def __call__(self, *grads):
        return self._function.backward(self, *grads)

    def _release(self):
        self._saved, self._freed = (), True


def _among(t, tensors):
    return any(t is other for other in tensors)


class Function:
    """Subclass it with static methods `forward(ctx, ...)` and `backward(ctx, *grads)`, and call `apply`."""

    @staticmethod
    def forward(ctx, *args, **kwargs):
        raise NotImplementedError("a Function needs a static method forward(ctx, ...)")

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError("a Function needs a static method backward(ctx, *grads) to be differentiated")

    setup_context = None

    @classmethod
    def apply(cls, *args):
        """Runs `forward` and joins its outputs with the graph."""
        recording = is_grad_enabled()
        needs = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        ctx = FunctionCtx(cls, needs)
        before = _set_grad_enabled(False)
        try:
            if cls.setup_context is None:
                result = cls.forward(ctx, *args)
            else:
                result = cls.forward(*args)
                cls.setup_context(ctx, args, result)
        finally:
            _set_grad_enabled(before)
        if not (recording and any(needs)):
            return result
        many = isinstance(result, (tuple, list))
        results = list(result) if many else [result]
        at = [i for i, r in enumerate(results) if isinstance(r, Tensor)]
        outputs = [results[i] for i in at]
        if not outputs:
            return result
        if any(t.requires_grad and t.is_leaf for t in ctx._dirty):
            raise RuntimeError(
                f"{cls.__name__}: a leaf tensor that requires grad has been used in an in-place operation"
            )
        # Outputs kept for backward are kept as values: keeping the tensors would tie them to their own history.
        ctx._saved = tuple(
            (next((i for i, o in enumerate(outputs) if o is t and not _among(t, args)), t), v) for t, v in ctx._saved
        )
        joined, ctx._outputs = _custom_node(
            ctx,
            f"{cls.__name__}Backward",
            args,
            outputs,
            [_among(o, ctx._plain) for o in outputs],
            [_among(o, ctx._dirty) for o in outputs],
            ctx._materialize,
        )
        for i, t in zip(at, joined):
            results[i] = t
        return tuple(results) if many else results[0]


def once_differentiable(backward):
    """For a `backward` that cannot be differentiated again."""

    def decorated(ctx, *grads):
        before = _set_grad_enabled(False)
        try:
            return backward(ctx, *grads)
        finally:
            _set_grad_enabled(before)

    return decorated
