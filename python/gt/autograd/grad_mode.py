"""Whether operations are recorded for differentiation: contexts that are decorators too."""

from gt._gt import _InferenceGuard, _set_grad_enabled


class _Mode:
    """Sets a mode inside `with`, or inside every call of a decorated function."""

    def _clone(self):
        return type(self)()

    def __call__(self, function):
        import functools
        import inspect

        if inspect.isclass(function):
            raise TypeError(f"{type(self).__name__}: decorates functions, not classes")
        if inspect.isgeneratorfunction(function):
            return _decorate_generator(self, function)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def decorated(*args, **kwargs):
                with self._clone():
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def decorated(*args, **kwargs):
                with self._clone():
                    return function(*args, **kwargs)

        return decorated


def _decorate_generator(mode, function):
    """The mode holds while the generator runs, not while its caller does."""
    import functools

    @functools.wraps(function)
    def decorated(*args, **kwargs):
        with mode._clone():
            generator = function(*args, **kwargs)
        resume, value = generator.send, None
        try:
            while True:
                with mode._clone():
                    answer = resume(value)
                try:
                    resume, value = generator.send, (yield answer)
                except GeneratorExit:
                    with mode._clone():
                        generator.close()
                    raise
                except BaseException as error:
                    resume, value = generator.throw, error
        except StopIteration as end:
            return end.value

    return decorated


class no_grad(_Mode):
    """Operations inside are not recorded for differentiation."""

    def __new__(cls, function=None):
        self = object.__new__(cls)
        return self if function is None else self(function)

    def __enter__(self):
        self._before = _set_grad_enabled(False)

    def __exit__(self, *error):
        _set_grad_enabled(self._before)


class enable_grad(_Mode):
    """Operations inside are recorded for differentiation."""

    def __new__(cls, function=None):
        self = object.__new__(cls)
        return self if function is None else self(function)

    def __enter__(self):
        self._before = _set_grad_enabled(True)

    def __exit__(self, *error):
        _set_grad_enabled(self._before)


class set_grad_enabled(_Mode):
    """Sets the mode at once; as a context, until its end."""

    def __init__(self, mode):
        self._mode = bool(mode)
        self._before = _set_grad_enabled(self._mode)

    def __call__(self, function):
        _set_grad_enabled(self._before)
        return super().__call__(function)

    def _clone(self):
        return set_grad_enabled(self._mode)

    def __enter__(self):
        _set_grad_enabled(self._mode)

    def __exit__(self, *error):
        _set_grad_enabled(self._before)


class inference_mode(_Mode):
    """Like `no_grad`, and what is made inside is never used for differentiation."""

    def __new__(cls, mode=True):
        self = object.__new__(cls)
        if callable(mode):
            self._mode = True
            return self(mode)
        self._mode = bool(mode)
        return self

    def _clone(self):
        return inference_mode(self._mode)

    def __enter__(self):
        self._guard = _InferenceGuard(self._mode)

    def __exit__(self, *error):
        self._guard.close()
